"""Append-only files of records on a local disk, which survive whoever writes them.

A log is a TFRecord file, checksums included, that one process writes once, and beside it a file
of places: 32 bytes for each complete record. The writer holds the kernel's lock on the log, which
ends with the process: there is no lock to be left behind.
"""

import contextlib
import dataclasses
import fcntl
import logging
import os
import pathlib
import time

import numpy as np
import tensorflow as tf

from tfscale.data.index import FRAME

LOGS = "log-*.tfrecord"
_ENTRY = np.dtype([(name, "<i8") for name in ("record", "offset", "length", "check")])
OVERHEAD = FRAME + _ENTRY.itemsize  # bytes on disk for each record beside its own
MANY = 256  # each log that is read is an open file

logger = logging.getLogger("tfscale")


def _check(entries):
    """Returns a hash of each entry: a changed byte spoils one entry and no other."""
    state = np.full(len(entries), 0x9E3779B97F4A7C15, np.uint64)
    for name in ("record", "offset", "length"):
        state = (state ^ entries[name].astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
        state ^= state >> np.uint64(29)
    return state.astype(np.int64)


def _places_of(path):
    return path.with_suffix(".places")


def _try_to_lock(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(path):
    """Returns whether a process, this one included, is writing the log at `path`."""
    try:
        with open(path, "rb") as file:
            return not _try_to_lock(file)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True  # somebody else's, who may


@dataclasses.dataclass(frozen=True, eq=False)
class Log:
    """A log to be read.

    Args:
        file: open file; to be kept, so that the log can be read even when it was removed.
        records, offsets: int64 arrays: the complete records, and where their frames begin.
        bytes: `int`, size on disk.
        held: `bool`, whether another process writes to it.
    """

    file: object
    records: np.ndarray
    offsets: np.ndarray
    bytes: int
    held: bool


def find(folder):
    """Returns the logs in a folder, a `list` of `Log`, the oldest first.

    Of a log that nobody writes any more, what a killed process left unfinished is cut off; one
    without any complete record is removed, and so are the smallest ones beyond `MANY`.
    """
    found = []
    for path in sorted(pathlib.Path(folder).glob(LOGS)):
        with contextlib.suppress(FileNotFoundError):  # somebody else removed it just now
            log = _open(path)
            if log is not None:
                found.append(log)
        if len(found) > MANY:
            smallest = min(found, key=lambda log: (log.held, len(log.records)))
            found.remove(smallest)
            if not smallest.held:
                logger.info("cache: more than %d logs; removed %s", MANY, smallest.file.name)
                _remove(pathlib.Path(smallest.file.name))
    return found


def _remove(path):
    path.unlink(missing_ok=True)
    _places_of(path).unlink(missing_ok=True)


def _open(path):
    file = open(path, "r+b", buffering=0)  # noqa: SIM115 - the caller keeps it
    mine = _try_to_lock(file)
    try:
        size = os.fstat(file.fileno()).st_size
        try:
            data = _places_of(path).read_bytes()
        except FileNotFoundError:
            data = b""
        entries = np.frombuffer(data[: len(data) // _ENTRY.itemsize * _ENTRY.itemsize], _ENTRY)
        entries = entries[entries["check"] == _check(entries)]
        entries = entries[entries["offset"] + entries["length"] + FRAME <= size]
        if mine:
            if not len(entries):
                _remove(path)
                file.close()
                return None
            end = int(np.max(entries["offset"] + entries["length"])) + FRAME
            if size > end:
                os.truncate(path, end)
                logger.info("cache: cut %d unfinished bytes off %s", size - end, path)
                size = end
        return Log(
            file, entries["record"].copy(), entries["offset"].copy(), size + len(data), not mine
        )
    finally:
        if mine and not file.closed:
            fcntl.flock(file, fcntl.LOCK_UN)


class Writer:
    """A new log in `folder`.

    Raises:
        OSError, tf.errors.OpError: if it cannot be made.
    """

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        while True:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # In the order of their names: what was written last counts.
            path = folder / f"log-{time.time_ns():020d}-{os.getpid()}.tfrecord"
            self.file = open(path, "x+b", buffering=0)  # noqa: SIM115 - held as long as we are
            fcntl.flock(self.file, fcntl.LOCK_EX)
            # Before it was ours, somebody may have taken it for the empty log of a killed run.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(self.file.fileno())):
                    break
        self.path, self.size = path, 0
        self._writer = tf.io.TFRecordWriter(str(path))
        self._places = open(_places_of(path), "wb", buffering=0)  # noqa: SIM115

    def append(self, record, payload):
        """Writes a record; returns where its frame begins.

        Its place is noted when all of it has reached the file, not before.

        Raises:
            OSError, tf.errors.OpError: if it cannot be written; the log is of no further use.
        """
        entry = np.zeros(1, _ENTRY)
        entry["record"], entry["offset"], entry["length"] = record, self.size, len(payload)
        entry["check"] = _check(entry)
        self._writer.write(payload)
        self._writer.flush()
        if self._places.write(entry.tobytes()) != _ENTRY.itemsize:
            raise OSError(f"{self._places.name} took only a part of an entry")
        self.size += len(payload) + FRAME
        return self.size - len(payload) - FRAME
