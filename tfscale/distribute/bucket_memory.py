"""The state of compression inside one traced step: read by each bucket, kept when all are through.

New values are kept only if everything that travelled in the step was finite: an optimizer that
scales its loss skips such a step, and then nothing of it may have been paid. That is decided for
all buckets together, from sums that every worker has alike.
"""

import tensorflow as tf

from tfscale.distribute.error_feedback import RESIDUAL, VELOCITY


class BucketMemory:
    """The state vectors of one bucket while a step is traced.

    Args:
        state: `CompressionState`.
        plan: key of the bucket's plan in `state`.
        bucket: `int`, its number.
        tensors: indices, within the plan, of the bucket's tensors in the layout's order.
        layout: `Layout`.
        devices: local device strings.
    """

    def __init__(self, state, plan, bucket, tensors, layout, devices):
        self._state, self._plan, self._bucket = state, plan, bucket
        self._tensors, self._layout, self._devices = tensors, layout, devices
        self._updates = []  # (device, variables, new values, finite)
        self._payments = []  # (device, whether owed, residual, flag, finite)

    def reduce(self, column, x, link, compressor):
        """Returns the sum over the workers of a shard and of what was held back of it before."""
        device = self._devices[column]
        first, length = link.compressed_part(self._layout.length, compressor)
        variables = [self._vector(slot, column, first, length) for slot in compressor.slots]
        owes = None
        # What the compressor's own vectors have not taken over.
        if self.owes(column):
            if compressor.momentum:
                self._check_own_part(column, first, length)
            owed, owes, paid = self._old_residual(column)
            x = x + owed
        values = tuple(variable.read_value() for variable in variables)
        total, new, finite = link.all_reduce(x, compressor, values)
        if owes is not None and compressor.momentum:
            # Momentum was applied to it when its gradients came: it must not become velocity.
            i = compressor.slots.index(VELOCITY)
            new = (*new[:i], new[i] - owed[first : first + length], *new[i + 1 :])
        if variables:
            if length < self._layout.length:
                # The compressor has seen a part of the sum; all workers have to decide alike.
                finite = tf.reduce_all(tf.math.is_finite(total))
            self._updates.append((device, variables, new, finite))
        if owes is not None:
            finite = tf.cond(
                owes, lambda: tf.reduce_all(tf.math.is_finite(total)), lambda: tf.constant(True)
            )
            self._payments.append((device, owes, *paid, finite))
        return total

    def owes(self, column):
        """Whether residuals of a shard are to be paid with a sum."""
        segments = self._segments(column, 0, self._layout.length)
        return self._state.owes(self._plan, self._bucket, column, segments)

    def keep(self, finite):
        """Keeps the new values if the scalar `finite` is true; called when all are through."""
        for device, variables, values, _ in self._updates:
            with tf.device(device):
                tf.cond(finite, lambda v=variables, n=values: _assign(v, n), lambda: False)
        for device, owes, residual, flag, _ in self._payments:
            with tf.device(device):
                zeros = [tf.zeros([self._layout.length]), tf.constant(False)]
                tf.cond(
                    tf.logical_and(finite, owes),
                    lambda v=(residual, flag), n=zeros: _assign(v, n),
                    lambda: False,
                )

    def flags(self):
        """Scalar tensors: whether what travelled was finite, one for each exchange."""
        return [finite for *_, finite in self._updates + self._payments]

    def _check_own_part(self, column, first, length):
        """Raises where others of this row of workers would take a residual for velocity."""
        rest = self._layout.length - first - length
        outside = self._segments(column, 0, first)
        outside += self._segments(column, first + length, rest)
        if self._state.is_pending(self._plan, outside):
            raise ValueError(
                "compression with momentum cannot take over, on a worker_grid, what was held back "
                "on another arrangement of workers: resume with the worker_grid of before, or "
                "without momentum in the compressor"
            )

    def _old_residual(self, column):
        """What was held back before and this worker's compressor cannot hold; zeros once paid.

        It keeps no residual, or, on a grid of workers, that of its part of the row only.

        Returns:
            ``(float32 [length], whether it is owed, (variable, its flag))``.
        """
        residual = self._vector(RESIDUAL, column, 0, self._layout.length, paid=True)
        flag = self._state.flag(self._plan, self._bucket, column, self._devices[column])
        owes = flag.read_value()
        zeros = tf.zeros([self._layout.length])
        owed = tf.cond(owes, residual.read_value, lambda: tf.identity(zeros))
        return tf.ensure_shape(owed, zeros.shape), owes, (residual, flag)

    def _vector(self, slot, column, first, length, paid=False):
        segments = self._segments(column, first, length)
        place = slot, self._plan, self._bucket, column
        return self._state.vector(*place, segments, length, self._devices[column], paid)

    def _segments(self, column, first, length):
        segments = []
        for segment in self._layout.shards[column]:
            low = max(segment.offset, first)
            high = min(segment.offset + segment.size, first + length)
            if low < high:
                start = segment.start + low - segment.offset
                segments.append((self._tensors[segment.tensor], start, high - low, low - first))
        return tuple(segments)


def memory_of(state, plan, bucket, tensors, layout, devices, compressor):
    """Returns the `BucketMemory` of a bucket, or None if it has no use for one.

    It has if `compressor` keeps a state, or if one before it has left residuals to be paid. The
    other arguments are those of `BucketMemory`.
    """
    memory = BucketMemory(state, plan, bucket, tensors, layout, devices)
    owes = any(memory.owes(column) for column in range(len(layout.shards)))
    return memory if compressor.slots or owes else None


def keep_all(memories, device):
    """Keeps the new states of a step's buckets, unless something that travelled was not finite."""
    flags = [flag for memory in memories for flag in memory.flags()]
    if flags:
        with tf.device(device):
            finite = tf.reduce_all(tf.stack(flags))
        for memory in memories:
            memory.keep(finite)


def _assign(variables, values):
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return True
