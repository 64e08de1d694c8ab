"""From places in a batch to pictures: the part of a pipeline that must never lose its step.

A stream of rows (position, record, ...) is mapped to pictures in parallel. What fails is dropped
by `ignore_errors`, which leaves a gap in the positions; the next stage finds the gap and has it
repaired: named and raised, or named and replaced. So a good record pays nothing for the care
taken of bad ones. A marker closes each step, so that a gap is found at the latest there, and a
run of bad records cannot turn into an endless silent search.
"""

import dataclasses
import logging
import threading

import numpy as np
import tensorflow as tf

from tfscale.data import order as order_lib
from tfscale.data import reading

POSITION, RECORD, KEY, FILE, OFFSET = range(5)
PADDING, MARKER = -1, -2
PATIENCE = 100  # records tried in place of a bad one

logger = logging.getLogger("tfscale")
_skipped = {}
_skipped_lock = threading.Lock()


def skipped_records():
    """Returns what this process has skipped so far: a `dict` of (split, record) to the reason.

    Example:
        >>> isinstance(skipped_records(), dict)
        True
    """
    with _skipped_lock:
        return dict(_skipped)


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of one worker: a pure function of the step.

    Args:
        contract: `records.DataContract`.
        worker: `int`.
        files, offsets: int64 arrays: where to read each record.
    """

    contract: object
    worker: int
    files: np.ndarray
    offsets: np.ndarray

    @property
    def per_step(self):
        return self.contract.global_batch_size // self.contract.num_workers

    def records(self, step):
        """Returns `(records, epochs)` of this worker's rows; PADDING beyond the last record."""
        contract = self.contract
        if contract.order is not None:
            return contract.order.batch(step, *contract.streams(self.worker))
        first = step * contract.global_batch_size + self.worker * self.per_step
        records = np.arange(first, first + self.per_step, dtype=np.int64)
        records[records >= contract.num_records] = PADDING
        return records, np.zeros_like(records)

    def table(self, records, epochs, position):
        """Returns an int64 array [rows, 5] with the columns POSITION ... OFFSET."""
        seed = self.contract.order.seed if self.contract.order is not None else 0
        table = np.empty([len(records), 5], np.int64)
        table[:, POSITION] = position + np.arange(len(records))
        table[:, RECORD] = records
        table[:, KEY] = order_lib.augmentation_keys(seed, epochs, records)
        table[:, FILE] = self.files[records]
        table[:, OFFSET] = self.offsets[records]
        return table

    def __call__(self, step):
        """Returns the table of a step, with its closing marker."""
        position = int(step) * self.per_step
        marker = np.array([[position + self.per_step, MARKER, 0, 0, 0]], np.int64)
        try:
            return np.concatenate([self.table(*self.records(int(step)), position), marker])
        except Exception:  # noqa: BLE001 - raised again, and not ignored, when the gap is repaired
            return marker


class Repair:
    """Says what is wrong with the record at a position, and raises or finds another.

    Args:
        rows: `Rows`.
        load: function of a row that returns (image, label, weight), or raises.
        on_error: "raise" or "skip".
        max_bad_share: share of a worker's records that may be skipped.
        image_size: (height, width).
    """

    def __init__(self, rows, load, on_error, max_bad_share, image_size):
        self._rows, self._on_error, self._image_size = rows, on_error, image_size
        self._load = tf.function(
            load, input_signature=[tf.TensorSpec([5], tf.int64)], autograph=False
        )
        self._bad = {}
        # A small set may well hold a few bad ones: a share of it would allow none.
        self._limit = max(10, int(max_bad_share * rows.contract.num_records))

    def __call__(self, first, last):
        """Returns (images, labels, weights, records) for positions `first` to `last`."""
        return tuple(
            map(np.stack, zip(*(self._at(int(p)) for p in range(first, last)), strict=True))
        )

    def _at(self, position):
        rows = self._rows
        step, row = divmod(position, rows.per_step)
        records, epochs = rows.records(step)
        record, epoch = int(records[row]), int(epochs[row])
        try:
            return self._try(record, epoch, position)
        except tf.errors.OpError as error:
            self._name(record, error)
        if rows.contract.order is None:
            # In evaluation another record would be counted twice: this place counts nothing.
            return (
                np.zeros([*self._image_size, 3], np.uint8),
                np.int32(0),
                np.float32(0),
                np.int64(PADDING),
            )
        for other in self._others(record, row):
            try:
                return self._try(other, epoch, position)
            except tf.errors.OpError as error:
                self._name(other, error)
        raise ValueError(
            f"on_error='skip': {PATIENCE} records in a row are bad, the last: "
            f"{next(reversed(self._bad.values()))}"
        )

    def _try(self, record, epoch, position):
        table = self._rows.table(np.array([record]), np.array([epoch]), position)
        image, label, weight = self._load(tf.constant(table[0]))
        return image.numpy(), label.numpy(), weight.numpy(), np.int64(record)

    def _others(self, record, row):
        """Yields the next records of the stream that drew `record`, which is at `row`."""
        order = self._rows.contract.order
        stream = order.shard_of_row(row) + self._rows.contract.streams(self._rows.worker)[0]
        for step in range(1, min(PATIENCE, order.per_shard) + 1):
            yield (record // order.shards + step) % order.per_shard * order.shards + stream

    def _name(self, record, error):
        contract = self._rows.contract
        if record in self._bad:
            return
        reason = reading.diagnose(
            contract.index, record, contract.num_classes, contract.label_offset, error
        )
        if self._on_error == "raise":
            raise ValueError(
                f"{reason}. Mend or remove it (python -m tfscale.data.check lists all), "
                "or pass on_error='skip'."
            )
        self._bad[record] = reason
        with _skipped_lock:
            _skipped[contract.split, record] = reason
        logger.warning("skipped [%d so far]: %s", len(self._bad), reason)
        if len(self._bad) > self._limit:
            raise ValueError(
                f"on_error='skip': {len(self._bad)} of {contract.num_records} records are bad, "
                f"more than the {self._limit} allowed (max_bad_share); the last: {reason}"
            )


def examples(steps, rows, load, repair, image_size, num_parallel_calls):
    """Maps steps to single examples, none missing.

    Args:
        steps: `tf.data.Dataset` of int64 steps.
        rows: `Rows`.
        load: function of a row, see `Repair`.
        repair: `Repair`.
        image_size: (height, width).
        num_parallel_calls: `int` or `tf.data.AUTOTUNE`.

    Returns:
        `tf.data.Dataset` of (image, label, weight, record), the rows of each step in order.
    """

    def table(step):
        found = tf.numpy_function(rows, [step], tf.int64)
        return tf.ensure_shape(found, [None, 5])

    @tf.autograph.experimental.do_not_convert
    def with_row(row):
        return row, *load(row)

    shapes = ([*image_size, 3], [], [], [])
    dtypes = (tf.uint8, tf.int32, tf.float32, tf.int64)

    def none():
        return tuple(map(tf.zeros, ([0, *shape] for shape in shapes), dtypes))

    def shaped(parts):
        return tuple(map(tf.ensure_shape, parts, ([None, *shape] for shape in shapes)))

    @tf.autograph.experimental.do_not_convert
    def close_gap(expected, element):
        row, *parts = element
        position, marks = row[POSITION], row[RECORD] == MARKER
        gap = position > expected
        here = tuple(part[None] for part in (*parts, row[RECORD]))

        def mended():
            return shaped(tf.numpy_function(repair, [expected, position], dtypes))

        def unusual():
            keep = tf.where(marks, 0, 1)  # a marker only ends its step
            before = tf.cond(gap, mended, none)
            return tuple(tf.concat([a, b[:keep]], 0) for a, b in zip(before, here, strict=True))

        whole = tf.cond(tf.logical_or(marks, gap), unusual, lambda: here)
        return position + tf.where(marks, tf.constant(0, tf.int64), 1), shaped(whole)

    first = tf.cast(next(iter(steps.take(1)), 0), tf.int64) * rows.per_step
    return (
        steps.map(table)
        .prefetch(2)
        .unbatch()
        .map(with_row, num_parallel_calls=num_parallel_calls, deterministic=True)
        .ignore_errors()
        .scan(first, close_gap)
        .unbatch()
    )
