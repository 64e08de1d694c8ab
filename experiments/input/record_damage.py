"""Damage to record files, as values: what is done, where, and how much of it."""

import dataclasses

import numpy as np

KINDS = ("flip", "cut", "remove", "insert", "duplicate", "zero", "swap")
PLACES = ("anywhere", "length", "checksum", "fields", "payload", "end")


@dataclasses.dataclass(frozen=True)
class Damage:
    """One damage.

    Args:
        kind: one of `KINDS`: invert bits of a byte; cut the file off; take bytes out; put noise
            in; put a copy of some bytes elsewhere; overwrite with zeros; exchange two places.
        place: one of `PLACES`: anywhere in the file, or a part of one record's frame.
        record: `int`, which record of the file, modulo their number.
        at, other: `float` in [0, 1): where in that part; and the other place in the file.
        size: `int`, bytes; 0 for as many as the record has.
        value: `int` in [1, 255]: the bits that are inverted; the seed of the noise.
    """

    kind: str
    place: str
    record: int
    at: float
    other: float
    size: int
    value: int

    def apply(self, data, frames):
        """Returns the damaged bytes of a file.

        Args:
            data: `bytes` of the file.
            frames: `list` of (offset, size) of its records.
        """
        if not data:
            return data
        offset, whole = frames[self.record % len(frames)]
        begin = min(offset + self._within(whole), len(data) - 1)
        if self.place == "anywhere":
            begin = int(self.at * len(data))
        size = min(self.size or whole, len(data) - begin)
        if self.size == 0 and self.kind in ("duplicate", "remove", "swap"):
            begin, size = min(offset, len(data) - 1), min(whole, max(0, len(data) - offset))
        other = int(self.other * len(data))
        piece, before, after = data[begin : begin + size], data[:begin], data[begin + size :]
        match self.kind:
            case "flip":
                return before + bytes([data[begin] ^ self.value]) + data[begin + 1 :]
            case "cut":
                return before
            case "remove":
                return before + after
            case "insert":
                noise = np.random.RandomState(self.value).bytes(self.size or whole)
                return before + noise + data[begin:]
            case "duplicate":
                return data[:other] + piece + data[other:]
            case "zero":
                return before + bytes(size) + after
            case "swap":
                first, second = sorted([begin, other])
                size = min(size, second - first, len(data) - second)
                one, two = data[first : first + size], data[second : second + size]
                middle = data[first + size : second]
                return data[:first] + two + middle + one + data[second + size :]
        raise ValueError(f"kind={self.kind!r}")

    def _within(self, whole):
        """Returns the byte within a frame of `whole` bytes."""
        first, last = {
            "anywhere": (0, whole),
            "length": (0, 8),
            "checksum": (8, 12),
            "fields": (12, min(160, whole)),  # names and lengths of fields, the picture's header
            "payload": (12, whole - 4),
            "end": (whole - 4, whole),
        }[self.place]
        return first + int(self.at * (last - first))


def sample(random):
    """Returns a random `Damage`.

    Args:
        random: `np.random.Generator`.
    """
    size = int(2 ** random.uniform(0, 11)) if random.random() < 0.8 else 0
    return Damage(
        kind=KINDS[random.integers(len(KINDS))],
        place=PLACES[random.integers(len(PLACES))],
        record=int(random.integers(16)),
        at=float(random.random()),
        other=float(random.random()),
        size=size,
        value=int(random.integers(1, 256)),
    )
