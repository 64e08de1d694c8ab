"""The small datasets that carry batches to each device, without autotuning.

tf.distribute makes one for every local device, with options of its own. Deleting an autotuned
iterator can take most of a minute in which the whole process stands still, since its tuning
thread sleeps through being cancelled (seen in TensorFlow 2.20 at the end of `fit`); and there is
nothing to tune in a prefetch of fixed size.
"""

import functools

import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops


def leave_untuned():
    """Makes tf.distribute's per-device datasets untuned; a second call changes nothing."""
    stock = multi_device_iterator_ops._create_device_dataset
    if hasattr(stock, "_tfscale_stock"):
        return
    options = tf.data.Options()
    options.autotune.enabled = False

    @functools.wraps(stock)
    def create_device_dataset(*args, **kwargs):
        return stock(*args, **kwargs).with_options(options)

    create_device_dataset._tfscale_stock = stock
    multi_device_iterator_ops._create_device_dataset = create_device_dataset
