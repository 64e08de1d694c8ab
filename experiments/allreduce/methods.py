"""The methods that the benchmark compares, and how they are written.

stock                    TensorFlow's own all-reduce: one flat ring, all gradients in one pack
stock:pack=4mib          the same in packs of that size; pack=best tries some and keeps the best
2d                       tfscale's Hierarchical2DAllReduce, float32
2d+bfloat16              ... compressed between workers: bfloat16, float16, int8, topk
2d+topk=0.001            ... top-k with another ratio than 0.01
2d:bucket=1mib           ... in buckets of that size, or bucket=adaptive
2d:streams=4:grid=2x2    ... with that many buckets in flight, workers as a 2 x 2 grid
gloo, gloo+fp16, gloo+powersgd, horovod, horovod+fp16
                         PyTorch's and Horovod's, if their environments are installed
"""

import dataclasses
import math
import re

from experiments.allreduce import peers
from experiments.rates import parse_bytes

COMPRESSIONS = ("bfloat16", "float16", "int8", "topk")
# What `pack=best` tries; 0 is TensorFlow's default, one pack of everything.
PACKS = (0, 1 << 20, 4 << 20, 16 << 20)


@dataclasses.dataclass(frozen=True)
class Method:
    """One method, as `parse_method` reads it.

    Attributes:
        name: `str`, as it was written.
        family: ``"stock"``, ``"2d"`` or ``"peer"``.
        compression: one of `COMPRESSIONS`, or None.
        ratio: `float` of top-k, None for its default.
        pack: bytes of a pack of stock, or ``"best"``.
        bucket: bytes of a bucket of 2d, or ``"adaptive"``; None for its default.
        streams: `int`, None for the default.
        grid: ``(rows, columns)`` of workers, or None.
    """

    name: str
    family: str
    compression: str | None = None
    ratio: float | None = None
    pack: int | str = 0
    bucket: int | str | None = None
    streams: int | None = None
    grid: tuple[int, int] | None = None

    def arguments(self):
        """The keyword arguments of `Hierarchical2DAllReduce`, for the family ``2d``."""
        given = {
            "compression": self.compression,
            "bucket_bytes": self.bucket,
            "streams": self.streams,
            "worker_grid": self.grid,
        }
        if self.ratio is not None:
            from tfscale.distribute.compression import TopK

            given["compression"] = TopK(ratio=self.ratio)
        return {name: value for name, value in given.items() if value is not None}


def parse_methods(text):
    """Returns the `Method` of each name in a list with commas.

    Raises:
        ValueError: for an unknown name or option, and for one that comes twice.

    Example:
        >>> [m.compression for m in parse_methods("stock,2d+int8:streams=4")]
        [None, 'int8']
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError("no method is named; for example stock,2d,2d+bfloat16")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"named twice: {', '.join(twice)}")
    return [parse_method(name) for name in names]


def parse_method(name):
    """Returns the `Method` of one name; see the module's text for the grammar."""
    if name in peers.METHODS:
        return Method(name, "peer")
    head, *options = name.split(":")
    family, plus, compression = head.partition("+")
    options = [_option(name, option) for option in options]
    if family == "stock" and not plus:
        return Method(name, "stock", **_checked(name, options, {"pack": _pack}))
    if family == "2d":
        readers = {"bucket": _bucket, "streams": _streams, "grid": _grid}
        ratio = None
        if plus:
            compression, equals, text = compression.partition("=")
            if compression not in COMPRESSIONS:
                raise ValueError(
                    f"{name!r}: unknown compression {compression!r}; choose one of "
                    f"{', '.join(COMPRESSIONS)}"
                )
            ratio = _ratio(name, compression, text) if equals else None
        settings = _checked(name, options, readers)
        return Method(name, "2d", compression or None, ratio, **settings)
    raise ValueError(
        f"unknown method {name!r}; choose from stock[:pack=SIZE|best], "
        "2d[+bfloat16|float16|int8|topk[=RATIO]][:bucket=SIZE|adaptive][:streams=N][:grid=RxC], "
        f"{', '.join(peers.METHODS)}"
    )


def payload_bytes(method, shapes, workers, devices_per_worker, compressor=None):
    """Returns the bytes that the method's algorithm has to put on one worker's link.

    With n bytes of float32 gradients, N workers and D devices in each::

        stock   2 (ND - 1) / (ND) n          one ring over all devices
        2d      2 (N - 1) / N n              one ring of workers, whatever D
        2d+...  compressor.bytes_per_element(N) n / 4
        grid    rows as float32 or half precision, the columns (1/C of it) compressed

    Args:
        method: `Method` of the family ``stock`` or ``2d``.
        shapes: shapes of the gradients.
        compressor: the compressor of a method with compression.
    """
    if workers == 1:
        return 0
    if method.family == "stock":
        replicas = workers * devices_per_worker
        elements = sum(math.prod(shape) for shape in shapes)
        return 4 * elements * 2 * (replicas - 1) / replicas
    total = 0.0
    for shape in shapes:
        size = math.prod(shape)
        used = compressor if size >= compressor.min_elements else compressor.dense
        total += size * _bytes_per_element(method, used, workers)
    return total


def _bytes_per_element(method, compressor, workers):
    if method.grid is None or 1 in method.grid:
        return compressor.bytes_per_element(workers)
    rows, columns = method.grid
    # Residuals have no place in a row's reduce-scatter: what keeps one travels as float32 there.
    in_rows = compressor if not compressor.slots else None
    row = in_rows.bytes_per_element(columns) if in_rows else 8 * (columns - 1) / columns
    return row + compressor.bytes_per_element(rows) / columns


def _option(name, text):
    key, equals, value = text.partition("=")
    if not equals or not value:
        raise ValueError(f"{name!r}: {text!r} is not an option; they are written :key=value")
    return key, value


def _checked(name, options, readers):
    result = {}
    for key, value in options:
        if key not in readers:
            raise ValueError(
                f"{name!r}: unknown option {key!r}; this method has {', '.join(readers)}"
            )
        if key in result:
            raise ValueError(f"{name!r}: {key} is given twice")
        try:
            result[key] = readers[key](value)
        except ValueError as error:
            raise ValueError(f"{name!r}: {key}={value}: {error}") from error
    return result


def _pack(text):
    return text if text == "best" else 0 if text == "0" else parse_bytes(text)


def _bucket(text):
    return text if text == "adaptive" else parse_bytes(text)


def _streams(text):
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise ValueError("a whole number from 1 to 64 is needed")
    return int(text)


def _grid(text):
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if not match:
        raise ValueError("rows x columns are needed, for example 2x2")
    return int(match[1]), int(match[2])


def _ratio(name, compression, text):
    try:
        ratio = float(text)
    except ValueError:
        ratio = math.nan
    if compression != "topk" or not 0 < ratio <= 1:
        raise ValueError(
            f"{name!r}: only topk takes a number, a ratio above 0 and at most 1, for example "
            "2d+topk=0.01"
        )
    return ratio
