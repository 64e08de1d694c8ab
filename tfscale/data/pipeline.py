"""From places in a batch to pictures: the part of a pipeline that must never lose its step.

A stream of rows (position, record, ...) is mapped to pictures in parallel. What fails is dropped
by `ignore_errors`, which leaves a gap in the positions; the batch in which the gap shows has it
mended: named and raised, or named and replaced. So a good record pays nothing for the care
taken of bad ones. Now and then a record is tried before it is sent on its way, so that where all
are bad there is an error and no endless silent search for a good one.
"""

import dataclasses
import logging
import os
import threading

import numpy as np
import tensorflow as tf

from tfscale.data import order as order_lib
from tfscale.data import reading

POSITION, RECORD, KEY, FILE, OFFSET = COLUMNS = range(5)
PADDING, POISON = -1, -2
_DTYPES = (tf.uint8, tf.int32, tf.float32, tf.int64)
TRY_EVERY = 64  # steps
PATIENCE = 100  # records tried in place of a bad one

logger = logging.getLogger("tfscale")
_skipped = {}
_skipped_lock = threading.Lock()


def usable_cores():
    """Returns the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def options():
    """Returns the `tf.data.Options` that all datasets of the package have."""
    chosen = tf.data.Options()
    chosen.deterministic = True
    # The rows of this worker are chosen already: sharding again would lose data.
    chosen.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # To delete an iterator that is tuned can take a minute, in which the whole process stands
    # still: its tuning thread sometimes sleeps through being cancelled (seen in TensorFlow 2.20,
    # about 1 in 20). Fixed numbers were as fast.
    chosen.autotune.enabled = False
    return chosen


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
        """Returns `(records, epochs)` of this worker's rows; PADDING where a batch is not full."""
        contract = self.contract
        if contract.order is not None:
            return contract.order.batch(step, *contract.streams(self.worker))
        local = contract.num_replicas // contract.num_workers
        first = step * contract.num_replicas + self.worker * local
        bounds = contract.evaluation_bounds()[first : first + local + 1, np.newaxis]
        records = bounds[:-1] + np.arange(self.per_step // local)
        records = np.where(records < bounds[1:], records, PADDING).reshape(-1)
        return records, np.zeros_like(records)

    def table(self, records, epochs, position):
        """Returns an int64 array [rows, 5] with the columns POSITION ... OFFSET."""
        seed = self.contract.order.seed if self.contract.order is not None else 0
        table = np.empty([len(records), len(COLUMNS)], np.int64)
        table[:, POSITION] = position + np.arange(len(records))
        table[:, RECORD] = records
        table[:, KEY] = order_lib.augmentation_keys(seed, epochs, records)
        table[:, FILE] = self.files[records]
        table[:, OFFSET] = self.offsets[records]
        return table


class Repair:
    """Says what is wrong with the record at a position, and raises or finds another.

    Args:
        rows: `Rows`.
        load: function of a row that returns (image, label, weight), or raises. Not a
            `tf.function`: that would ask for threads of the pool in which this one waits, and
            a few bad records at a time would take them all.
        on_error: "raise" or "skip".
        max_bad_share: share of a worker's records that may be skipped; `limit` is their number.
        image_size: (height, width).
        first_step: `int`.
    """

    def __init__(self, rows, load, on_error, max_bad_share, image_size, first_step):
        self._rows, self._load, self._on_error, self._image_size = rows, load, on_error, image_size
        self._first_step, self._bad, self._failure = first_step, {}, None
        # A small set may well hold a few bad ones: a share of it would allow none.
        self.limit = max(10, int(max_bad_share * self._num_records()))

    def _num_records(self):
        """The records of a worker, but for those that take turns between the workers."""
        return self._rows.contract.num_records // self._rows.contract.num_workers

    def table(self, step):
        """Returns the table of a step; of every 64th after its first record was tried.

        An error raised here would be ignored as any other: it is kept for `batch` to raise, and
        the records are POISON.
        """
        step, rows = int(step), self._rows
        try:
            if step % TRY_EVERY == 0 or step == self._first_step:
                self._at(step * rows.per_step)
            return rows.table(*rows.records(step), step * rows.per_step)
        except Exception as error:  # noqa: BLE001
            self._failure = error
            return np.full([rows.per_step, len(COLUMNS)], POISON, np.int64)

    def _nothing(self):
        return np.zeros([*self._image_size, 3], np.uint8), np.int32(0), np.float32(0)

    def batch(self, first, positions, *parts):
        """Fills the gaps between `first` and the last of `positions`.

        Args:
            first: `int`, the position at which the batch should begin.
            positions: int64 array, those that are there.
            *parts: arrays with one entry for each of `positions`.

        Returns:
            `tuple` of arrays like `parts`, with one entry for each position.
        """
        if POISON in parts[-1]:
            raise self._failure
        there = {int(position): i for i, position in enumerate(positions)}
        whole = [
            [part[there[p]] for part in parts] if p in there else self._at(p)
            for p in range(int(first), int(positions[-1]) + 1)
        ]
        return tuple(map(np.stack, zip(*whole, strict=True)))

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
            return (*self._nothing(), np.int64(PADDING))
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
        with tf.device("CPU:0"):
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
        if len(self._bad) > self.limit:
            raise ValueError(
                f"on_error='skip': {len(self._bad)} of the {self._num_records()} records of this "
                f"worker are bad, more than the {self.limit} allowed (max_bad_share); "
                f"the last: {reason}"
            )


def batches(first_step, num_steps, rows, load, repair, batch_size, num_parallel_calls):
    """Returns the batches of a run of steps, of which no row is missing.

    Args:
        first_step: `int`.
        num_steps: `int`, or None for no end.
        rows: `Rows`.
        load: see `Repair`.
        repair: `Repair`.
        batch_size: `int`, divides the rows of a step.
        num_parallel_calls: `int`.

    Returns:
        `tf.data.Dataset` of (image, label, weight, record), the rows of each step in order.
    """

    def table(step):
        found = tf.numpy_function(repair.table, [step], tf.int64)
        return tf.ensure_shape(found, [rows.per_step, len(COLUMNS)])

    @tf.autograph.experimental.do_not_convert
    def example(row):
        return row[POSITION], *load(row), row[RECORD]

    @tf.autograph.experimental.do_not_convert
    def close_gaps(first, batch):
        positions, *parts = batch

        def mended():
            found = tf.numpy_function(repair.batch, [first, *batch], _DTYPES)
            return [tf.ensure_shape(a, [None, *b.shape[1:]])
                    for a, b in zip(found, parts, strict=True)]  # fmt: skip

        full = tf.equal(positions[-1] - first + 1, tf.size(positions, tf.int64))
        whole = tf.logical_and(full, tf.reduce_all(parts[-1] != POISON))
        return positions[-1] + 1, tuple(tf.cond(whole, lambda: parts, mended))

    steps = tf.data.Dataset.counter(first_step)
    if num_steps is not None:
        steps = steps.take(num_steps)
    sent = steps.map(table).prefetch(2).unbatch()
    if num_steps is not None:
        # One row more, for a gap to show where the last record of all is bad.
        end = [(first_step + num_steps) * rows.per_step, PADDING, 0, 0, 0]
        sent = sent.concatenate(tf.data.Dataset.from_tensors(tf.constant(end, tf.int64)))
    whole = (
        sent.map(example, num_parallel_calls=num_parallel_calls, deterministic=True)
        .ignore_errors()
        .batch(batch_size)
        .scan(tf.constant(first_step * rows.per_step, tf.int64), close_gaps)
        .rebatch(batch_size, drop_remainder=True)
    )
    return whole if num_steps is None else whole.take(num_steps * rows.per_step // batch_size)
