"""One worker's part of one run: trains an arm from a seed; worker 0 writes what came out."""

import argparse
import json
import logging
import sys
from pathlib import Path

import numpy as np

from experiments import fashion
from experiments.compression.arms import ARMS
from experiments.compression.settings import add_settings


def main(argv=None):
    args = parse(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    from tfscale import distribute

    phases = ARMS[args.arm].phases(args.epochs, args.ratio)
    operation = distribute.Hierarchical2DAllReduce(phases[0], bucket_bytes=1 << 20)
    strategy = distribute.create_strategy("multi_worker_mirrored", cross_device_ops=operation)
    row = train(args, phases, strategy, load(args))
    if strategy.extended.should_checkpoint:
        Path(args.output).write_text(json.dumps(row))
    distribute.gather_values(strategy, "finished", True)
    return 0


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", required=True, choices=sorted(ARMS))
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--output", required=True, help="file for the results, JSON")
    add_settings(parser)
    return parser.parse_args(argv)


def load(args):
    """Returns ``(vectors, labels), (vectors, labels)``: training, test; float32 in [0, 1]."""
    splits = fashion.load(args.dataset, args.data_dir, args.examples)
    return [(x.reshape(len(x), -1).astype(np.float32) / 255, y) for x, y in splits]


def train(args, phases, strategy, data):
    """Trains one arm from one seed; returns its accuracy and losses."""
    import tensorflow as tf

    from tfscale import callbacks, keras
    from tfscale.distribute import topology_of

    (images, labels), held_out = data
    keras.utils.set_random_seed(args.seed)
    workers = topology_of(strategy).workers
    steps = len(images) // args.batch

    def shard(context):
        # The same global batches on any number of workers: each takes its rows of them.
        rows = fashion.order(len(images), args.seed, args.epochs * len(images))
        rows = rows[: args.epochs * steps * args.batch].reshape(-1, workers, args.batch // workers)
        rows = rows[:, context.input_pipeline_id]
        # An element for each replica, in the order of the devices.
        rows = rows.reshape(-1, context.get_per_replica_batch_size(args.batch))
        x, y = tf.constant(images), tf.constant(labels)
        # Without end: else the workers ask each other in each step whether there is another.
        dataset = tf.data.Dataset.from_tensor_slices(rows).repeat()
        return dataset.map(lambda r: (tf.gather(x, r), tf.gather(y, r))).prefetch(4)

    with strategy.scope():
        model = network(images.shape[1:])
        schedule = keras.optimizers.schedules.CosineDecay(args.learning_rate, args.epochs * steps)
        model.compile(
            optimizer=keras.optimizers.SGD(schedule, momentum=ARMS[args.arm].momentum),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    history = model.fit(
        strategy.distribute_datasets_from_function(shard),
        epochs=args.epochs,
        steps_per_epoch=steps,
        verbose=0,
        callbacks=[callbacks.CompressionSchedule(phases)],
    )
    # On each worker by itself: the weights are the same on all.
    logits = predict([w.numpy() for w in model.trainable_variables], held_out[0])
    loss = float(history.history["loss"][-1])
    return {
        "accuracy": float(np.mean(logits.argmax(-1) == held_out[1])),
        "training_loss": loss if np.isfinite(loss) else None,
    }


def network(input_shape):
    from tfscale import keras

    return keras.Sequential(
        [
            keras.layers.Input(input_shape),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def predict(weights, x):
    """The network in NumPy."""
    for kernel, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = np.maximum(x @ kernel + bias, 0)
    return x @ weights[-2] + weights[-1]


if __name__ == "__main__":
    sys.exit(main())
