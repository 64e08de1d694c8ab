"""The two places where records are kept, as functions of tensors: memory, and a local disk."""

import logging
import os
import threading
import weakref

import numpy as np
import tensorflow as tf

from tfscale.data import cache_budget, cache_log, reading

# Bytes of a hash table's node, key, string and allocation, beside the payload.
MEMORY_OVERHEAD = 128
_OPEN_FILES = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"

logger = logging.getLogger("tfscale")


def _table(value_dtype, default):
    with tf.device("CPU:0"):
        # Anonymous: it goes with the last dataset that uses it.
        return tf.lookup.experimental.MutableHashTable(
            tf.int64, value_dtype, default, experimental_is_anonymous=True
        )


class MemoryTier:
    """Keeps the payloads of chosen records in a hash table.

    Args:
        num_records: `int`, of the whole split.
        records: int64 array, those to keep.
        sizes: int64 array, the bytes reckoned for each; a payload of more is not kept.
    """

    _all = weakref.WeakSet()

    def __init__(self, num_records, records, sizes):
        room = np.zeros(num_records, np.int64)
        room[records] = sizes
        with tf.device("CPU:0"):
            self._room = tf.constant(room)
        self._payloads = _table(tf.string, "")
        self._count, self._bytes = len(records), int(np.sum(sizes) + MEMORY_OVERHEAD * len(records))
        self._all.add(self)

    @classmethod
    def promised(cls):
        """Returns the bytes that all tiers of this process are still going to take."""
        return sum(
            tier._bytes * (tier._count - int(tier._payloads.size())) // max(tier._count, 1)
            for tier in cls._all
        )

    def keep(self, record, make):
        """Returns the payload of a record, from here or else from `make()`."""
        kept = self._payloads.lookup(record)

        def new():
            payload = make()
            fits = tf.strings.length(payload) <= tf.cast(self._room[record], tf.int32)
            done = tf.cond(fits, lambda: tf.group(self._payloads.insert(record, payload)), tf.no_op)
            with tf.control_dependencies([done]):
                return tf.identity(payload)

        return tf.cond(tf.strings.length(kept) > 0, lambda: kept, new)


class DiskTier:
    """Keeps the payloads of admitted records in the logs of a folder.

    One object serves all datasets of a process that use the folder (`open_tier`).

    Args:
        folder: `pathlib.Path`.
        num_records: `int`, of the whole split.
    """

    _WANTED, _READ_THROUGH = -1, -2  # instead of a place
    _LOG_SHIFT = 44  # a place is a log's number and a byte below 16 TiB

    def __init__(self, folder, num_records):
        self.folder = folder
        self._lock = threading.Lock()
        self._writer, self._stopped, self._warned = None, False, False
        self._written = self._promised = self._limit = 0
        self._places = np.full(num_records, self._READ_THROUGH, np.int64)
        logs = []
        try:
            logs = cache_log.find(folder)
            self._writer = cache_log.Writer(folder)
        except (OSError, tf.errors.OpError) as error:
            self._stop(error)
        for number, log in enumerate(logs, 1):
            known = (log.records >= 0) & (log.records < num_records)
            self._places[log.records[known]] = log.offsets[known] + (number << self._LOG_SHIFT)
        self.bytes = sum(log.bytes for log in logs if not log.held)
        self._table = _table(tf.int64, self._READ_THROUGH)
        here = np.flatnonzero(self._places >= 0)
        self._table.insert(tf.constant(here), tf.constant(self._places[here]))
        # By its descriptor a log can be read even when it is removed from under us. A path that
        # is gone would be tried for ever below, as an error that might pass.
        self._files = [self._writer and self._writer.file, *(log.file for log in logs)]
        paths = [f"{_OPEN_FILES}/{file.fileno()}" if file else "" for file in self._files]
        with tf.device("CPU:0"):
            self._paths = tf.constant(paths)

    def has(self, records):
        """Returns which of `records` are here, a bool array."""
        return self._places[records] >= 0

    def admit(self, records, sizes, budget):
        """Chooses which of `records`, in their order, are to be written when they are read.

        Args:
            records: int64 array.
            sizes: int64 array, bytes reckoned for each.
            budget: `int`, bytes on disk that this process may take, what the logs that nobody
                writes any more take included.

        Returns:
            bool array: which are here or will be.
        """
        with self._lock:
            self._limit = max(self._limit, budget - self.bytes)
            new = self._places[records] == self._READ_THROUGH
            sizes = (np.asarray(sizes) + cache_log.OVERHEAD)[new]
            fits = cache_budget.fitting(sizes, self._limit - self._promised)
            if self._stopped:
                fits[:] = False
            wanted = records[new][fits]
            self._promised += int(sizes[fits].sum())
            self._places[wanted] = self._WANTED
            self._table.insert(tf.constant(wanted), tf.constant(self._places[wanted]))
            return self._places[records] != self._READ_THROUGH

    def keep(self, record, make):
        """Returns the payload of a record, from here or else from `make()`."""
        place = self._table.lookup(record)
        kept = tf.cond(place >= 0, lambda: self._read(place), lambda: tf.constant(""))

        def new():
            payload = make()

            def write():
                written = tf.numpy_function(
                    # As a vector: a scalar would lose the zero bytes at its end.
                    self._append, [record, place, tf.reshape(payload, [1])], tf.int64
                )  # fmt: skip
                return tf.group(self._table.insert(record, tf.ensure_shape(written, [])))

            done = tf.cond(place == self._READ_THROUGH, tf.no_op, write)
            with tf.control_dependencies([done]):
                return tf.identity(payload)

        return tf.cond(tf.strings.length(kept) > 0, lambda: kept, new)

    def _read(self, place):
        """Returns the payload at a place; "" if it is damaged."""
        log = tf.bitwise.right_shift(place, tf.constant(self._LOG_SHIFT, tf.int64))
        offset = tf.bitwise.bitwise_and(place, tf.constant((1 << self._LOG_SHIFT) - 1, tf.int64))
        frames = reading.records_from(self._paths[log], offset)
        damaged = tf.data.Dataset.from_tensors("")
        return frames.ignore_errors().concatenate(damaged).take(1).get_single_element()

    def _append(self, record, place, payload):
        """Writes a payload; returns its place, or that the record is to be read through."""
        record, place, payload = int(record), int(place), payload[0]
        with self._lock:
            if self._places[record] != place:
                return self._places[record]  # another thread was faster
            if place >= 0:
                self._warn_of_damage(record, place)
            self._places[record] = self._READ_THROUGH
            size = len(payload) + cache_log.OVERHEAD
            if self._stopped or self._written + size > self._limit:
                return self._places[record]
            try:
                self._places[record] = self._writer.append(record, payload)
                self._written += size
            except (OSError, tf.errors.OpError) as error:
                self._stop(error)
            return self._places[record]

    def _warn_of_damage(self, record, place):
        if not self._warned:
            log = self._files[place >> self._LOG_SHIFT].name
            logger.warning(
                "cache: record %d at byte %d of %s is damaged; it, and others that are, are read "
                "from their source", record, place & ((1 << self._LOG_SHIFT) - 1), log,
            )  # fmt: skip
        self._warned = True

    def _stop(self, error):
        reason = getattr(error, "message", None) or str(error)
        self._stopped = True
        logger.warning(
            "cache: nothing more is written to %s: %s. What is there is read, the rest comes from "
            "its source. Free space, or pass another Cache(folder=...) or a smaller disk=",
            self.folder, reason,
        )  # fmt: skip


_open_tiers, _open_lock = {}, threading.Lock()


def open_tier(folder, num_records):
    """Returns the `DiskTier` of a folder, the same one for all datasets of this process.

    It stays open: a thread of a dataset that is being deleted may still read in it.
    """
    with _open_lock:
        if folder not in _open_tiers:
            _open_tiers[folder] = DiskTier(folder, num_records)
        return _open_tiers[folder]
