"""When things happened in a step that TensorFlow ran: measured in the graph, read after it."""

import time

import tensorflow as tf

from tfscale.distribute import _tf_private


class Timeline:
    """Points in time of one traced step, under names.

    While a step is traced, `mark` notes a point; `store`, once at its end, keeps them all. After
    each run `read` gives the times of the last run.

    A point is passed when its tensors are there: one element of each is brought to the host,
    since an operation that is only launched on an accelerator has not ended yet.

    Args:
        device: `str`, device of the host that keeps the times.
    """

    def __init__(self, device="CPU:0"):
        self._device = device
        self._names, self._times, self._variable = [], [], None

    def mark(self, name, tensors):
        """Notes when all `tensors` are computed, under `name`."""
        passed = []
        for tensor in tensors:
            with tf.device(tensor.device or None):
                first = tf.reshape(tensor, [-1])[:1]
            with tf.device(self._device):
                passed.append(tf.identity(first))
        with tf.device(self._device):
            # Not tf.timestamp: being stateful, each would wait for the one before.
            now = tf.numpy_function(_now, passed, tf.float64, stateful=False)
        self._names.append(name)
        self._times.append(tf.ensure_shape(now, []))

    def store(self):
        """Keeps the times of this run; called once, at the end of the step that is traced."""
        with tf.device(self._device):
            times = tf.stack(self._times)
            if self._variable is None:
                self._variable = _tf_private.raw_variable(
                    [0.0] * len(self._times), self._device, tf.float64
                )
            self._variable.assign(times)
        self._times = []

    def read(self):
        """Returns ``{name: seconds since 1970}`` of the last run; empty before the first."""
        if self._variable is None:
            return {}
        times = self._variable.numpy()
        if not times[0]:
            return {}
        return dict(zip(self._names, times.tolist(), strict=True))


def _now(*unused_tensors):
    return time.time()
