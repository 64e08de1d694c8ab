"""A worker's own records copied to a local disk: the "disk" cache.

No locks: a copy is made under a name that says whose it is, and takes its real name when it is
complete. Whoever was killed leaves a partial copy that the next run recognises and removes.
"""

import json
import logging
import os
import pathlib
import shutil
import socket
import tempfile
import time

import numpy as np
import tensorflow as tf

from tfscale.data.index import FRAME

logger = logging.getLogger("tfscale")


def check_space(what, needed, free):
    """Raises `ValueError` if `needed` bytes are more than the `free` ones (None: unknown)."""
    if free is not None and needed > free:
        other = "'disk'" if what == "memory" else "'memory'"
        raise ValueError(
            f"the cache needs {needed / 1e9:.2f} GB of {what} on this worker, {free / 1e9:.2f} GB "
            f"are free; use cache={other} or None, or more workers"
        )


def copy(contract, worker, cache_dir=None):
    """Copies the records that a worker can ever read into one local file, once.

    Frames are copied byte for byte, checksums included, so that damage stays visible.

    Args:
        contract: `records.DataContract`.
        worker: `int`.
        cache_dir: `str` or None, see `cache.create`.

    Returns:
        `(paths, files, offsets)`: where to read each record of the split. Those that could not
        be copied are still read from their source, so that the fault is found there.

    Raises:
        ValueError: if the disk has too little space.
    """
    index = contract.index
    files, offsets, lengths = index.locations()
    owned = contract.owned(worker)
    folder = pathlib.Path(cache_dir or os.path.join(tempfile.gettempdir(), "tfscale-cache"))
    folder = folder / f"{index.split}-{index.digest()}"
    order = contract.order
    parts = f"{order.shards}" if order else f"{contract.global_batch_size}e"
    target = folder / f"worker-{worker:03d}-of-{contract.num_workers:03d}-{parts}.records"
    sizes = lengths[owned] + FRAME
    folder.mkdir(parents=True, exist_ok=True)
    remove_abandoned(folder)
    note = target.with_suffix(".json")
    if target.exists() and note.exists() and target.stat().st_size == int(sizes.sum()):
        logger.info("disk cache: reading %s", target)
    else:
        check_space("disk", int(sizes.sum()), shutil.disk_usage(folder).free)
        logger.info(
            "disk cache: copying %d records, %.2f GB, to %s", len(owned), sizes.sum() / 1e9, target
        )
        missing = _write(index.paths, files[owned], offsets[owned], sizes, owned, target)
        partial = note.with_suffix(f".json{_owner_suffix()}")
        partial.write_text(json.dumps({"missing": missing}))
        partial.replace(note)
    missing = json.loads(note.read_text())["missing"]
    copied = np.cumsum(sizes) - sizes
    here = ~np.isin(owned, missing)
    paths = [*index.paths, str(target)]
    files, offsets = files.copy(), offsets.copy()
    files[owned[here]] = len(paths) - 1
    offsets[owned[here]] = copied[here]
    return paths, files, offsets


def _write(paths, files, offsets, sizes, records, target):
    """Writes the frames to `target`; returns the records that their files no longer hold."""
    partial = target.with_name(target.name + _owner_suffix())
    missing, said, source, opened = [], time.monotonic(), None, None
    try:
        with open(partial, "wb") as out:
            for number, (file, offset, size) in enumerate(zip(files, offsets, sizes, strict=True)):
                if opened != file:
                    if source is not None:
                        source.close()
                    source, opened = tf.io.gfile.GFile(paths[file], "rb"), file
                frame = b""
                try:
                    source.seek(int(offset))
                    frame = source.read(int(size))
                except (tf.errors.OutOfRangeError, tf.errors.NotFoundError):
                    pass  # the frame stays short, and is noted as missing
                if len(frame) != size:
                    missing.append(int(records[number]))
                out.write(frame.ljust(int(size), b"\0"))
                if time.monotonic() - said > 5:
                    said = time.monotonic()
                    logger.info("disk cache: %d of %d records", number + 1, len(records))
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    finally:
        if source is not None:
            source.close()
    return missing


def _start_time(pid):
    """Returns when a process started, in ticks since boot, "0" where the system does not say."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"


def _owner_suffix():
    return f".partial-{socket.gethostname()}-{os.getpid()}-{_start_time(os.getpid())}"


def remove_abandoned(folder):
    """Removes partial copies whose owner on this host is dead (or is another process by now)."""
    for path in pathlib.Path(folder).glob("*.partial-*"):
        host, pid, started = path.name.rpartition(".partial-")[2].rsplit("-", 2)
        if host != socket.gethostname() or _is_running(int(pid), started):
            continue
        logger.info("disk cache: removing %s, left by a run that was killed", path)
        path.unlink(missing_ok=True)


def _is_running(pid, started):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _start_time(pid) == started
