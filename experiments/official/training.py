"""One run: an arm, from a seed."""

import tensorflow as tf

from experiments.official import inputs, loops, networks, optimizers
from tfscale import evaluation, keras


def train(arm, seed, settings, strategy):
    """Trains an arm from a seed.

    Args:
        arm: `Arm`.
        seed: `int`: the weights at the start, and order and augmentation of the pictures.
        settings: `Settings`.
        strategy: of `create_strategy`; an arm with their strategy takes TensorFlow's own, on the
            same devices, in its place.

    Returns:
        `dict` with ``accuracy`` (top 1 of the held-out pictures, at the end), ``accuracies`` (after
        each part of the steps), ``steps_done``, ``images_per_second`` (None for a single part).
    """
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    if arm.strategy == "official":
        strategy = their_strategy(strategy)
    task = networks.task(settings, seed)
    start = networks.ours(settings) if arm.start == "tfscale" else None
    with strategy.scope():
        model = model_of(arm, settings, start)
        optimizer = optimizers.build(arm.optimizer, settings)
    dataset = strategy.distribute_datasets_from_function(inputs.training(arm, settings, task, seed))
    held_out = strategy.distribute_datasets_from_function(inputs.evaluation(arm, settings))
    curve = loops.Curve(lambda: evaluation.evaluate(model, held_out, top=(1,))["top_1"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loops.LOOPS[arm.loop](model, optimizer, loss, task, dataset, strategy, settings, curve)
    part = settings.steps // settings.evaluations
    speed = curve.images_per_second(part * settings.batch)
    return {
        "accuracy": curve.accuracies[-1],
        "accuracies": curve.accuracies,
        "steps_done": [part * (n + 1) for n in range(settings.evaluations)],
        "images_per_second": speed and round(speed, 1),
    }


def model_of(arm, settings, start):
    """Returns the arm's network with the weights of `start`, or its own where that is None."""
    build = networks.ours if arm.model == "tfscale" else networks.theirs
    model = build(settings, normalized=inputs.takes_normalized(arm))
    if start is not None and arm.model == "tfscale":
        model.set_weights(start.get_weights())
    elif start is not None:
        networks.start_theirs_as_ours(model, start)
    return model


def their_strategy(strategy):
    """TensorFlow's own strategy on the devices of ours, which are those of one process."""
    return tf.distribute.MirroredStrategy(list(strategy.extended.worker_devices))
