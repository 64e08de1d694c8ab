"""Bad records: named, and raised or replaced, without a step being lost."""

import functools
import logging
import threading

import numpy as np
import tensorflow as tf

from tfscale.data import reading
from tfscale.data import rows as rows_lib

POISON = -2
SLOW = 1000  # good records that were mended, after which it is said
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


class Repair:
    """Says what is wrong with the record at a position, and raises or finds another.

    Args:
        rows: `rows.Rows`.
        load: function of a row that returns (image, label, weight), or raises. Not a
            `tf.function`: that would ask for threads of the pool in which this one waits, and
            a few bad records at a time would take them all.
        on_error: "raise" or "skip".
        max_bad_share: share of a worker's records that may be skipped; `limit` is their number.
    """

    def __init__(self, rows, load, on_error, max_bad_share):
        self._rows, self._load, self._on_error = rows, load, on_error
        self._bad, self._failure, self._slow = {}, None, 0
        # A small set may well hold a few bad ones: a share of it would allow none.
        self.limit = max(10, int(max_bad_share * self._num_records()))

    def _num_records(self):
        """The records of a worker, but for those that take turns between the workers."""
        return self._rows.contract.num_records // self._rows.contract.num_workers

    def probe(self, step):
        """Tries the first record of a step; returns whether it, or another in its place, is good.

        An error raised here would be ignored as any other: it is kept for `batch` to raise,
        which does so at a record that is POISON.
        """
        try:
            self._at(int(step) * self._rows.per_step)
        except Exception as error:  # noqa: BLE001
            self._failure = error
            return False
        return True

    def batch(self, first, end, positions, *parts):
        """Fills the gaps between `first` and `end`.

        Args:
            first, end: `int`, the position at which the rows should begin, and the one after
                the last.
            positions: int64 array, those that are there.
            *parts: arrays with one entry for each of `positions`.

        Returns:
            `tuple` of arrays like `parts`, with one entry for each position.
        """
        if POISON in parts[-1]:
            raise self._failure
        there = {int(position): i for i, position in enumerate(positions)}
        whole = [
            [part[there[p]] for part in parts] if p in there else self._at(p, mends=True)
            for p in range(int(first), int(end))
        ]
        return tuple(map(np.stack, zip(*whole, strict=True)))

    def _at(self, position, mends=False):
        rows = self._rows
        step, row = divmod(position, rows.per_step)
        records, epochs = self._records(step)
        record, epoch = int(records[row]), int(epochs[row])
        if record == rows_lib.PADDING:
            return self._try(record, epoch, position)
        if record not in self._bad:
            try:
                found = self._try(record, epoch, position)
                self._slow += mends
                if mends and self._slow == SLOW:
                    self._say_slow()
                return found
            except tf.errors.OpError as error:
                self._name(record, error)
        if rows.contract.order is None:
            # In evaluation another record would be counted twice: this place counts nothing.
            return self._try(rows_lib.PADDING, epoch, position)
        others = list(self._others(record, row))
        for other in others:
            if other not in self._bad:
                try:
                    return self._try(other, epoch, position)
                except tf.errors.OpError as error:
                    self._name(other, error)
        raise ValueError(
            f"on_error='skip': {len(others)} records in a row are bad, the last: "
            f"{next(reversed(self._bad.values()))}"
        )

    @functools.lru_cache(maxsize=2)  # noqa: B019 - of the step in which bad records are
    def _records(self, step):
        return tuple(part.numpy() for part in self._rows.records(step))

    def _say_slow(self):
        logger.warning(
            "%d good pictures were decoded one by one, which is slow: they are no JPEGs of one or "
            "three colours, or beside bad ones. Convert them (tfscale.data.prepare), or switch the "
            "C ops off (TFSCALE_NATIVE=0)", SLOW,
        )  # fmt: skip

    def _try(self, record, epoch, position):
        with tf.device("CPU:0"):
            place = (tf.constant([value], tf.int64) for value in (record, epoch, position))
            image, label, weight = self._load(self._rows.fill(*place)[0])
        return image.numpy(), label.numpy(), weight.numpy(), np.int64(record)

    def _others(self, record, row):
        """Yields the next records of the stream that drew `record`, which is at `row`."""
        contract = self._rows.contract
        order = contract.order
        stream = (contract.rows(self._rows.worker)[0] + row) // order.rows
        for step in range(1, min(PATIENCE, order.per_stream) + 1):
            yield (record // order.streams + step) % order.per_stream * order.streams + stream

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
