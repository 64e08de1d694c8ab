"""The rows of a worker, step by step: which record, where it lies, which part of it is looked at.

All of it is a pure function of the step, in graph ops: no thread waits for Python, and another
process can run it.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfscale.data import order as order_lib
from tfscale.data import rectangles

COLUMNS = range(15)
(
    POSITION, RECORD, KEY, FILE, OFFSET, LENGTH, SOURCE_HEIGHT, SOURCE_WIDTH, TOP, LEFT, HEIGHT,
    WIDTH, OUT_HEIGHT, OUT_WIDTH, FLIP,
) = COLUMNS  # fmt: skip
PADDING = -1


def source_size(rows):
    """Returns the pictures' heights and widths, int64 [..., 2], of rows [..., columns]."""
    return rows[..., SOURCE_HEIGHT : SOURCE_WIDTH + 1]


def window(rows):
    """Returns the window that is looked at, int32 [..., 4], of a row or of rows [..., columns]."""
    return tf.cast(rows[..., TOP : WIDTH + 1], tf.int32)


def out_size(row):
    """Returns the height and width of what becomes of a row's picture, int32 [2]."""
    return tf.cast(row[OUT_HEIGHT : OUT_WIDTH + 1], tf.int32)


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of one worker.

    Args:
        contract: `contract.DataContract`.
        worker: `int`.
        image_size: (height, width) of all pictures, pixels.
        window_of: function of (shapes int64 [n, 2], keys int64 [n]) to windows int64 [n, 4].
        flip_of: function of keys to bool [n].
    """

    contract: object
    worker: int
    image_size: tuple
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
        """Returns the rows of a step, int64 [rows, columns]; of a vector of steps of training,
        int64 [steps, rows, columns].
        """
        records, epochs = self.records(step)
        first = tf.cast(step, tf.int64)[..., tf.newaxis] * self.per_step
        positions = first + tf.range(self.per_step, dtype=tf.int64)
        rows = self.fill(*(tf.reshape(part, [-1]) for part in (records, epochs, positions)))
        return tf.reshape(rows, [*[-1] * (first.shape.rank - 1), self.per_step, len(COLUMNS)])

    def fill(self, records, epochs, positions):
        """Returns the rows of given records, int64 [n, columns]."""
        seed = self.contract.order.seed if self.contract.order is not None else 0
        keys = order_lib.augmentation_keys(seed, epochs, records)
        places = tf.gather(self._places, tf.maximum(records, 0))
        windows, sizes = self._windows_and_sizes(records, positions, places[:, -2:], keys)
        head = tf.stack([positions, records, keys], 1)
        flips = tf.cast(self.flip_of(keys), tf.int64)[:, tf.newaxis]
        parts = [head, places, tf.cast(windows, tf.int64), tf.cast(sizes, tf.int64), flips]
        return tf.ensure_shape(tf.concat(parts, 1), [records.shape[0], len(COLUMNS)])

    def _windows_and_sizes(self, records, positions, shapes, keys):
        sizes = tf.broadcast_to(tf.constant(self.image_size, tf.int64), tf.shape(shapes))
        return self.window_of(shapes, keys), sizes


@dataclasses.dataclass(frozen=True)
class RectangularRows(Rows):
    """The rows of one worker in an evaluation whose batches differ in their sizes.

    Args:
        contract, worker, image_size, window_of, flip_of: see `Rows`; the first two decide.
        plan: `rectangles.Rectangles`.
    """

    plan: rectangles.Rectangles

    def __post_init__(self):
        super().__post_init__()
        windows = np.empty_like(self.plan.windows)
        windows[self.plan.order] = self.plan.windows
        with tf.device("CPU:0"):
            object.__setattr__(self, "_order", tf.constant(self.plan.order))
            object.__setattr__(self, "_windows", tf.constant(windows))
            # All replicas of a step have the same size.
            sizes = tf.constant(self.plan.sizes[:: self.contract.num_replicas])
            object.__setattr__(self, "_sizes", sizes)

    def records(self, step):
        places, epochs = super().records(step)
        return tf.where(places < 0, places, tf.gather(self._order, tf.maximum(places, 0))), epochs

    def _windows_and_sizes(self, records, positions, shapes, keys):
        windows = tf.gather(self._windows, tf.maximum(records, 0))
        return windows, tf.gather(self._sizes, positions // self.per_step)
