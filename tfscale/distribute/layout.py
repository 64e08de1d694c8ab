"""Where the elements of a bucket lie: shards, one for each local device, made of tensors' segments.

A bucket is one long vector: its tensors one after another, each starting at a multiple of 64
bytes, padded at the end so that it splits evenly. Aligned starts let TensorFlow take a vector
apart without copying it. Nobody ever builds the whole vector: each device builds its shard.
"""

import dataclasses
import math

ALIGNMENT = 16  # elements; of float32, the 64 bytes at which TensorFlow's tensors are aligned


@dataclasses.dataclass(frozen=True)
class Segment:
    """A run of a tensor's elements inside one shard.

    Attributes:
        tensor: `int`, the tensor's place in the bucket.
        start: `int`, first element within the flattened tensor.
        size: `int`, number of elements.
        offset: `int`, where the run begins in the shard.
    """

    tensor: int
    start: int
    size: int
    offset: int


@dataclasses.dataclass(frozen=True)
class Layout:
    """The shards of a bucket.

    Attributes:
        sizes: `tuple` of `int`, elements of each tensor.
        length: `int`, elements of each shard, padding included.
        shards: `tuple` with, for each shard, its `tuple` of `Segment` in order of offset.
    """

    sizes: tuple
    length: int
    shards: tuple


def lay_out(sizes, shards, quantum=1):
    """Returns the `Layout` of tensors of the given sizes over a number of shards.

    Args:
        sizes: sequence of `int`, elements of each tensor; zero is allowed.
        shards: `int`, number of shards.
        quantum: `int`; a shard's length is a multiple of it.

    Example:
        >>> lay_out([40, 16], shards=2).shards[1]
        (Segment(tensor=0, start=32, size=8, offset=0), Segment(tensor=1, start=0, size=16, offset=16))
    """  # noqa: E501
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += round_up(size, ALIGNMENT)
    length = round_up(-(-end // shards), math.lcm(quantum, ALIGNMENT))
    pieces = []
    for low in range(0, shards * length, length):
        high = low + length
        shard = []
        for tensor, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            first, last = max(low, start), min(high, start + size)
            if first < last:
                shard.append(Segment(tensor, first - start, last - first, first - low))
        pieces.append(tuple(shard))
    return Layout(tuple(sizes), length, tuple(pieces))


def round_up(n, multiple):
    """Returns the smallest multiple of `multiple` that is at least `n`."""
    return -(-n // multiple) * multiple
