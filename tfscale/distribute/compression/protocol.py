"""What a compressor is, and the one that compresses nothing.

A compressor sums float32 vectors over a group of workers. It is applied to the cross-worker hop
only; inside a worker gradients stay in float32.
"""

from typing import NamedTuple

import tensorflow as tf


class Reduced(NamedTuple):
    """What one all-reduce returns.

    Attributes:
        total: float32 ``[n]``, the sum over the members, the same on all of them.
        state: tuple of float32 ``[n]``, the new state, in the order of the compressor's `slots`.
        finite: scalar `bool` tensor, the same on all members: whether all of `total` is finite.
            If not, the caller keeps its old state, since the new one may hold NaN, or lack what
            never arrived. Always True for a compressor without state.
    """

    total: tf.Tensor
    state: tuple
    finite: tf.Tensor


class Uncompressed:
    """Float32 (or any other dtype) on the wire; the base class of the compressors.

    ::

        u     = momentum * velocity + x           # u = x without momentum
        total = sum over the members of u
        velocity' = u

    This class is also the protocol: a compressor has these methods and attributes. What a lossy
    one does not send it keeps in its state, so that nothing is lost: with ``y`` what it was given
    plus what it had kept, the sum over the members of ``y - residual'`` is `total`.

    Attributes:
        name: `str` with every setting, so that the workers can agree on it.
        block: `int`; the vectors given to it have a length that is a multiple of
            ``group.size * block``.
        lossy: `bool`, whether the wire holds less than float32 does. A mean is then divided
            before it travels, so that its sum cannot overflow on the way.
        slots: tuple of `str`, the names of its state vectors: ``"residual"`` (what is still owed
            to the sum) and ``"velocity"``. All start as zeros.
        momentum: `float`; above 0 the velocity lives here, and the optimizer must have none.
        min_elements: `int`; tensors with fewer elements travel by `dense` instead.

    Args:
        momentum: `float` in [0, 1), the decay of the velocity. Defaults to 0: no velocity.

    Raises:
        ValueError: for a momentum out of range.

    Example:
        >>> Uncompressed().bytes_per_element(workers=4)
        6.0
    """

    block = 1
    lossy = False
    min_elements = 0

    def __init__(self, momentum=0.0):
        self.momentum = checked_momentum(momentum)
        self.slots = ("velocity",) if self.momentum else ()
        self.name = f"none momentum {self.momentum!r}" if self.momentum else "none"

    @property
    def dense(self):
        """The compressor for tensors smaller than `min_elements`."""
        return self

    def bytes_per_element(self, workers):
        """Returns the bytes that one of `workers` sends per element: ``8 (N - 1) / N``."""
        return 4 * ring_share(workers)

    def all_reduce(self, x, group, state=()):
        """Returns the `Reduced` sum of the members' vectors.

        Args:
            x: float32 ``[n]``, this member's vector, n a multiple of ``group.size * block``.
            group: `CollectiveGroup`.
            state: tuple of float32 ``[n]``, in the order of `slots`.
        """
        if not self.momentum:
            return Reduced(group.all_reduce(x), (), tf.constant(True))
        velocity = self.momentum * state[0] + x
        total = group.all_reduce(velocity)
        return Reduced(total, (velocity,), self.all_finite(total))

    def reduce_scatter(self, x, group):
        """Returns this member's part (the rank-th of ``group.size``) of the sum of `x`."""
        # CollectiveReduceScatterV2 has no runtime on CPU: all-to-all and a local sum.
        return tf.reduce_sum(group.all_to_all(tf.reshape(x, [group.size, -1])), 0)

    def all_gather(self, x, group):
        """Returns the members' vectors `x` concatenated by rank."""
        return group.all_gather(x)

    def all_finite(self, arrived):
        """Returns `Reduced.finite`, given values that are finite exactly if all of the total is."""
        return tf.reduce_all(tf.math.is_finite(arrived)) if self.slots else tf.constant(True)


def ring_share(workers):
    """Returns ``2 (N - 1) / N``: how often a worker sends a vector that it reduces and gathers."""
    return 2 * (workers - 1) / workers


def checked_error_feedback(error_feedback):
    """Returns `error_feedback`; raises ValueError unless it is a bool."""
    # A number was probably meant as another argument, such as the momentum.
    if not isinstance(error_feedback, bool):
        raise ValueError(f"error_feedback must be True or False, got {shown(error_feedback)}")
    return error_feedback


def shown(value):
    """Returns a value as an error message shows it: an array or tensor by its type."""
    if value is None or isinstance(value, str | int | float | tuple | list):
        return repr(value)
    return f"an object of type {type(value).__name__}"


def checked_momentum(momentum):
    """Returns `momentum` as a float; raises ValueError unless it is in [0, 1)."""
    if isinstance(momentum, bool) or not isinstance(momentum, int | float):
        raise ValueError(f"momentum must be a number in [0, 1), got {momentum!r}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be in [0, 1), got {momentum!r}")
    return float(momentum)
