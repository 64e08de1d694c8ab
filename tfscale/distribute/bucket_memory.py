"""The state of compression inside one traced step: read by each bucket, kept when all are through.

New values are kept only if everything that travelled in the step was finite: an optimizer that
scales its loss skips such a step, and then nothing of it may have been paid. That is decided for
all buckets together, from sums that every worker has alike.
"""

import tensorflow as tf

from tfscale.distribute.error_feedback import RESIDUAL


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
        self.owes = state.owes(plan, bucket, tensors)
        self._updates = []  # (device, variables, new values, finite)
        self._payments = []  # (device, whether owed, residual, flag, finite)

    def reduce(self, column, x, link, compressor):
        """Returns the sum over the workers of a shard and of what was held back of it before."""
        device = self._devices[column]
        owes = None
        if self.owes and RESIDUAL not in compressor.slots:
            x, owes, paid = self._with_old_residual(column, x)
        first, length = link.compressed_part(self._layout.length, compressor)
        variables = [self._vector(slot, column, first, length) for slot in compressor.slots]
        values = tuple(variable.read_value() for variable in variables)
        total, new, finite = link.all_reduce(x, compressor, values)
        if variables:
            self._updates.append((device, variables, new, finite))
        if owes is not None:
            finite = tf.cond(
                owes, lambda: tf.reduce_all(tf.math.is_finite(total)), lambda: tf.constant(True)
            )
            self._payments.append((device, owes, *paid, finite))
        return total

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

    def _with_old_residual(self, column, x):
        """Adds, once, what an earlier compressor held back and the present one cannot hold."""
        residual = self._vector(RESIDUAL, column, 0, self._layout.length)
        flag = self._state.flag(self._plan, self._bucket, column, self._devices[column])
        owes = flag.read_value()
        x = tf.cond(owes, lambda: x + residual.read_value(), lambda: tf.identity(x))
        return x, owes, (residual, flag)

    def _vector(self, slot, column, first, length):
        segments = []
        for segment in self._layout.shards[column]:
            low = max(segment.offset, first)
            high = min(segment.offset + segment.size, first + length)
            if low < high:
                start = segment.start + low - segment.offset
                segments.append((self._tensors[segment.tensor], start, high - low, low - first))
        return self._state.vector(
            slot, self._plan, self._bucket, column, tuple(segments), length, self._devices[column]
        )


def memory_of(state, plan, bucket, tensors, layout, devices, compressor):
    """Returns the `BucketMemory` of a bucket, or None if it has no use for one.

    It has if `compressor` keeps a state, or if one before it has left residuals to be paid. The
    other arguments are those of `BucketMemory`.
    """
    memory = BucketMemory(state, plan, bucket, tensors, layout, devices)
    return memory if compressor.slots or memory.owes else None


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
