"""One worker's part of the cost: how long a step takes with each size of groups.

Started by `run` as several processes. The real layer, in a network that is trained with each size
of groups in turns, so that what slows the machine down slows all of them.
"""

import argparse
import functools
import json
import logging
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from experiments import fashion
from experiments.batch_norm.training import WIDTHS, load


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", required=True, help="sizes with commas")
    parser.add_argument("--per_replica", type=int, required=True, help="examples of a replica")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="of each size in each round")
    parser.add_argument("--output", required=True, help="file for the results, JSON")
    fashion.add_flags(parser)
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    from tfscale import distribute

    strategy = distribute.create_strategy()
    (images, labels), _ = load(args.dataset, args.data_dir, args.examples or 4096)
    groups = [int(group) for group in args.groups.split(",")]
    models = {group: build(strategy, images.shape[1:], group) for group in groups}
    rows = []
    for turn in range(args.rounds + 1):
        for group, model in models.items():
            dataset = strategy.distribute_datasets_from_function(
                functools.partial(_examples, images, labels, args.per_replica)
            )
            watch = _Stopwatch()
            model.fit(dataset, steps_per_epoch=args.steps, verbose=0, callbacks=[watch.callback()])
            if turn:  # The first turn traces.
                milliseconds = 1000 * statistics.median(watch.seconds)
                rows.append({"group": group, "round": turn - 1, "milliseconds": milliseconds})
    if strategy.extended.should_checkpoint:
        Path(args.output).write_text(json.dumps(rows))
    distribute.gather_values(strategy, "finished", True)
    return 0


def build(strategy, input_shape, group):
    """Returns the compiled network whose norm layers have groups of that many replicas."""
    from tfscale import keras
    from tfscale.layers import GroupedSyncBatchNormalization
    from tfscale.models.resnet import resnet_small

    norm = functools.partial(
        GroupedSyncBatchNormalization, group_size=group, momentum=0.9, epsilon=1e-5
    )
    with strategy.scope():
        model = resnet_small(
            input_shape, norm=norm, widths=WIDTHS, mean=[fashion.MEAN], std=[fashion.STD]
        )
        model.compile(
            keras.optimizers.SGD(0.01, momentum=0.9), keras.losses.SparseCategoricalCrossentropy()
        )
    return model


def _examples(images, labels, per_replica, context):
    import tensorflow as tf

    order = np.random.default_rng(context.input_pipeline_id).permutation(len(images))
    dataset = tf.data.Dataset.from_tensor_slices((images[order], labels[order]))
    return dataset.repeat().batch(per_replica, drop_remainder=True).prefetch(8)


class _Stopwatch:
    """The seconds of each step but the first few of a `fit`."""

    def __init__(self, skip=3):
        self.seconds, self._skip, self._last = [], skip, None

    def callback(self):
        from tfscale import keras

        return keras.callbacks.LambdaCallback(on_batch_end=self._note)

    def _note(self, batch, logs):
        now = time.perf_counter()
        if batch >= self._skip:
            self.seconds.append(now - self._last)
        self._last = now


if __name__ == "__main__":
    sys.exit(main())
