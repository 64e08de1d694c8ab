"""A slow source: ``slow:///path`` is ``/path`` behind a link of a given rate and latency.

TensorFlow opens such paths with all its readers, as it opens ``gs://`` ones, once `register` has
loaded the plugin (``plugin.c``, built by gcc at first use). Nothing can be written there.

    SLOW_BYTES_PER_SECOND=5MB SLOW_LATENCY_SECONDS=0.02 \\
        python -m experiments.input.slow_source experiments/train.py --data_dir=slow:///data/records

runs a program with the scheme registered; in Python::

    prefix = slow_source.register(bytes_per_second=5_000_000, latency_seconds=0.02)
    dataset = tfscale.data.train_dataset(prefix + "/data/records", 256, 224)

Every read, stat and listing waits for the latency; bytes wait for the rate, which all threads of
the process share, and with `shared` all processes that name the same file.
"""

import ctypes
import functools
import hashlib
import math
import os
import re
import subprocess
import tempfile
from pathlib import Path

# TensorFlow is imported where it is needed: a command line that parses a rate can do without.

PREFIX = "slow://"
_SOURCE = Path(__file__).with_name("plugin.c")
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20,
          "gib": 2**30}  # fmt: skip


def register(bytes_per_second=None, latency_seconds=None, shared=None):
    """Makes TensorFlow know ``slow://``, or changes its rate and latency.

    Args:
        bytes_per_second: number, or `str` such as "5MB" or "none". Defaults to the environment's
            SLOW_BYTES_PER_SECOND, without which there is no limit.
        latency_seconds: `float`, of each request. Defaults to the environment's
            SLOW_LATENCY_SECONDS, else 0.
        shared: `str`, a file through which processes of a host share one link; each of them calls
            `register` with it. Defaults to the environment's SLOW_SHARED, else the link is the
            process's own.

    Returns:
        `str`, what to put before an absolute path.

    Raises:
        ValueError: for a rate or latency that is none.
        RuntimeError: if the plugin cannot be built.
        OSError: if `shared` cannot be written.

    Example:
        >>> tf.io.gfile.listdir(register("5MB") + "/data/records")
        ['train-00000-of-00001.tfrecord', 'train.index.json']
    """
    name, rate = _given("bytes_per_second", bytes_per_second, "SLOW_BYTES_PER_SECOND", "none")
    rate = parse_rate(rate, name)
    name, latency = _given("latency_seconds", latency_seconds, "SLOW_LATENCY_SECONDS", "0")
    latency = parse_latency(latency, name)
    _, shared = _given("shared", shared, "SLOW_SHARED", "")
    plugin = _plugin()
    if shared:
        error = plugin.slow_source_share(os.fsencode(shared))
        if error:
            raise OSError(error, f"shared={shared!r} cannot be written: {os.strerror(error)}")
    else:
        plugin.slow_source_unshare()
    plugin.slow_source_set(rate or 0, round(latency * 1e9))
    return PREFIX


def bytes_read():
    """Returns the bytes read from ``slow://`` since the first `register`; none before it.

    With `shared`, those of all processes together.
    """
    return _plugin().slow_source_bytes_read()


def requests():
    """Returns the reads, stats and listings, counted as `bytes_read` counts."""
    return _plugin().slow_source_requests()


def parse_rate(text, name="rate"):
    """Returns bytes per second as an `int`, None for "none": no limit.

    Args:
        text: number, or `str`: a number and B, kB, MB, GB (powers of 1000), KiB, MiB or GiB.
        name: `str`, what an error calls it.

    Raises:
        ValueError: for anything else, or less than one byte per second.

    Example:
        >>> parse_rate("5MB")
        5000000
    """
    if str(text).strip().lower() == "none":
        return None
    found = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)\s*([a-z]*?)(/s)?", str(text).strip().lower())
    try:
        rate = round(float(found[1]) * _UNITS[found[2]])
    except (TypeError, KeyError, ValueError, OverflowError):
        rate = 0
    if not 1 <= rate < 2**63:
        raise ValueError(
            f"{name}={text!r} is no rate: write bytes per second, such as 5000000, 5MB or 1GiB, "
            "or none for a source without a limit"
        )
    return rate


def _given(name, value, variable, default):
    """Returns `(name, value)`, for errors and to use: the argument, or the environment's."""
    if value is not None:
        return name, value
    return variable, os.environ.get(variable) or default


def parse_latency(text, name="latency"):
    """Returns seconds as a `float`; raises ValueError unless they are in [0, 3600]."""
    try:
        seconds = float(text)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds <= 3600:
        raise ValueError(f"{name}={text!r} is no latency: write seconds in [0, 3600], such as 0.02")
    return seconds


@functools.cache
def _plugin():
    """Builds the plugin, and registers it with TensorFlow, which takes a scheme only once."""
    import tensorflow as tf

    path = build()
    tf.experimental.register_filesystem_plugin(path)
    plugin = ctypes.CDLL(path)
    plugin.slow_source_share.argtypes = [ctypes.c_char_p]
    plugin.slow_source_set.argtypes = [ctypes.c_int64, ctypes.c_int64]
    plugin.slow_source_set.restype = plugin.slow_source_unshare.restype = None
    plugin.slow_source_bytes_read.restype = plugin.slow_source_requests.restype = ctypes.c_int64
    return plugin


def build():
    """Compiles the plugin unless that was done before; returns its path.

    It is kept in ``$XDG_CACHE_HOME/tfscale`` (``~/.cache/tfscale``), one for each TensorFlow.
    """
    import tensorflow as tf

    flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
    # Flags of the C++ compiler: the plugin is C.
    flags = [flag for flag in flags if not flag.startswith("-std=")]
    key = hashlib.sha256(_SOURCE.read_bytes() + tf.version.VERSION.encode())
    key.update("\0".join(flags).encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tfscale"
    target = cache / f"slow_source-{key.hexdigest()[:16]}.so"
    if target.exists():
        return str(target)
    cache.mkdir(parents=True, exist_ok=True)
    # Another name until it is complete: several processes may build at the same time.
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        made = Path(folder) / target.name
        command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wno-unused", "-fPIC", "-shared",
                   str(_SOURCE), *flags, "-o", str(made)]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise RuntimeError(
                "the slow source is a plugin in C, and there is no gcc to build it: "
                "apt-get install gcc libc6-dev"
            ) from error
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
        made.replace(target)
    return str(target)
