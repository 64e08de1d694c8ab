"""`TopK`: only the largest values travel, each with its position; the rest waits in a residual."""

import tensorflow as tf

from tfscale.distribute.compression import protocol, selection


class TopK(protocol.Uncompressed):
    """The k values of largest magnitude on the wire, k a fixed share of the vector.

    ::

        u = momentum * velocity + x                  # u = x without momentum
        y = u + residual
        S = positions of the k largest |y|
        total     = sum over the members of y on S, 0 elsewhere
        residual' = y, but 0 on S
        velocity' = u                                # with factor masking: but 0 on S

    Each member sends one message, k values and k positions, and adds up all members' messages.
    The law of the residual, ``y - residual' = what was sent``, holds to the bit; `total` is its
    sum in float32, by rank on every member alike.

    Where the messages would be no shorter than the vector (``k * workers >= n``: a large ratio
    for many workers, or a tiny vector) the whole vector travels instead, as float32. Then nothing
    is left in the residual, and the velocity is kept whole; so ``TopK(1.0, momentum=m)`` is plain
    momentum.

    With `momentum`, the velocity lives here and the optimizer's own momentum must be 0: the
    momentum correction of Deep Gradient Compression. Its factor masking, against staleness, is an
    option: at the large ratios of a warm-up it takes the momentum of the values that matter, and
    on Fashion-MNIST it cost accuracy (``experiments/compression``). Few values a step are felt by
    convergence: begin with the ratios of `top_k_warmup`.

    Args:
        ratio: `float` in (0, 1], the share of a vector's values that is sent: ``k = round(ratio *
            n)``, at least 1. Defaults to 0.01.
        error_feedback: `bool`, keep what is not sent for the next step. Defaults to True; without
            it, what is not sent is lost.
        momentum: `float` in [0, 1). Defaults to 0. Needs `error_feedback`.
        min_elements: `int`; smaller tensors travel by `dense`. Defaults to 4096.
        factor_masking: `bool`, stop the velocity of what is sent. Defaults to False.

    Raises:
        ValueError: for an argument out of range, momentum without error feedback, or masking
            without momentum.

    Example:
        >>> TopK(0.01).bytes_per_element(workers=4)
        0.24

    References:
        Lin et al., Deep Gradient Compression, 2018 (https://arxiv.org/abs/1712.01887), sections
        3.1-3.3; Shi et al., 2020 (https://arxiv.org/abs/2010.10458) for the selection.
    """

    lossy = True

    def __init__(
        self,
        ratio=0.01,
        error_feedback=True,
        momentum=0.0,
        min_elements=4096,
        factor_masking=False,
    ):
        super().__init__(momentum)
        self.ratio = checked_ratio(ratio)
        protocol.checked_error_feedback(error_feedback)
        if isinstance(min_elements, bool) or not isinstance(min_elements, int) or min_elements < 0:
            raise ValueError(f"min_elements must be an int >= 0, got {min_elements!r}")
        if self.momentum and not error_feedback:
            raise ValueError(
                f"momentum {momentum!r} needs error_feedback=True: without a residual, what the "
                "velocity holds back would be lost"
            )
        if not isinstance(factor_masking, bool):
            raise ValueError(f"factor_masking must be True or False, got {factor_masking!r}")
        if factor_masking and not self.momentum:
            raise ValueError("factor_masking=True stops a velocity, and momentum=0 has none")
        self.min_elements = min_elements
        self.factor_masking = factor_masking
        residual = ("residual",) if error_feedback else ()
        self.slots = residual + (("velocity",) if self.momentum else ())
        self.name = (
            f"topk ratio {self.ratio!r} momentum {self.momentum!r} min_elements {min_elements}"
            + ("" if error_feedback else " without error feedback")
            + (" factor masking" if factor_masking else "")
        )

    @property
    def dense(self):
        return protocol.Uncompressed(self.momentum)

    def bytes_per_element(self, workers):
        """Returns the bytes that one of N workers sends per element.

        ``8 * ratio * (N - 1)`` for 4 bytes of value and 4 of position, each passed on by all but
        one; or ``8 (N - 1) / N`` where ``ratio * N >= 1``.
        """
        return 8 * min(self.ratio, 1 / workers) * (workers - 1)

    def all_reduce(self, x, group, state=()):
        n = x.shape[0]
        k = max(1, round(self.ratio * n))
        given = self.momentum * state[1] + x if self.momentum else x
        # Keeps TensorFlow from making one sum of both additions, in an order of its own.
        given = tf.ensure_shape(given, x.shape)
        y = given + state[0] if self.slots else given
        if group.size == 1 or k * group.size >= n:
            return self._whole(y, given, group)
        sent = selection.largest_magnitudes(y, k)
        values = tf.gather(y, sent)
        message = tf.concat([values, tf.bitcast(sent, tf.float32)], 0)
        messages = tf.reshape(group.exchange(message), [group.size, 2, k])
        values, positions = messages[:, 0], tf.bitcast(messages[:, 1], tf.int32)
        on_gpu = "GPU" in y.device.upper()
        total = (sum_by_member if on_gpu else sum_at_once)(values, positions, n)
        velocity = _masked(given, sent) if self.factor_masking else given
        state = (_masked(y, sent), velocity)[: len(self.slots)] if self.slots else ()
        received = tf.gather(total, tf.reshape(positions, [-1]))
        return protocol.Reduced(total, state, self.all_finite(received))

    def _whole(self, y, given, group):
        total = group.all_reduce(y)
        state = (tf.zeros_like(y), given)[: len(self.slots)]
        return protocol.Reduced(total, state, self.all_finite(total))


def sum_at_once(values, positions, n):
    """Returns the sum, ``[n]``, of the members' ``[size, k]`` values at their positions."""
    values, positions = tf.reshape(values, [-1]), tf.reshape(positions, [-1])
    return tf.ensure_shape(tf.math.unsorted_segment_sum(values, positions, n), [n])


def sum_by_member(values, positions, n):
    """As `sum_at_once`, in the order of the members also where a kernel adds in any order.

    A GPU adds several values of one position by atomic operations. Their order, and with it the
    last bit, would differ from worker to worker. No member sends a position twice.
    """
    total = tf.zeros([n])
    for row, places in zip(tf.unstack(values), tf.unstack(positions), strict=True):
        total = tf.tensor_scatter_nd_add(total, places[:, tf.newaxis], row)
    return total


def top_k_warmup(ratio, steps=4, start=0.25):
    """Returns ratios that fall exponentially from `start` to `ratio`: ``steps + 1`` of them.

    ``start * (ratio / start) ** (i / steps)`` for i from 0 to `steps`.

    Args:
        ratio: `float`, the ratio that is meant to last.
        steps: `int`, how many epochs (or phases of any kind) to warm up for. Defaults to 4.
        start: `float`, the first ratio. Defaults to 0.25.

    Raises:
        ValueError: for an argument out of range, or a start below `ratio`.

    Example:
        >>> [round(1 - r, 4) for r in top_k_warmup(0.001)]
        [0.75, 0.9371, 0.9842, 0.996, 0.999]

    References:
        Lin et al., Deep Gradient Compression, 2018 (https://arxiv.org/abs/1712.01887), section
        3.3: sparsity 75 %, 93.75 %, 98.4375 %, 99.6 %, 99.9 %.
    """
    ratio, start = checked_ratio(ratio), checked_ratio(start, "start")
    if start < ratio:
        raise ValueError(f"start must be at least ratio, got start {start} and ratio {ratio}")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise ValueError(f"steps must be an int >= 0, got {steps!r}")
    return [start * (ratio / start) ** (i / steps) for i in range(steps)] + [ratio]


def checked_ratio(ratio, name="ratio"):
    """Returns `ratio` as a float; raises ValueError unless it is in (0, 1]."""
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1:
        raise ValueError(f"{name} must be a number in (0, 1], got {ratio!r}")
    return float(ratio)


def _masked(x, positions):
    # The last reader of x: the kernel then writes into x's own memory.
    zeros = tf.zeros(positions.shape, x.dtype)
    return tf.tensor_scatter_nd_update(x, positions[:, tf.newaxis], zeros)
