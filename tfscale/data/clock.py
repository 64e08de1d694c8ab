"""How long the consumer of a dataset waited for it."""

import threading

import numpy as np
import tensorflow as tf

_lock = threading.Lock()
_waited = 0.0


def waited_seconds():
    """Returns the seconds for which this process has waited for input since it started.

    Example:
        >>> waited_seconds() >= 0
        True
    """
    return _waited


def _add(seconds):
    global _waited
    with _lock:
        _waited += float(seconds)
    return np.int64(0)


def timed(dataset):
    """Adds the time that each element kept its consumer waiting to `waited_seconds()`.

    Must be the last stage, after `prefetch`: what a buffer hands over at once is not waited for.

    Args:
        dataset: `tf.data.Dataset`.

    Returns:
        A dataset of the same elements.

    Example:
        >>> [int(x) for x in timed(tf.data.Dataset.range(2))]
        [0, 1]
    """
    # zip asks its inputs one after the other, so that the two readings enclose the wait.
    now = tf.data.Dataset.counter().map(lambda _: tf.timestamp())
    cardinality = dataset.cardinality()

    def account(before, element, after):
        done = tf.numpy_function(_add, [after - before], tf.int64)
        with tf.control_dependencies([done]):
            return tf.nest.map_structure(tf.identity, element)

    result = tf.data.Dataset.zip((now, dataset, now)).map(account)
    if cardinality == tf.data.UNKNOWN_CARDINALITY:
        return result
    return result.apply(tf.data.experimental.assert_cardinality(cardinality))
