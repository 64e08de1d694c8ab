"""What a dataset that a strategy has distributed says of itself."""


def strategy_of(dataset):
    """The `tf.distribute.Strategy` that has distributed a dataset."""
    return dataset._strategy


def first_replica_spec(spec):
    """What the first replica gets of a part of an element, by its type spec, plain or not."""
    return getattr(spec, "_value_specs", (spec,))[0]
