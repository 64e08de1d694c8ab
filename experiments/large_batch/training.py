"""One run: a small residual network, trained by one optimizer with one batch size."""

import gc
from typing import NamedTuple

import numpy as np

from experiments import fashion


class Split(NamedTuple):
    """Pictures (uint8) and labels: to train on, and held out."""

    images: np.ndarray
    labels: np.ndarray
    held_images: np.ndarray
    held_labels: np.ndarray


def splits(settings, data_dir=None):
    """Returns the `Split` of the search and that of the final runs.

    Both train on the first five sixths of the training pictures. The search is scored on the
    last sixth, so that what is tuned has never met the test pictures, which score the final runs.
    """
    (images, labels), test = fashion.load(settings.dataset, data_dir, settings.examples)
    if len(images) < 6:
        raise ValueError(f"--examples={settings.examples}: 6 are the fewest that can be split")
    images, test_images = fashion.halved(images), fashion.halved(test[0])
    kept = len(images) - len(images) // 6
    train = images[:kept], labels[:kept]
    return Split(*train, images[kept:], labels[kept:]), Split(*train, test_images, test[1])


def check_batches(settings, batches, examples):
    """Raises ValueError if a single step has more examples than a run should see."""
    largest = max(*batches, *settings.tuned_batches)
    if largest > settings.epochs * examples:
        raise ValueError(
            f"a batch of {largest} exceeds all of a run's examples ({settings.epochs} epochs of "
            f"{examples}); leave it out of --batches and --tuned_batches, or give more --epochs"
        )


def steps_of(settings, batch, examples):
    """Steps of a run: as many examples as `settings.epochs` have, whatever the batch."""
    return settings.epochs * examples // batch


def optimizer_of(name, learning_rate, steps, settings):
    """Returns "lars", or "sgd": the same with every trust ratio 1.

    LARS without layer adaptation is SGD with momentum and a weight decay that is added to the
    gradient, so the two differ in nothing but the trust ratio.
    """
    from tfscale import keras
    from tfscale.optimizers import LARS, schedules

    warmup = max(1, round(settings.warmup * steps))
    decay = keras.optimizers.schedules.PolynomialDecay(
        float(learning_rate), max(1, steps - warmup), end_learning_rate=0.0, power=2.0
    )
    return LARS(
        # Not from 0: one of thirty steps would be wasted.
        schedules.LinearWarmup(decay, warmup, initial_learning_rate=learning_rate / warmup),
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        trust_coefficient=settings.trust_coefficient,
        exclude_from_layer_adaptation=[".*"] if name == "sgd" else None,
    )


def train(optimizer, learning_rate, batch, seed, split, settings):
    """Trains from a seed, which decides the weights and the order of the examples.

    Returns:
        `dict` with ``accuracy`` (held-out), ``training_accuracy`` (as many training pictures),
        both at the end; ``steps``; ``diverged``, whether the loss was no number any more.
    """
    import tensorflow as tf

    from tfscale import keras
    from tfscale.accumulation import accumulate_gradients
    from tfscale.models.resnet import resnet_small

    keras.backend.clear_session()
    gc.collect()  # Models before are cycles of references, which Python would reach much later.
    tf.get_logger().setLevel("ERROR")  # It would advise against a trace for each run.
    keras.utils.set_random_seed(seed)
    examples = len(split.images)
    steps = steps_of(settings, batch, examples)
    model = resnet_small(
        split.images.shape[1:], widths=settings.widths, mean=[fashion.MEAN], std=[fashion.STD]
    )
    model.compile(
        optimizer_of(optimizer, learning_rate, steps, settings),
        keras.losses.SparseCategoricalCrossentropy(),
    )
    if batch > settings.micro_batch:
        accumulate_gradients(model, batch // settings.micro_batch)
    images, labels = tf.constant(split.images), tf.constant(split.labels)
    rows = fashion.order(examples, seed, steps * batch).reshape(steps, batch)
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    dataset = dataset.map(lambda r: (tf.gather(images, r), tf.gather(labels, r))).prefetch(2)
    history = model.fit(
        dataset,
        steps_per_epoch=steps,
        verbose=0,
        callbacks=[keras.callbacks.TerminateOnNaN()],
    )
    held = len(split.held_images)
    return {
        "accuracy": accuracy(model, split.held_images, split.held_labels),
        "training_accuracy": accuracy(model, split.images[:held], split.labels[:held]),
        "steps": steps,
        "diverged": not np.isfinite(history.history["loss"][-1]),
    }


def accuracy(model, images, labels):
    probabilities = model.predict(images, batch_size=1000, verbose=0)
    return float(np.mean(probabilities.argmax(-1) == labels))
