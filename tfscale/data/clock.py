"""How long the consumer of a dataset waited for it."""

import threading
import time

import numpy as np
import tensorflow as tf

KEPT = 2**16  # arrivals

_lock = threading.Lock()
_waited = 0.0


def waited_seconds():
    """Returns the seconds for which a dataset of this process has kept its reader waiting.

    The reader may be a thread that runs ahead of the training step: see `Deliveries` for what
    the step itself has waited.

    Example:
        >>> waited_seconds() >= 0
        True
    """
    return _waited


class Deliveries:
    """When each element of an iterator over a training dataset was handed over.

    Attributes:
        per_step: `int`, elements that a step takes.
        count: `int`, handed over so far.
    """

    def __init__(self, per_step):
        self.per_step, self.count = per_step, 0
        self._times = np.full([KEPT], -np.inf)

    def add(self, when):
        self._times[self.count % KEPT] = when
        self.count += 1

    def times(self, first, last):
        """Returns when elements `first` to `last` - 1 came; -inf where that is forgotten."""
        numbers = np.arange(first, last)
        return np.where(numbers < self.count - KEPT, -np.inf, self._times[numbers % KEPT])


_deliveries = None


def deliveries():
    """Returns the `Deliveries` of the training iterator that was read last; None before."""
    return _deliveries


def blocked_seconds(begin, end, arrivals):
    """How long steps waited that ran from `begin` to `end`, if all computed equally long.

    With computing time S, step i begins at ``t[i] = max(end of step i - 1, arrivals[i])`` and
    ends at ``t[i] + S``; S is such that the last one ends at `end`. What is not computing is
    waiting: ``end - begin - len(arrivals) * S``.

    Args:
        begin, end: `float`, seconds.
        arrivals: ascending `list` of `float`: when the input of each step was there.

    Returns:
        `float`, seconds.

    Example:
        >>> round(blocked_seconds(0.0, 10.0, [1.0, 6.0]), 3)  # S = 4
        2.0
    """
    steps, arrivals = len(arrivals), [min(max(a, begin), end) for a in arrivals]
    # Step i begins when its input is there, or when the i steps before it are done: the end is
    # the latest of arrivals[i] + (steps - i) * S and begin + steps * S.
    computing = min(
        [(end - begin) / steps, *((end - a) / (steps - i) for i, a in enumerate(arrivals))]
    )
    return float(end - begin - steps * computing)


def timed(dataset, per_step=1):
    """Adds the time that each element kept its consumer waiting to `waited_seconds()`.

    Must be the last stage, after `prefetch`: what a buffer hands over at once is not waited for.
    Of an endless dataset, one for training, the times are kept for `deliveries()` too.

    Args:
        dataset: `tf.data.Dataset`.
        per_step: `int`, elements that a step of this process takes: its replicas, where each
            has an element of its own. Defaults to 1.

    Returns:
        A dataset of the same elements.

    Example:
        >>> [int(x) for x in timed(tf.data.Dataset.range(2))]
        [0, 1]
    """
    # zip asks its inputs one after the other, so that the two readings enclose the wait.
    numbers = tf.data.Dataset.counter()
    now = numbers.map(lambda _: tf.timestamp())
    cardinality = dataset.cardinality()
    training = cardinality == tf.data.INFINITE_CARDINALITY
    iterators = {}

    def add(number, seconds):
        global _waited, _deliveries
        with _lock:
            _waited += float(seconds)
            if training:
                if number == 0:
                    iterators["newest"] = Deliveries(per_step)
                _deliveries = iterators["newest"]
                _deliveries.add(time.perf_counter())
        return np.int64(0)

    def account(number, before, element, after):
        done = tf.numpy_function(add, [number, after - before], tf.int64)
        with tf.control_dependencies([done]):
            return tf.nest.map_structure(tf.identity, element)

    result = tf.data.Dataset.zip((numbers, now, dataset, now)).map(account)
    if cardinality == tf.data.UNKNOWN_CARDINALITY:
        return result
    return result.apply(tf.data.experimental.assert_cardinality(cardinality))
