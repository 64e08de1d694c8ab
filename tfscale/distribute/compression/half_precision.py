"""Sixteen bits on the wire: bfloat16 and float16."""

import tensorflow as tf

from tfscale.distribute.compression import protocol


class _HalfPrecision(protocol.Uncompressed):
    """Sixteen bits on the wire; sums in `accumulate_dtype`.

    With float32 sums a vector is exchanged by all-to-all, summed, and gathered again: two
    roundings per element, and as many bytes as a ring in the wire dtype. With sums in the wire
    dtype it is one ring, which rounds once for each worker, but loads every connection evenly and
    so fills a slow link better.

    Args:
        accumulate_dtype: None for the default, ``"float32"``, or the wire dtype's own name.

    Raises:
        ValueError: for another `accumulate_dtype`.
    """

    dtype = None
    block = 2  # two values to a 32-bit word
    lossy = True
    # Groups up to this size sum in the wire dtype where no `accumulate_dtype` is given.
    narrow_up_to = 1

    def __init__(self, accumulate_dtype=None):
        super().__init__()
        if accumulate_dtype not in (None, "float32", self.dtype.name):
            raise ValueError(
                f"accumulate_dtype must be None, 'float32' or the wire dtype {self.dtype.name!r}, "
                f"got {accumulate_dtype!r}"
            )
        self._accumulate_dtype = accumulate_dtype
        self.name = self.dtype.name + (f", sums in {accumulate_dtype}" if accumulate_dtype else "")

    def sums_in_float32(self, workers):
        """Whether a group of that many workers adds up in float32."""
        if self._accumulate_dtype is None:
            return workers > self.narrow_up_to
        return self._accumulate_dtype == "float32"

    def encode(self, x):
        """Returns ``x`` (float32 ``[rows, m]``, m even) as 32-bit words, ``[rows, words]``."""
        rows, m = x.shape
        return tf.bitcast(tf.reshape(tf.cast(x, self.dtype), [rows, m // 2, 2]), tf.float32)

    def decode(self, words):
        """Returns the float32 ``[rows, m]`` that `encode` was given, rounded."""
        halves = tf.bitcast(words, self.dtype)
        return tf.cast(tf.reshape(halves, [words.shape[0], -1]), tf.float32)

    def bytes_per_element(self, workers):
        """Returns the bytes that one of `workers` sends per element: ``4 (N - 1) / N``."""
        return 2 * protocol.ring_share(workers)

    def all_reduce(self, x, group, state=()):
        if group.size == 1:
            total = tf.identity(x)
        elif self.sums_in_float32(group.size):
            total = self.all_gather(self.reduce_scatter(x, group), group)
        else:
            total = tf.cast(group.all_reduce(tf.cast(x, self.dtype)), x.dtype)
        return protocol.Reduced(total, (), tf.constant(True))

    def reduce_scatter(self, x, group):
        if group.size == 1:
            return tf.identity(x)
        rows = tf.reshape(x, [group.size, -1])
        if not self.sums_in_float32(group.size):
            received = group.all_to_all(tf.cast(rows, self.dtype))
            return tf.cast(tf.reduce_sum(received, 0), tf.float32)
        return tf.reduce_sum(self.decode(group.all_to_all(self.encode(rows))), 0)

    def all_gather(self, x, group):
        if group.size == 1:
            return tf.identity(x)
        # As words: the gather kernel takes neither bfloat16 nor bytes.
        gathered = group.exchange(self.encode(x[tf.newaxis]))
        return tf.reshape(self.decode(gathered), [-1])


class BFloat16(_HalfPrecision):
    """bfloat16 on the wire: the range of float32, 8 bits of mantissa (relative error 2^-9).

    Args:
        accumulate_dtype: ``"float32"``, ``"bfloat16"``, or None (default): bfloat16 up to eight
            workers, where its error is hardly larger (at four workers 3e-3 of the sum's norm,
            against 2.4e-3), and float32 above.

    Example:
        >>> BFloat16().bytes_per_element(workers=4)
        3.0
    """

    dtype = tf.bfloat16
    narrow_up_to = 8


class Float16(_HalfPrecision):
    """float16 on the wire: 11 bits of mantissa (relative error 2^-12).

    float16 covers 6e-8 to 65504 only. With float32 sums each message carries a power of two
    that lifts its largest value to just below 2^15, so neither 3e4 nor 1e-7 is lost. Infinity and
    NaN stay what they are, so that a loss scaler sees them.
    With float16 sums there is no such factor: a sum beyond 65504 becomes infinite.

    Args:
        accumulate_dtype: None or ``"float32"`` (default), or ``"float16"``.

    Example:
        >>> Float16("float16").name
        'float16 sums'
    """

    dtype = tf.float16

    def encode(self, x):
        scale = _power_of_two(tf.reduce_max(tf.abs(x), 1, keepdims=True))
        return tf.concat([super().encode(x * scale), scale], 1)

    def decode(self, words):
        return super().decode(words[:, :-1]) / words[:, -1:]


def _power_of_two(x):
    """Returns the power of two that lifts positive float32 `x` into [2^14, 2^15)."""
    exponent = tf.bitwise.right_shift(tf.bitcast(x, tf.int32), 23)  # biased by 127
    # Zero would ask for more, infinity for less than a float32 holds.
    lifted = tf.clip_by_value(127 + 14 + 127 - exponent, 1, 254)
    return tf.bitcast(tf.bitwise.left_shift(lifted, 23), tf.float32)
