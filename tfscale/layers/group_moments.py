"""Batch normalisation of one replica's share of a batch: the arithmetic, as functions of tensors.

Activations come flat: ``[positions, channels]``, or ``[positions, channels, positions]`` where the
channels are not last (see `flatten`). What crosses replicas goes through two functions that the
caller hands in: ``gather(v)`` returns the group's vectors ``[members, k]``, ``total(v)`` their sum
``[k]``.
"""

from typing import NamedTuple

import tensorflow as tf


class Moments(NamedTuple):
    """Statistics of a group's joined batch.

    ``mean + mean_low`` is the mean: the low part holds what rounding took from the high part.
    Where the mean is large against the spread (1000 and 0.01), subtracting the high part is exact
    and the low part matters.
    """

    count: tf.Tensor  # scalar: positions per channel
    mean: tf.Tensor  # [channels]
    mean_low: tf.Tensor  # [channels]
    variance: tf.Tensor  # [channels], of the population (divided by the count)


def flatten(x, axis):
    """Returns `x` flat, and the shape that takes it back by `tf.reshape`.

    The shape is the one known while tracing, wherever it is known: for an empty batch the oneDNN
    convolutions of TensorFlow 2.20 return the shape of their input, ``[0, 8, 8, 3]`` in place of
    ``[0, 6, 6, 4]``, and a replica without examples would fail in the next layer.

    Args:
        x: tensor of known rank.
        axis: `int`, the channel axis, not negative.

    Returns:
        ``(flat, shape)``: a tensor of rank 2 or 3, and a list for `tf.reshape`.
    """
    dynamic = tf.shape(x)
    shape = [dynamic[i] if size is None else size for i, size in enumerate(x.shape)]
    before, channels, after = shape[:axis], shape[axis], shape[axis + 1 :]
    flat_shape = [_product(before), channels] + ([_product(after)] if after else [])

    # Not a plain reshape: its gradient would restore the shape that was found.
    @tf.custom_gradient
    def to_flat(x):
        return tf.reshape(x, flat_shape), lambda dy: tf.reshape(dy, shape)

    return to_flat(x), shape


def _product(sizes):
    return tf.reduce_prod(tf.stack(sizes)) if sizes else 1


def group_moments(x, gather, mask=None):
    """Mean and variance of the joined batch of a group, by one exchange.

    Each replica sends ``[n, m, l, M2]`` with ``M2 = sum (x - m - l)^2``; all rows are combined by

        mean = sum n_j m_j / N,    variance = sum (M2_j + n_j (m_j - mean)^2) / N,    N = sum n_j

    so replicas may have any number of examples, and none. No squares of large numbers are
    subtracted.

    Args:
        x: flat float32 or float64 tensor of this replica.
        gather: function; see the module's docstring.
        mask: None, or bool tensor ``[positions, 1]`` for an `x` of rank 2: False positions do not
            count.

    Returns:
        `Moments`, through which no gradient flows: `normalize` has it.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances", 1979, equations 2.1.
    """
    rows = gather(_local_row(tf.stop_gradient(x), mask))
    counts, (means, lows, deviations) = rows[:, :1], tf.split(rows[:, 1:], 3, axis=1)
    count = tf.reduce_sum(counts)

    def average(values):
        return tf.math.divide_no_nan(tf.reduce_sum(values, axis=0), count)

    mean = average(counts * means)
    offsets = (means - mean) + lows
    low = average(counts * offsets)
    variance = average(deviations + counts * tf.square(offsets - low))
    return Moments(count, mean, low, variance)


def _local_row(x, mask):
    """``[n, m, l, M2]`` of one replica, a vector of 3 * channels + 1."""

    def masked(values):
        # Not a product: what lies under the mask may be inf or NaN.
        return values if mask is None else tf.where(mask, values, tf.zeros_like(values))

    channels, axes = x.shape[1], _all_but_channels(x)
    if mask is None:
        count = tf.cast(tf.size(x) // channels, x.dtype)
    else:
        count = tf.reduce_sum(tf.cast(mask, x.dtype))
    mean = tf.math.divide_no_nan(tf.reduce_sum(masked(x), axes), count)
    deviation = masked(centre(x, mean))
    low = tf.math.divide_no_nan(tf.reduce_sum(deviation, axes), count)
    # The low part is small against the spread unless the sum of x went badly wrong; the
    # difference then loses a few digits, not all.
    squares = tf.reduce_sum(tf.square(deviation), axes) - count * tf.square(low)
    row = tf.concat([[count], mean, low, tf.nn.relu(squares)], axis=0)
    return tf.ensure_shape(row, [3 * channels + 1])


def normalize(x, gamma, beta, moments, epsilon, total, mask=None):
    """``gamma (x - mean) / sqrt(variance + epsilon) + beta``, with the gradient of the group.

    The statistics depend on every ``x`` of the group, which gives, with ``h`` the normalised
    ``x``, sums over the group's joined batch and ``r = 1 / sqrt(variance + epsilon)``:

        dx = gamma r (dy - sum(dy) / N - h sum(dy h) / N)

    The two sums travel in one message. The gradients of gamma and beta are this replica's own
    sums, as those of every other weight: the optimizer adds them up. ``h`` is computed again on
    the way back, so that no float32 copy of a half precision activation is kept.

    Args:
        x: flat floating tensor of this replica, of any precision.
        gamma, beta: ``[channels]``, in the precision of the statistics, or None.
        moments: of `group_moments`.
        epsilon: `float`.
        total: function; see the module's docstring.
        mask: as in `group_moments`; masked positions are normalised but are not in the statistics.

    Returns:
        tensor of the shape and dtype of `x`.
    """
    dtype, low = moments.mean.dtype, moments.mean_low
    rstd = tf.math.rsqrt(moments.variance + epsilon)
    parameters = {
        name: value for name, value in (("gamma", gamma), ("beta", beta)) if value is not None
    }

    # On vectors as much as can be, on x as little: each operation on x is a pass over memory.
    @tf.custom_gradient
    def forward(x, *values):
        given = dict(zip(parameters, values, strict=True))
        scale = rstd * given.get("gamma", 1.0)
        y = affine(centre(x, moments.mean), scale, given.get("beta", 0.0) - low * scale)
        return tf.cast(y, x.dtype), lambda dy: backward(dy, x, *values)

    @tf.custom_gradient
    def backward(dy, x, *values):
        given = dict(zip(parameters, values, strict=True))
        dy, centred, axes = tf.cast(dy, dtype), centre(x, moments.mean), _all_but_channels(x)
        sum_dy, sum_product = tf.reduce_sum(dy, axes), tf.reduce_sum(dy * centred, axes)
        local = {"beta": sum_dy, "gamma": rstd * (sum_product - low * sum_dy)}
        sums = total(tf.concat([local["beta"], local["gamma"]], axis=0))
        mean_dy, mean_dyh = tf.split(tf.math.divide_no_nan(sums, moments.count), 2)
        slope = rstd * mean_dyh
        shift = affine(centred, slope, mean_dy - low * slope)
        if mask is not None:
            shift = tf.where(mask, shift, tf.zeros_like(shift))
        dx = affine(dy - shift, rstd * given.get("gamma", 1.0))
        return [tf.cast(dx, x.dtype)] + [local[name] for name in parameters], _refuse

    return forward(x, *parameters.values())


def _refuse(*unused):
    # Left to TensorFlow, the sums over other replicas would count as constants: a wrong number
    # and no error.
    raise NotImplementedError(
        "batch normalisation over groups of replicas has no second derivative: take the outer "
        "gradient through a model with another normalisation, or with trainable=False or "
        "training=False here, where the statistics are constants"
    )


def centre(x, mean):
    """``x - mean``, channel by channel, for a flat `x`; in the precision of the mean."""
    return tf.cast(x, mean.dtype) - _wide(tf.convert_to_tensor(mean), x)


def affine(x, scale, offset=None):
    """``x * scale + offset``, channel by channel, for a flat `x`."""
    x *= _wide(scale, x)
    return x if offset is None else x + _wide(offset, x)


def _all_but_channels(x):
    return [i for i in range(x.shape.rank) if i != 1]


def _wide(vector, x):
    """Shapes a vector over channels so that it broadcasts against a flat `x`."""
    return vector if x.shape.rank == 2 else vector[:, tf.newaxis]
