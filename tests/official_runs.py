"""What the tests of tf-models-official run, also in processes of their own."""

import numpy as np

from experiments.official.settings import Settings

SETTINGS = Settings(
    dataset="digits", batch=8, steps=2, evaluations=1, width=0.125, learning_rate=0.1, warmup=0.5
)


def one_block(set_attribute=setattr, set_item=dict.__setitem__):
    """Makes the networks of a single block: synchronised batch norm takes seconds to trace."""
    from experiments.official import networks

    set_attribute(networks, "DEPTHS", (1,))
    set_attribute(networks, "FILTERS", (64,))
    set_item(networks.their_resnet.RESNET_SPECS, networks.MODEL_ID, [("bottleneck", 64, 1)])


def examples():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (8, 32, 32, 3)).astype("uint8")
    return images, rng.integers(0, 10, 8).astype("int32")


def trained(strategy, optimizer, loop="tfscale", synchronized=True):
    """Trains their network for two steps and returns its weights."""
    import tensorflow as tf

    from experiments.official import loops, networks, optimizers
    from tfscale import keras

    keras.utils.set_random_seed(3)
    start = networks.ours(SETTINGS)
    with strategy.scope():
        model = networks.theirs(SETTINGS, synchronized=synchronized)
        networks.start_theirs_as_ours(model, start)
        built = optimizers.build(optimizer, SETTINGS)

    def dataset(context):
        # An element for each replica, in their order; this worker's of each global batch.
        size = context.get_per_replica_batch_size(SETTINGS.batch)
        parts = tf.data.Dataset.from_tensor_slices(examples()).batch(size)
        return parts.shard(context.num_input_pipelines, context.input_pipeline_id).repeat()

    loops.LOOPS[loop](
        model,
        built,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        networks.task(SETTINGS),
        strategy.distribute_datasets_from_function(dataset),
        strategy,
        SETTINGS,
        loops.Curve(lambda: 0.0),
    )
    return [weight.numpy() for weight in model.weights]


def two_workers():
    """Their network in their loop, our LARS and strategy, as one of several workers."""
    from tfscale import distribute

    one_block()
    strategy = distribute.create_strategy("multi_worker_mirrored")
    weights = trained(strategy, "tfscale", "official")
    distribute.gather_values(strategy, "finished", True)
    return weights
