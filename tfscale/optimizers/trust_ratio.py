"""The trust ratio of LARS, as a function of tensors."""

import tensorflow as tf

from tfscale.optimizers import arguments


def trust_ratio(
    weight, gradient, weight_decay=0.0, trust_coefficient=1e-3, epsilon=0.0, trust_clip=None
):
    """Returns the factor by which LARS multiplies a variable's learning rate.

    ```
    ratio = trust_coefficient * |w| / (|g| + weight_decay * |w| + epsilon)
    ratio = 1                           if |w| = 0 or |g| = 0
    ratio = clip(ratio, min, max)       if trust_clip is given
    ```

    Args:
        weight: tensor of any shape.
        gradient: tensor of the same shape: the gradient of the global batch, without decay.
        weight_decay: `float`. Defaults to 0.0.
        trust_coefficient: `float`, eta in the paper. Defaults to 1e-3.
        epsilon: `float`, added to the denominator. Defaults to 0.0.
        trust_clip: `None`, or the pair `(min, max)`. Defaults to `None`.

    Returns:
        A scalar tensor, float64 for a float64 weight and float32 for every other.

    Example:

    >>> import tensorflow as tf
    >>> ratio = trust_ratio(tf.constant([3.0, 4.0]), tf.constant([0.6, 0.8]))
    >>> print(f"{ratio.numpy():.4f}")
    0.0050

    Reference: You, Gitman, Ginsburg 2017, https://arxiv.org/abs/1708.03888, equation 6.
    """
    # Half precision overflows in a sum of squares already at |w| = 256 (float16).
    dtype = compute_dtype(weight.dtype)
    weight_norm = tf.norm(tf.cast(weight, dtype))
    gradient_norm = tf.norm(tf.cast(gradient, dtype))
    denominator = gradient_norm + weight_decay * weight_norm + epsilon
    # A variable that starts at zero would otherwise never move (ratio 0), and one without a
    # gradient would move by trust_coefficient / weight_decay or by 0/0.
    usable = (weight_norm > 0) & (gradient_norm > 0)
    ratio = trust_coefficient * weight_norm / tf.where(usable, denominator, 1.0)
    ratio = tf.where(usable, ratio, 1.0)
    if trust_clip is not None:
        ratio = tf.clip_by_value(ratio, *trust_clip)
    return ratio


def compute_dtype(dtype):
    """Returns the dtype of an update of a variable: float32 for half precision, else its own."""
    dtype = tf.as_dtype(dtype)
    return tf.float32 if dtype.size < 4 else dtype


def trust_bounds(trust_clip):
    """Returns the pair `(min, max)` that a `trust_clip` argument means, or `None`."""
    if trust_clip is None:
        return None
    pair = trust_clip if isinstance(trust_clip, (list, tuple)) else (0.0, trust_clip)
    if len(pair) != 2:
        raise ValueError(
            f"trust_clip must be None, a number or a pair (min, max); got {trust_clip!r}."
        )
    lowest = arguments.number("trust_clip's lower bound", pair[0], at_least=0.0)
    highest = arguments.number("trust_clip's upper bound", pair[1], above=0.0)
    if lowest > highest:
        raise ValueError(
            f"trust_clip must be (min, max) with min <= max; got {trust_clip!r}: "
            f"did you mean ({highest}, {lowest})?"
        )
    return lowest, highest
