"""Where the cache of a source lies, so that what was kept of another one is never found."""

import concurrent.futures
import hashlib
import logging
import os
import pathlib
import re
import shutil
import tempfile

import tensorflow as tf

from tfscale.data import cache_log

FORMAT = 2  # raise it when what is kept changes its form or its pixels

logger = logging.getLogger("tfscale")


def folder_of(root, index, short_side):
    """Returns the folder that keeps the records of a source: ``root/SOURCE/FINGERPRINT/FORM``.

    The source is the folder of the records and the split. The fingerprint covers the path, size
    and time of change of every file, and the lengths of the records. The form is encoded bytes,
    or pictures of one short side.

    Args:
        root: `pathlib.Path`.
        index: `index.RecordIndex`.
        short_side: `int`, or None for encoded bytes.

    Returns:
        `pathlib.Path`, which need not exist.
    """
    directory = str(index.directory)
    directory = directory if "://" in directory else os.path.abspath(directory)
    source = hashlib.sha256(f"{directory}\0{index.split}".encode()).hexdigest()[:16]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:  # a remote stat takes its time
        states = list(pool.map(_state, index.paths))
    fingerprint = hashlib.sha256(repr((FORMAT, index.digest(), states)).encode()).hexdigest()[:16]
    form = "encoded" if short_side is None else f"short-side-{short_side}"
    name = re.sub(r"[^\w.-]+", "_", index.split)  # it may be a pattern
    return root / f"{name}-{source}" / fingerprint / form


def _state(path):
    try:
        found = tf.io.gfile.stat(path)
    except tf.errors.NotFoundError:
        return path, "missing"
    return path, found.length, found.mtime_nsec


def default_root():
    """Returns the folder of all caches of this user: in TMPDIR if that is set, else /var/tmp.

    Not /tmp: that is in memory on many systems.

    Raises:
        PermissionError: if the folder belongs to someone else, who could plant pictures in it.
    """
    above = os.environ.get("TMPDIR") or "/var/tmp"
    above = above if os.path.isdir(above) else tempfile.gettempdir()
    root = pathlib.Path(above, f"tfscale-cache-{os.getuid()}")
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if root.stat().st_uid != os.getuid():
        raise PermissionError(f"{root} belongs to another user; pass Cache(folder=...)")
    return root


def remove_stale(folder):
    """Removes what is kept of other states of the same source, unless somebody uses it.

    Args:
        folder: what `folder_of` returned.
    """
    source = folder.parent.parent
    if not source.is_dir():
        return
    for other in source.iterdir():
        if other == folder.parent or any(map(cache_log.is_held, other.rglob(cache_log.LOGS))):
            continue
        shutil.rmtree(other, ignore_errors=True)
        logger.info("cache: removed %s: its source has changed since", other)
