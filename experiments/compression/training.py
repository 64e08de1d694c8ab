"""One worker's part of the experiment: trains every arm and seed, one after another."""

import argparse
import json
import logging
import sys
import time
from pathlib import Path

import numpy as np

from experiments.compression.arms import arms
from experiments.compression.settings import add_settings, read_rows
from experiments.quickstart.datasets import DATASETS

# What all rows of one file have in common.
SETTINGS = ("dataset", "examples", "epochs", "batch", "learning_rate", "ratio")


def main(argv=None):
    args = parse(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    import tensorflow as tf

    from tfscale import distribute

    operation = distribute.Hierarchical2DAllReduce(bucket_bytes=1 << 20)
    strategy = distribute.create_strategy("multi_worker_mirrored", cross_device_ops=operation)
    (images, labels), held_out = load(args.dataset, args.examples)
    # Once for all arms.
    data = (tf.constant(images), tf.constant(labels)), held_out
    leads = strategy.extended.should_checkpoint
    found = arms(args.ratio)
    rows = read_rows(args.json)
    settings = {name: getattr(args, name) for name in SETTINGS}
    for row in rows:
        if {name: row.get(name) for name in SETTINGS} != settings:
            raise SystemExit(
                f"error: {args.json} holds a run with other settings, {row}; this one has "
                f"{settings}. Give the same, or another --json"
            )
    # Read by all workers before worker 0 writes; the same list decides what is left to do.
    distribute.agree(strategy, "what is done", [[row["arm"], row["seed"]] for row in rows])
    for seed in range(args.seeds):
        for name in args.arms.split(",") if args.arms else found:
            if any((row["arm"], row["seed"]) == (name, seed) for row in rows):
                continue
            start = time.monotonic()
            row = {"arm": name, "seed": seed, **settings}
            row |= train(found[name], seed, args, strategy, operation, data)
            row["seconds"] = round(time.monotonic() - start, 2)
            rows.append(row)
            if leads:
                print(
                    f"seed {seed}  {name:22s} accuracy {row['accuracy']:.4f}  "
                    f"loss {row['training_loss']:.4f}  {row['seconds']:.0f} s",
                    flush=True,
                )
                Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    distribute.gather_values(strategy, "finished", True)
    return 0


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__)
    add_settings(parser)
    args = parser.parse_args(argv)
    unknown = set(filter(None, args.arms.split(","))) - set(arms())
    if unknown:
        parser.error(f"--arms: {sorted(unknown)} not among {', '.join(arms())}")
    return args


def load(dataset, examples=None):
    """Returns ``(images, labels), (images, labels)``: training, held out; grey, in [0, 1]."""
    splits, _ = DATASETS[dataset]()
    pairs = []
    for split in ("train", "validation"):
        images, labels = splits[split]
        images = images[:examples, :, :, 0].astype(np.float32) / 255
        pairs.append((images.reshape(len(images), -1), labels[:examples].astype(np.int32)))
    return pairs


def train(arm, seed, args, strategy, operation, data):
    """Trains one arm from one seed; returns its accuracy and losses."""
    import tensorflow as tf

    from tfscale import callbacks, keras
    from tfscale.distribute import topology_of

    (images, labels), held_out = data
    keras.utils.set_random_seed(seed)
    phases = arm.phases(args.epochs)
    # What the arm before holds back belongs to its own model.
    operation.set_compression(phases[0])
    workers = topology_of(strategy).workers
    steps = len(images) // args.batch

    def shard(context):
        # The same global batches on any number of workers: each takes its rows of them.
        order = np.concatenate(
            [np.random.default_rng([seed, e]).permutation(len(images)) for e in range(args.epochs)]
        )
        rows = order[: len(order) // args.batch * args.batch].reshape(
            -1, workers, args.batch // workers
        )
        rows = rows[:, context.input_pipeline_id]
        dataset = tf.data.Dataset.from_tensor_slices(rows)
        dataset = dataset.map(lambda r: (tf.gather(images, r), tf.gather(labels, r)))
        return dataset.unbatch().batch(context.get_per_replica_batch_size(args.batch)).prefetch(4)

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input(images.shape[1:]),
                keras.layers.Dense(256, activation="relu"),
                keras.layers.Dense(128, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        schedule = keras.optimizers.schedules.CosineDecay(
            args.learning_rate, args.epochs * steps, warmup_target=None
        )
        model.compile(
            optimizer=keras.optimizers.SGD(schedule, momentum=arm.momentum),
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
    keras.backend.clear_session()  # Else all arms' graphs stay in memory.
    return {
        "accuracy": float(np.mean(logits.argmax(-1) == held_out[1])),
        "training_loss": float(history.history["loss"][-1]),
    }


def predict(weights, x):
    """The network in NumPy."""
    for kernel, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = np.maximum(x @ kernel + bias, 0)
    return x @ weights[-2] + weights[-1]


if __name__ == "__main__":
    sys.exit(main())
