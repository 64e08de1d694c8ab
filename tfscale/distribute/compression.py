"""How float32 vectors travel between workers: as they are, or as bfloat16 or float16.

A compressor sums vectors over a group of workers. It is applied to the cross-worker hop only;
inside a worker gradients stay in float32.
"""

import tensorflow as tf


class Uncompressed:
    """Float32 (or any other dtype) on the wire.

    This class is also the protocol: a compressor has these three methods and these attributes.

    Attributes:
        name: `str`, part of what the workers agree on.
        block: `int`; the vectors given to it have a length that is a multiple of
            ``group.size * block``.
        lossy: `bool`, whether the wire holds less than float32 does. A mean is then divided
            before it travels, so that its sum cannot overflow on the way.
    """

    name = "none"
    block = 1
    lossy = False

    def all_reduce(self, x, group):
        """Returns the sum of the members' vectors ``x``."""
        return group.all_reduce(x)

    def reduce_scatter(self, x, group):
        """Returns this member's part (the rank-th of ``group.size``) of the sum of ``x``."""
        # CollectiveReduceScatterV2 has no runtime on CPU: all-to-all and a local sum.
        return tf.reduce_sum(group.all_to_all(tf.reshape(x, [group.size, -1])), 0)

    def all_gather(self, x, group):
        """Returns the members' vectors ``x`` concatenated by rank."""
        return group.all_gather(x)


class _HalfPrecision(Uncompressed):
    """Sixteen bits on the wire; sums in `accumulate_dtype`.

    With float32 sums a vector is exchanged by all-to-all, summed, and gathered again: two
    roundings per element, and as many bytes as a ring in the wire dtype. With sums in the wire
    dtype it is one ring, whose rounding error grows with the number of workers.

    Args:
        accumulate_dtype: ``"float32"``, or the wire dtype's own name.

    Raises:
        ValueError: for another `accumulate_dtype`.
    """

    dtype = None
    block = 2  # two values to a 32-bit word
    lossy = True

    def __init__(self, accumulate_dtype="float32"):
        if accumulate_dtype not in ("float32", self.dtype.name):
            raise ValueError(
                f"accumulate_dtype must be 'float32' or the wire dtype {self.dtype.name!r}, "
                f"got {accumulate_dtype!r}"
            )
        self._float32_sums = accumulate_dtype == "float32"
        self.name = self.dtype.name + ("" if self._float32_sums else " sums")

    def encode(self, x):
        """Returns ``x`` (float32 ``[rows, m]``, m even) as 32-bit words, ``[rows, words]``."""
        rows, m = x.shape
        return tf.bitcast(tf.reshape(tf.cast(x, self.dtype), [rows, m // 2, 2]), tf.float32)

    def decode(self, words):
        """Returns the float32 ``[rows, m]`` that `encode` was given, rounded."""
        halves = tf.bitcast(words, self.dtype)
        return tf.cast(tf.reshape(halves, [words.shape[0], -1]), tf.float32)

    def all_reduce(self, x, group):
        if group.size == 1:
            return tf.identity(x)
        if not self._float32_sums:
            return tf.cast(group.all_reduce(tf.cast(x, self.dtype)), x.dtype)
        return self.all_gather(self.reduce_scatter(x, group), group)

    def reduce_scatter(self, x, group):
        if group.size == 1:
            return tf.identity(x)
        rows = tf.reshape(x, [group.size, -1])
        if not self._float32_sums:
            received = group.all_to_all(tf.cast(rows, self.dtype))
            return tf.cast(tf.reduce_sum(received, 0), tf.float32)
        return tf.reduce_sum(self.decode(group.all_to_all(self.encode(rows))), 0)

    def all_gather(self, x, group):
        if group.size == 1:
            return tf.identity(x)
        # As words: the gather kernel takes neither bfloat16 nor bytes.
        gathered = group.all_gather(self.encode(x[tf.newaxis]))
        return tf.reshape(self.decode(gathered), [-1])


class BFloat16(_HalfPrecision):
    """bfloat16 on the wire: the range of float32, 8 bits of mantissa (relative error 2^-9).

    Args:
        accumulate_dtype: ``"float32"`` (default) or ``"bfloat16"``.
    """

    dtype = tf.bfloat16


class Float16(_HalfPrecision):
    """float16 on the wire: 11 bits of mantissa (relative error 2^-12).

    float16 covers 6e-8 to 65504 only. With float32 sums each message carries a power of two
    that lifts its largest value to just below 2^15, so neither 3e4 nor 1e-7 is lost. Infinity and
    NaN stay what they are, so that a loss scaler sees them.
    With float16 sums there is no such factor: a sum beyond 65504 becomes infinite.

    Args:
        accumulate_dtype: ``"float32"`` (default) or ``"float16"``.
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


def compressor(compression, accumulate_dtype="float32"):
    """Returns the compressor that a user's argument names.

    Args:
        compression: None, ``"none"`` or ``"float32"`` for none; ``"bfloat16"``; ``"float16"``;
            or an object with the methods of `Uncompressed`.
        accumulate_dtype: ``"float32"`` or the wire dtype's name.

    Raises:
        ValueError: for any other name.

    Example:
        >>> compressor("bfloat16").name
        'bfloat16'
    """
    if compression in (None, "none", "float32"):
        if accumulate_dtype != "float32":
            raise ValueError(
                f"accumulate_dtype {accumulate_dtype!r} needs a compression of that dtype; "
                "without compression sums are in float32"
            )
        return Uncompressed()
    if isinstance(compression, str):
        classes = {"bfloat16": BFloat16, "float16": Float16}
        if compression not in classes:
            raise ValueError(
                f"unknown compression {compression!r}; choose None, 'bfloat16' or 'float16'"
            )
        return classes[compression](accumulate_dtype)
    if not all(hasattr(compression, name) for name in ("all_reduce", "block", "lossy", "name")):
        raise ValueError(
            f"compression must be None, 'bfloat16', 'float16' or a compressor object, "
            f"got {compression!r}"
        )
    return compression
