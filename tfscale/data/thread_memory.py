"""A small file of what was measured in earlier runs: how many calls which source needs."""

import contextlib
import datetime
import fcntl
import json
import os
import time
from pathlib import Path

from tfscale.data import index as index_lib

FORMAT = "tfscale-threads"
FILE = "TFSCALE_THREADS_FILE"
MOST_ENTRIES = 200
LOCK_SECONDS = 2.0


def default_file():
    """Returns the file's path: ``TFSCALE_THREADS_FILE``, or one in the user's cache folder.

    Example:
        >>> default_file().endswith("threads.json")
        True
    """
    if os.environ.get(FILE):
        return os.environ[FILE]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "tfscale", "threads.json")


def recall(file, key, log):
    """Returns the number of calls remembered for `key`; None if there is none.

    Args:
        file: path.
        key: JSON-able `dict`.
        log: function that gets a line if the file cannot be used.
    """
    try:
        found = [e["calls"] for e in _entries(file) if e["key"] == _plain(key)]
    except (OSError, ValueError) as error:
        log(f"what was remembered of input threads is ignored: {file}: {error}; delete it")
        return None
    return found[-1] if found else None


def remember(file, key, calls, rates, log):
    """Adds to the file, in one piece; returns whether it was done.

    Args:
        file, key, log: see `recall`.
        calls: `int`.
        rates: `dict` of number of calls to images per second, for people who read the file.
    """
    entry = {
        "key": _plain(key),
        "calls": calls,
        "images_per_second": {str(n): round(rate, 1) for n, rate in rates.items()},
        "measured": datetime.datetime.now().isoformat(timespec="seconds"),
    }
    try:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        with _locked(f"{file}.lock"):
            # A file that is not ours is not overwritten: its path may be a mistake.
            others = [e for e in _entries(file) if e["key"] != entry["key"]]
            content = {"format": FORMAT, "entries": [*others, entry][-MOST_ENTRIES:]}
            index_lib.write_atomically(str(file), json.dumps(content, indent=1))
    except Exception as error:  # noqa: BLE001 - TensorFlow's, and the system's; a run goes on
        log(f"input threads are not remembered: {file}: {str(error).splitlines()[0]}")
        return False
    return True


def _plain(key):
    return json.loads(json.dumps(key))


def _entries(file):
    try:
        content = json.loads(Path(file).read_text())
        if content["format"] != FORMAT:
            raise ValueError("not a file of input threads")
        for entry in content["entries"]:
            calls = entry["calls"]
            if type(calls) is not int or not 1 <= calls <= 4096 or type(entry["key"]) is not dict:
                raise ValueError(f"damaged entry {entry}")
        return content["entries"]
    except FileNotFoundError:
        return []
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a file of input threads ({error!r})") from None


@contextlib.contextmanager
def _locked(path):
    """Holds the lock, which the system takes back from a process that dies."""
    with open(path, "a") as file:
        end = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TimeoutError(f"another process holds {path}") from None
                time.sleep(0.02)
        yield
