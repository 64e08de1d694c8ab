"""One run: a small residual network, trained with one size of groups."""

import functools
import gc

import numpy as np

from experiments import fashion

# Of the network's stages; 20,000 parameters.
WIDTHS = (8, 16, 32)


def load(dataset, data_dir=None, examples=None):
    """Returns ``(images, labels), (images, labels)``: training and test, at half the side."""
    splits = fashion.load(dataset, data_dir, examples)
    return [(fashion.halved(images), labels) for images, labels in splits]


def train(per_replica, group, seed, data, args):
    """Trains from a seed, which decides the weights and the order of the examples.

    Args:
        per_replica: `int`, examples of a replica in each step.
        group: `int`, replicas that share statistics.
        seed: `int`.
        data: of `load`.
        args: with ``replicas``, ``epochs`` and ``learning_rate`` (for 128 examples a step).

    Returns:
        `dict` with ``accuracy`` (of the test pictures, by the moving statistics),
        ``training_loss`` (mean of the last epoch; None if it is no number) and ``steps``.
    """
    import tensorflow as tf

    from experiments.batch_norm.chunked import ChunkedBatchNormalization
    from tfscale import keras
    from tfscale.models.resnet import resnet_small

    (images, labels), test = data
    batch = args.replicas * per_replica
    steps = len(images) // batch
    keras.backend.clear_session()
    gc.collect()  # Models before are cycles of references, which Python would reach much later.
    tf.get_logger().setLevel("ERROR")  # It would advise against a trace for each run.
    keras.utils.set_random_seed(seed)
    model = resnet_small(
        images.shape[1:],
        norm=functools.partial(ChunkedBatchNormalization, args.replicas // group),
        widths=WIDTHS,
        mean=[fashion.MEAN],
        std=[fashion.STD],
    )
    rate = keras.optimizers.schedules.CosineDecay(
        args.learning_rate * batch / 128, args.epochs * steps
    )
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9), keras.losses.SparseCategoricalCrossentropy()
    )
    x, y = tf.constant(images), tf.constant(labels)
    rows = fashion.order(len(images), seed, args.epochs * steps * batch).reshape(-1, batch)
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    dataset = dataset.map(lambda r: (tf.gather(x, r), tf.gather(y, r))).prefetch(8)
    history = model.fit(dataset, epochs=args.epochs, steps_per_epoch=steps, verbose=0)
    loss = float(history.history["loss"][-1])
    return {
        "accuracy": _accuracy(model.predict(test[0], batch_size=1000, verbose=0), test[1]),
        "training_loss": loss if np.isfinite(loss) else None,
        "steps": args.epochs * steps,
    }


def _accuracy(probabilities, labels):
    return float(np.mean(probabilities.argmax(-1) == labels))
