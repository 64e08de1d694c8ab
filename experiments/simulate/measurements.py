"""Rows of the benchmark's JSON files as measurements for the cost model."""

import itertools
import json
import math
import re
from pathlib import Path

from experiments.allreduce import shapes
from experiments.rates import parse_rate
from experiments.simulate.methods import method_of
from tfscale.distribute.cost_model import Cluster, Measurement

# One way through a bridge of the network lab.
LAB_LATENCY = 3.5e-5
NO_EXCHANGE = "no exchange"
_FILE_NAME = re.compile(r"(\d+)x(\d+)-(\w+)$")


def _above_0(value):
    return 0 < value < math.inf


# What a row's fields have to be: a type, a condition, and both in words.
_COUNT = (int, _above_0, "a whole number of at least 1")
_SECONDS = (int | float, _above_0, "a number of seconds above 0")
_FIELDS = {
    "seconds_median": _SECONDS,
    "seconds_min": _SECONDS,
    "seconds_max": _SECONDS,
    "cpu_seconds": (
        int | float,
        lambda value: 0 <= value < math.inf,
        "null or a number of seconds of at least 0",
    ),
    "compute_seconds": _SECONDS,
    "forward_share": (int | float, lambda value: 0 <= value < 1, "a number in [0, 1)"),
    "workers": _COUNT,
    "devices_per_worker": _COUNT,
    "cores": _COUNT,
    "rate": (str, bool, "a rate such as '200mbit'"),
    "parameters": (str, shapes.SETS.__contains__, f"one of {', '.join(sorted(shapes.SETS))}"),
    "bytes_per_pack": (int, lambda value: value >= 0, "null or a whole number of bytes"),
    "bucket_bytes": (
        int | str,
        lambda value: value == "adaptive" or isinstance(value, int) and value > 0,
        "null, 'adaptive' or a whole number of bytes",
    ),
    "streams": (int, _above_0, "null or a whole number of at least 1"),
}
# Those that a method may have none of.
_NULL = {"cpu_seconds", "bytes_per_pack", "bucket_bytes", "streams"}


def read_runs(paths, cores=None):
    """Returns ``(measurements, lines about rows left out)`` of several files.

    Arguments and errors are those of `read_measurements`.
    """
    measurements, lines = [], []
    for path in paths:
        found, left_out = read_measurements(path, cores)
        measurements += found
        if left_out:
            lines.append(f"{path}: left out {', '.join(left_out)}: not methods of the model")
    return measurements, lines


def read_measurements(path, cores=None):
    """Returns ``(measurements, names of rows left out)`` of one file.

    Rows carry the run's ``workers``, ``devices_per_worker``, ``rate`` and ``parameters``; where
    they do not, the file's name does: ``4x2-200mbit.json``. All workers share the cores of one
    machine, as in the benchmark's network lab. Rows of other frameworks are left out.

    Rows of training need the row ``no exchange`` beside them. Its time is the computation, of
    which `forward_share` (of the rows; 0 is the benchmark's default) goes by before the first
    gradient, and whose layers take equally long in the backward pass, as in the benchmark's model.

    Args:
        path: of a file that the benchmark wrote with ``--json``.
        cores: `int`, cores of the machine that measured; None takes the rows' ``cores``.

    Raises:
        ValueError: if the file does not hold such rows, with the file's name.
        OSError: if it can't be read.
    """
    path = Path(path)
    try:
        rows = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path} does not hold a list of rows, as the benchmark's --json does")
    found, left_out = [], []
    alone = next((row for row in rows if row.get("method") == NO_EXCHANGE), None)
    for number, row in enumerate(rows):
        where = f"{path}, row {number}"
        name = row.get("method")
        if not isinstance(name, str):
            raise ValueError(f"{where}: method must be a name such as '2d', got {name!r}")
        _check_fields(row, where)
        try:
            method = method_of(name, *map(row.get, ("bytes_per_pack", "bucket_bytes", "streams")))
        except ValueError:
            left_out.append(name)
            continue
        step = {}
        if row.get("mode") == "train":
            if alone is None:
                raise ValueError(f"{where}: rows of training need one of {NO_EXCHANGE!r}")
            _check_fields(alone, f"{path}, row {rows.index(alone)}")
            step = _step(row, alone["seconds_median"])
        cluster = _cluster(row, path, where, cores)
        found.append(
            Measurement(
                cluster,
                method,
                _sizes(row),
                row["seconds_median"],
                # That of a step is not the exchange's alone.
                None if step else row.get("cpu_seconds"),
                f"{cluster.workers} x {cluster.devices_per_worker}, {_rate(row, path)}, {name}"
                f"{', training' * bool(step)}",
                spread=_spread(row),
                **step,
            )
        )
    if not found:
        raise ValueError(f"{path} has no row of a method that the model knows: {left_out}")
    return found, left_out


def _cluster(row, path, where, cores):
    in_name = _FILE_NAME.search(path.stem)
    workers = row.get("workers") or (in_name and int(in_name[1]))
    devices = row.get("devices_per_worker") or (in_name and int(in_name[2]))
    cores = row.get("cores") if cores is None else cores
    rate = _rate(row, path)
    missing = [
        name
        for name, value in (("workers", workers), ("devices_per_worker", devices), ("rate", rate))
        if not value
    ]
    if missing:
        raise ValueError(
            f"{where} lacks {', '.join(missing)}; measure again with this version's benchmark, or "
            "name the file after the run, as in 4x2-200mbit.json"
        )
    if not cores:
        raise ValueError(
            f"{where} does not say how many cores the machine had: add --cores_per_host=NUMBER"
        )
    try:
        bits_per_second = parse_rate(rate)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return Cluster(
        workers,
        devices,
        bits_per_second,
        latency_seconds=LAB_LATENCY,
        cores_per_host=cores,
        workers_per_host=workers,
    )


def _check_fields(row, where):
    """Raises ValueError for a field of which the model could make nothing."""
    for name, (kind, allowed, wanted) in _FIELDS.items():
        value = row.get(name)
        if name not in row and name != "seconds_median" or value is None and name in _NULL:
            continue
        if isinstance(value, bool) or not isinstance(value, kind) or not allowed(value):
            raise ValueError(f"{where}: {name} must be {wanted}, got {value!r}")


def _spread(row):
    """Half of the range of the repeats, relative to their median."""
    median = row["seconds_median"]
    return (row.get("seconds_max", median) - row.get("seconds_min", median)) / 2 / median


def _rate(row, path):
    in_name = _FILE_NAME.search(path.stem)
    return row.get("rate") or (in_name and in_name[3])


def _sizes(row):
    return tuple(4 * shapes.elements([shape]) for shape in reversed(_tensors(row)))


def _tensors(row):
    return shapes.SETS[row.get("parameters", "resnet50")]()


def _step(row, seconds):
    """When the gradients of a training step without exchange are ready, and how long it is."""
    compute = min(seconds, row.get("compute_seconds") or seconds)
    forward = compute * row.get("forward_share", 0.0)
    tensors = _tensors(row)
    # A layer is a kernel, of rank 2 and up, and the vectors after it.
    layer_of = list(itertools.accumulate(int(len(shape) > 1) for shape in tensors))
    layers = layer_of[-1]
    ready = [
        forward + (compute - forward) * (layers - layer + 1) / layers
        for layer in reversed(layer_of)
    ]
    return {"ready": tuple(ready), "compute_seconds": seconds}
