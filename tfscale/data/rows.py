"""The rows of a worker, step by step: which record, where it lies, which part of it is looked at.

All of it is a pure function of the step, in graph ops: no thread waits for Python, and another
process can run it.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfscale.data import order as order_lib

COLUMNS = range(13)
(
    POSITION, RECORD, KEY, FILE, OFFSET, LENGTH, SOURCE_HEIGHT, SOURCE_WIDTH, TOP, LEFT, HEIGHT,
    WIDTH, FLIP,
) = COLUMNS  # fmt: skip
PADDING = -1


def shape(row):
    """Returns the height and width of a row's picture, int64 [2]."""
    return tf.stack([row[SOURCE_HEIGHT], row[SOURCE_WIDTH]])


def window(row):
    """Returns the window of a row's picture that is looked at, int32 [4]."""
    return tf.cast(row[TOP : WIDTH + 1], tf.int32)


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of one worker.

    Args:
        contract: `contract.DataContract`.
        worker: `int`.
        window_of: function of (shapes int64 [n, 2], keys int64 [n]) to windows int64 [n, 4].
        flip_of: function of keys to bool [n].
    """

    contract: object
    worker: int
    window_of: Callable
    flip_of: Callable

    def __post_init__(self):
        index = self.contract.index
        columns = np.stack([*index.locations(), *index.sizes()], 1)
        with tf.device("CPU:0"):
            object.__setattr__(self, "_places", tf.constant(columns, tf.int64))
            bounds = None if self.contract.order else tf.constant(self.contract.evaluation_bounds())
        object.__setattr__(self, "_bounds", bounds)

    @property
    def per_step(self):
        return self.contract.global_batch_size // self.contract.num_workers

    @property
    def local_replicas(self):
        return self.contract.num_replicas // self.contract.num_workers

    def records(self, step):
        """Returns `(records, epochs)` of this worker's rows; PADDING where a batch is not full."""
        contract = self.contract
        if contract.order is not None:
            return contract.order.batch(step, *contract.rows(self.worker))
        local = self.local_replicas
        first = tf.cast(step, tf.int64) * contract.num_replicas + self.worker * local
        bounds = self._bounds[first : first + local + 1, tf.newaxis]
        records = bounds[:-1] + tf.range(self.per_step // local, dtype=tf.int64)
        records = tf.reshape(tf.where(records < bounds[1:], records, PADDING), [-1])
        return records, tf.zeros_like(records)

    def table(self, step):
        """Returns the rows of a step, int64 [rows, columns]."""
        records, epochs = self.records(step)
        first = tf.cast(step, tf.int64) * self.per_step
        return self.fill(records, epochs, first + tf.range(self.per_step, dtype=tf.int64))

    def fill(self, records, epochs, positions):
        """Returns the rows of given records, int64 [n, columns]."""
        seed = self.contract.order.seed if self.contract.order is not None else 0
        keys = order_lib.augmentation_keys(seed, epochs, records)
        places = tf.gather(self._places, tf.maximum(records, 0))
        head = tf.stack([positions, records, keys], 1)
        flips = tf.cast(self.flip_of(keys), tf.int64)[:, tf.newaxis]
        windows = tf.cast(self.window_of(places[:, -2:], keys), tf.int64)
        table = tf.concat([head, places, windows, flips], 1)
        return tf.ensure_shape(table, [records.shape[0], len(COLUMNS)])

    def end(self, num_steps):
        """Returns the row after the last of `num_steps` steps: a place for a gap to show at."""
        row = np.zeros([1, len(COLUMNS)], np.int64)
        row[0, [POSITION, RECORD]] = num_steps * self.per_step, PADDING
        return tf.constant(row)
