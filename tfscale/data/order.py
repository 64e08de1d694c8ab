"""The order of the records: a pure function of (seed, step), the same on any number of workers."""

import dataclasses
import math

import numpy as np
import tensorflow as tf

_ORDER, _AUGMENT = 1, 2  # two independent families of random numbers from one seed
_ROUNDS = 8


def mix64(*words):
    """Hashes integers to uint64 by chained SplitMix64 finalisers, element by element.

    ``h = 0; for w in words: h = finalise((h ^ w) + 0x9E3779B97F4A7C15)``

    TensorFlow's and NumPy's generators may change their streams between versions; this may not,
    so that a run resumed after an upgrade sees the same order.

    Args:
        *words: int64 or uint64 tensors that broadcast together.

    Returns:
        uint64 tensor.

    Example:
        >>> mix64(7, [0, 1]).shape
        TensorShape([2])

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    state = tf.constant(0, tf.uint64)
    for word in words:
        if not (tf.is_tensor(word) and word.dtype == tf.uint64):
            word = tf.bitcast(tf.convert_to_tensor(word, tf.int64), tf.uint64)
        state = tf.bitwise.bitwise_xor(state, word) + _word(0x9E3779B97F4A7C15)
        state = _xor_shift(state, 30) * _word(0xBF58476D1CE4E5B9)
        state = _xor_shift(state, 27) * _word(0x94D049BB133111EB)
        state = _xor_shift(state, 31)
    return state


def _word(value):
    return tf.constant(value, tf.uint64)


def _xor_shift(state, bits):
    return tf.bitwise.bitwise_xor(state, tf.bitwise.right_shift(state, _word(bits)))


def augmentation_keys(seed, epochs, records):
    """Returns the int64 key of each record's augmentation: a function of nothing else."""
    return tf.bitcast(mix64(seed, _AUGMENT, epochs, records), tf.int64)


def permute(place, count, *key):
    """Returns where each place goes in a random permutation of ``range(count)``.

    A Feistel network over pairs of digits to the base ``ceil(sqrt(count))``, walked again
    wherever it leaves the range: one place costs the same in a million as in ten, and no
    permutation is ever held in memory.

    Args:
        place, count: int64 tensors of one shape, ``0 <= place < count``.
        *key: integers or int64 tensors of that shape: which permutation.

    Returns:
        int64 tensor, different for different places of the same `count` and `key`.

    Example:
        >>> sorted(permute(tf.range(5, dtype=tf.int64), tf.fill([5], 5), 7).numpy().tolist())
        [0, 1, 2, 3, 4]

    Source: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002.
    """
    place, count = tf.convert_to_tensor(place, tf.int64), tf.cast(count, tf.int64)
    # Below 8 the digits are too few to mix well.
    base = tf.maximum(tf.cast(tf.math.ceil(tf.sqrt(tf.cast(count, tf.float64))), tf.int64), 8)
    shape = tf.shape(place)
    base, count, state = (
        tf.reshape(tf.broadcast_to(part, shape), [-1]) for part in (base, count, mix64(*key))
    )

    def walk(place, base, state):
        def round_(number, high, low):
            drawn = tf.bitwise.right_shift(mix64(state, number, low), _word(1))
            return number + 1, low, (high + tf.bitcast(drawn, tf.int64) % base) % base

        # A loop, not eight copies of its body: a graph this size is slow to build.
        first = (tf.constant(0, tf.int64), place // base, place % base)
        _, high, low = tf.while_loop(lambda number, *_: number < _ROUNDS, round_, first)
        return high * base + low

    def again(place):
        outside = tf.where(place >= count)  # few, after the first walk
        parts = (tf.gather_nd(part, outside) for part in (place, base, state))
        return [tf.tensor_scatter_nd_update(place, outside, walk(*parts))]

    place = walk(tf.reshape(place, [-1]), base, state)
    (place,) = tf.while_loop(
        lambda place: tf.reduce_any(place >= count), again, [place], maximum_iterations=10_000
    )
    return tf.reshape(place, shape)


def logical_streams(num_records, global_batch_size):
    """Chooses how many streams the records are dealt to.

    The largest divisor of the global batch up to ``sqrt(num_records)``, rounded up: many, so that
    as many workers can each keep records of their own; and long, so that batches differ.

    Args:
        num_records: `int`, records of the split.
        global_batch_size: `int`, examples per step over all replicas.

    Returns:
        `int`.

    Example:
        >>> logical_streams(1281167, 256)
        256
    """
    limit = math.isqrt(max(num_records - 1, 0)) + 1
    return max(d for d in range(1, limit + 1) if global_batch_size % d == 0)


@dataclasses.dataclass(frozen=True)
class Order:
    """Which record stands where in which step of training.

    Records are dealt to ``L = streams`` streams. Record ``k < L * (N // L)`` belongs to stream
    ``k % L`` for ever, so that a worker can keep its own records. The last ``r = N % L`` records
    float: in epoch ``e`` float ``f`` goes to stream ``(e * r + f) % L``. So every record is drawn
    once an epoch, and no two streams are ever more than one record apart. A stream is its
    records of epoch 0 in a random order, then those of epoch 1, and so on. Step ``s`` takes
    positions ``[s * b, (s + 1) * b)`` of every stream, ``b = B // L``: the rows of the global
    batch, stream after stream. A replica takes consecutive rows.

    Args:
        num_records: `int`, N.
        global_batch_size: `int`, B.
        streams: `int`, L, divides B.
        seed: `int`.
        remainder: "carry": the ``N % B`` records left at the end of an epoch open the next one;
            "drop": every epoch takes the first ``(N // B) * B`` places of a fresh order.

    Raises:
        ValueError: if a batch has more rows than there are records.

    Example:
        >>> order = Order(num_records=10, global_batch_size=4, streams=2, seed=7)
        >>> records, epochs = order.batch(0)
        >>> records.shape
        TensorShape([4])
    """

    num_records: int
    global_batch_size: int
    streams: int
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
        if self.global_batch_size % self.streams:
            raise ValueError(
                f"{self.streams} streams do not divide the global batch {self.global_batch_size}"
            )

    @property
    def steps_per_epoch(self):
        return self.num_records // self.global_batch_size

    @property
    def per_stream(self):
        """Records that belong to each stream for ever."""
        return self.num_records // self.streams

    @property
    def rows(self):
        """Rows of a batch that come from each stream."""
        return self.global_batch_size // self.streams

    def batch(self, step, first=0, last=None):
        """Returns rows `first` to `last` (exclusive; all by default) of the batch of `step`.

        Args:
            step: int64 scalar, from 0 at the start of training, or vector.
            first, last: `int`, a range of rows of the global batch.

        Returns:
            `(records, epochs)`: int64 tensors [last - first], or [steps, last - first].
        """
        row = tf.range(first, self.global_batch_size if last is None else last, dtype=tf.int64)
        position = tf.cast(step, tf.int64)[..., tf.newaxis] * self.rows + row % self.rows
        stream = tf.broadcast_to(row // self.rows, tf.shape(position))
        if self.remainder == "drop":
            places = self.steps_per_epoch * self.rows
            epochs, place = position // places, position % places
        else:
            epochs = position * self.streams // self.num_records
            # The estimate is at most one off, as a stream is at most one record off the mean.
            epochs -= tf.cast(self._start(epochs, stream) > position, tf.int64)
            epochs += tf.cast(self._start(epochs + 1, stream) <= position, tf.int64)
            place = position - self._start(epochs, stream)
        floating = self.num_records % self.streams
        number = (stream - epochs * floating) % self.streams  # of its floating record, if it has
        count = self.per_stream + tf.cast(number < floating, tf.int64)
        place = permute(place, count, self.seed, _ORDER, epochs, stream)
        own, float_ = place * self.streams + stream, self.per_stream * self.streams + number
        return tf.where(place < self.per_stream, own, float_), epochs

    def streams_of(self, first, last):
        """Returns the range of streams from which rows `first` to `last` (exclusive) come."""
        return first // self.rows, -(-last // self.rows)

    def owned(self, first, last):
        """Returns the records that rows `first` to `last` can ever draw, in record order."""
        first, last = self.streams_of(first, last)
        records = np.arange(self.num_records, dtype=np.int64)
        stream = records % self.streams
        mine = (stream >= first) & (stream < last)
        mine[self.per_stream * self.streams :] = True  # floating records visit every stream
        return records[mine]

    def _start(self, epoch, stream):
        """Position at which `epoch` begins in `stream`."""
        floats = epoch * (self.num_records % self.streams)
        return epoch * self.per_stream + (floats - stream + self.streams - 1) // self.streams
