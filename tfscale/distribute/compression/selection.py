"""The k largest magnitudes of a vector, found by counting, without a sort.

MSTopK (Shi et al., 2020, https://arxiv.org/abs/2010.10458) bisects for a threshold with nothing
but counts, and fills up to exactly k with a contiguous slice of what lies between its two best
thresholds. Here a round counts into many bins at once: the bits of a non-negative float32, read
as an integer, are ordered as the floats are (infinity above every number, NaN above infinity), so
three histograms of 11, 10 and 10 bits are a bisection of 31 rounds. They end at the exact k-th
magnitude, and what is left between the two thresholds are values equal to it.

What costs time is passing over the whole vector, so only one pass does: a histogram of a small
sample gives a threshold that some more than k are above, one pass takes those, and the exact
search is among them. A sample that misled costs a second pass, never a wrong count.
"""

import tensorflow as tf

# Shorter vectors are searched whole; a sample would save nothing.
_SAMPLED_FROM = 1 << 16
# One cache line of 16 floats is read out of every 17. Not of every 16: channels come in powers of
# two, and the sample would see the same ones in every row.
_LINE = 16
_ROW = 17 * _LINE
# How many standard deviations more than the expected hits the sample's threshold aims at. Ten of
# independent samples are 2.5 of a sample whose cache lines are each of one magnitude.
_MARGIN = 10.0
# The exponent and 5 bits of mantissa: thresholds 3 % apart.
_COARSE_BITS = 13
_SEED = 1


def largest_magnitudes(x, k):
    """Returns the positions of the `k` values of largest magnitude, in increasing order.

    NaN counts as larger than infinity. Of values equal to the k-th a contiguous slice is taken,
    at an offset that is a function of the values. The same `x` always gives the same positions.

    Args:
        x: float32 ``[n]``, n known.
        k: `int`, from 1 to n.

    Returns:
        int32 ``[k]``, no position twice.

    Example:
        >>> largest_magnitudes(tf.constant([1.0, -3.0, 0.0, 2.0]), 2).numpy()
        array([1, 3], dtype=int32)
    """
    n = x.shape[0]
    if n < _SAMPLED_FROM:
        kept = tf.where(_kept(_magnitude_bits(x), k))
        return tf.cast(tf.reshape(kept, [k]), tf.int32)
    candidates = _candidates(x, k)
    kept = _kept(_magnitude_bits(tf.gather(x, candidates)), k)
    return tf.ensure_shape(tf.boolean_mask(candidates, kept), [k])


def _candidates(x, k):
    """Returns positions, int32 ``[at least k]``, among which the k largest magnitudes are."""
    sampled = tf.reshape(x[: x.shape[0] // _ROW * _ROW], [-1, _ROW])[:, :_LINE]
    sampled = _magnitude_bits(tf.reshape(sampled, [-1]))
    expected = k * sampled.shape[0] / x.shape[0]
    aim = min(round(expected + _MARGIN * expected**0.5), sampled.shape[0])
    candidates = _at_least(x, _coarse_threshold(sampled, aim))
    return tf.cond(
        tf.size(candidates) >= k,
        lambda: candidates,
        lambda: _at_least(x, _coarse_threshold(_magnitude_bits(x), k)),
    )


def _at_least(x, threshold):
    """Returns the positions (int32) of magnitudes at or above a threshold given as bits."""
    # As integers: no comparison of floats is True for NaN, and "not below" is optimised away.
    return tf.cast(tf.reshape(tf.where(_magnitude_bits(x) >= threshold), [-1]), tf.int32)


def _kept(bits, k):
    """Returns the mask of exactly `k` largest of `bits` (int32 ``[m]``, not negative)."""
    kth, missing = tf.constant(0), tf.constant(k)
    for width, shift in ((11, 20), (10, 10), (10, 0)):
        digits = tf.bitwise.right_shift(bits, shift)
        # Values that differ in the digits before fall outside the bins, and are not counted.
        bins = tf.minimum(tf.bitwise.bitwise_xor(digits, kth), 1 << width) if shift < 20 else digits
        digit, missing = _digit_of_kth(bins, missing, 1 << width)
        kth = kth + digit
        kth = tf.bitwise.left_shift(kth, 10) if shift else kth
    equal = bits == kth
    rank = tf.cumsum(tf.cast(equal, tf.int32))
    offset = tf.random.stateless_uniform(
        [], tf.stack([_SEED, kth]), 0, rank[-1] - missing + 1, tf.int32
    )
    in_slice = (rank > offset) & (rank <= offset + missing)
    return (bits > kth) | (equal & in_slice)


def _coarse_threshold(bits, k):
    """Returns bits that at least `k` of `bits` are not below, and few more."""
    shift = 31 - _COARSE_BITS
    digit, _ = _digit_of_kth(tf.bitwise.right_shift(bits, shift), k, 1 << _COARSE_BITS)
    return tf.bitwise.left_shift(digit, shift)


def _digit_of_kth(digits, k, size):
    """Returns ``(the k-th largest digit, how many of that digit belong to the k)``."""
    counts = tf.raw_ops.DenseBincount(
        input=digits, size=size, weights=tf.zeros([0], tf.int32), binary_output=False
    )
    not_below = tf.cumsum(counts, reverse=True)
    digit = tf.reduce_sum(tf.cast(not_below >= k, tf.int32)) - 1
    return digit, k - (not_below[digit] - counts[digit])


def _magnitude_bits(x):
    return tf.bitwise.bitwise_and(tf.bitcast(x, tf.int32), 0x7FFFFFFF)
