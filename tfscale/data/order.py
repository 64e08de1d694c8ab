"""The order of the records: a pure function of (seed, step), the same on any number of workers."""

import dataclasses
import functools
import math

import numpy as np

_ORDER, _AUGMENT = 1, 2  # two independent families of random numbers from one seed


def mix64(*words):
    """Hashes integers to uint64 by chained SplitMix64 finalisers, element by element.

    ``h = 0; for w in words: h = finalise((h ^ w) + 0x9E3779B97F4A7C15)``

    NumPy's generators may change their streams between versions; this may not, so that a run
    resumed after an upgrade sees the same order.

    Args:
        *words: integers or integer arrays that broadcast together.

    Returns:
        `np.ndarray` of uint64.

    Example:
        >>> int(mix64(7, [0, 1]).max()) < 2**64
        True

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    state = np.zeros(1, np.uint64)
    for word in words:
        state = state ^ np.asarray(word, np.int64).astype(np.uint64)
        state = state + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state


def augmentation_keys(seed, epochs, records):
    """Returns the int64 key of each record's augmentation: a function of nothing else."""
    return mix64(seed, _AUGMENT, epochs, records).view(np.int64)


def logical_shards(num_records, global_batch_size, num_replicas):
    """Chooses how many streams the records are dealt to.

    The largest divisor of the global batch up to ``sqrt(num_records)``: it does not depend on
    the replicas, so neither does the order. Where the replicas do not divide it, the smallest
    multiple of the replicas that divides the batch.

    Args:
        num_records: `int`, records of the split.
        global_batch_size: `int`, examples per step over all replicas.
        num_replicas: `int`, replicas in the job; divides `global_batch_size`.

    Returns:
        `(shards, invariant)`: the number of streams, and whether one replica would get the same.

    Example:
        >>> logical_shards(1281167, 256, 8)
        (256, True)
    """
    limit = max(1, math.isqrt(num_records))
    divisors = [d for d in range(1, global_batch_size + 1) if global_batch_size % d == 0]
    shards = max(d for d in divisors if d <= limit)
    if shards % num_replicas == 0:
        return shards, True
    return min(d for d in divisors if d % num_replicas == 0), False


@dataclasses.dataclass(frozen=True)
class Order:
    """Which record stands where in which step of training.

    Records are dealt to ``L = shards`` streams. Record ``k < L * (N // L)`` belongs to stream
    ``k % L`` for ever, so that a worker can keep its own records. The last ``r = N % L`` records
    float: in epoch ``e`` float ``f`` goes to stream ``(e * r + f) % L``. So every record is drawn
    once an epoch, and no two streams are ever more than one record apart. A stream is its
    records of epoch 0 in a random order, then those of epoch 1, and so on. Step ``s`` takes
    positions ``[s * b, (s + 1) * b)`` of every stream, ``b = B // L``: the rows of the global
    batch, stream after stream. A replica's rows are whole streams.

    Args:
        num_records: `int`, N.
        global_batch_size: `int`, B.
        shards: `int`, L, divides B.
        seed: `int`.
        remainder: "carry": the ``N % B`` records left at the end of an epoch open the next one;
            "drop": every epoch takes the first ``(N // B) * B`` places of a fresh order.

    Raises:
        ValueError: if a batch has more rows than there are records.

    Example:
        >>> order = Order(num_records=10, global_batch_size=4, shards=2, seed=7)
        >>> records, epochs = order.batch(0)
        >>> records.shape
        (4,)
    """

    num_records: int
    global_batch_size: int
    shards: int
    seed: int = 0
    remainder: str = "carry"

    def __post_init__(self):
        if self.remainder not in ("carry", "drop"):
            raise ValueError(f"remainder={self.remainder!r} is neither 'carry' nor 'drop'")
        if self.global_batch_size > self.num_records:
            raise ValueError(
                f"global batch {self.global_batch_size} > {self.num_records} records: an epoch "
                f"would have {self.num_records} // {self.global_batch_size} = 0 steps; lower "
                "global_batch_size (per-replica batch x replicas) or add records"
            )
        if self.global_batch_size % self.shards:
            raise ValueError(
                f"{self.shards} streams do not divide the global batch {self.global_batch_size}"
            )

    @property
    def steps_per_epoch(self):
        return self.num_records // self.global_batch_size

    @property
    def per_shard(self):
        """Records that belong to each stream for ever."""
        return self.num_records // self.shards

    def batch(self, step, first=0, last=None):
        """Returns the rows of streams `first` to `last` (exclusive; all by default) in `step`.

        Args:
            step: `int`, from 0 at the start of training.
            first, last: `int`, a range of streams.

        Returns:
            `(records, epochs)`: int64 arrays of ``(last - first) * B // L`` rows.
        """
        last = self.shards if last is None else last
        rows = self.global_batch_size // self.shards
        shard = np.arange(first, last, dtype=np.int64)[:, None]
        position = np.broadcast_to(
            step * rows + np.arange(rows, dtype=np.int64), (len(shard), rows)
        )
        if self.remainder == "drop":
            epochs, place = np.divmod(position, self.steps_per_epoch * rows)
        else:
            epochs = position * self.shards // self.num_records
            # The estimate is at most one off, as a stream is at most one record off the mean.
            epochs = epochs - (self._start(epochs, shard) > position)
            epochs = epochs + (self._start(epochs + 1, shard) <= position)
            place = position - self._start(epochs, shard)
        records = np.empty_like(place)
        for epoch in np.unique(epochs):
            drawn = np.nonzero(epochs == epoch)
            records[drawn] = self._permutation(int(epoch), first, last)[drawn[0], place[drawn]]
        return records.reshape(-1), np.ascontiguousarray(epochs).reshape(-1)

    def shard_of_row(self, row):
        """Returns the stream of a row of the global batch."""
        return row // (self.global_batch_size // self.shards)

    def owned(self, first, last):
        """Returns the records that streams `first` to `last` can ever draw, in record order."""
        records = np.arange(self.num_records, dtype=np.int64)
        stream = records % self.shards
        mine = (stream >= first) & (stream < last)
        mine[self.per_shard * self.shards :] = True  # the floating records visit every stream
        return records[mine]

    def _start(self, epoch, shard):
        """Position at which `epoch` begins in the stream of `shard`."""
        floats = epoch * (self.num_records % self.shards)
        return epoch * self.per_shard + (floats - shard + self.shards - 1) // self.shards

    @functools.lru_cache(maxsize=4)  # noqa: B019 - an epoch's end and the next one's start
    def _permutation(self, epoch, first, last):
        """Returns [streams, per_shard + 1] records; the last place is void without a float."""
        shard = np.arange(first, last, dtype=np.int64)[:, None]
        place = np.arange(self.per_shard + 1, dtype=np.int64)
        floating = self.num_records % self.shards
        records = place * self.shards + shard
        float_number = (shard[:, 0] - epoch * floating) % self.shards
        records[:, -1] = self.per_shard * self.shards + float_number
        keys = mix64(self.seed, _ORDER, epoch, shard, place)
        keys[float_number >= floating, -1] = np.iinfo(np.uint64).max
        return np.take_along_axis(records, np.argsort(keys, axis=1, kind="stable"), axis=1)
