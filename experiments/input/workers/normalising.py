"""uint8 to float32 with the mean and the spread of ImageNet."""

import numpy as np
import tensorflow as tf

MEAN = (123.675, 116.28, 103.53)
SPREAD = (58.395, 57.12, 57.375)


def normalise(images):
    """Returns ``(images - MEAN) / SPREAD`` of uint8 [..., height, width, 3].

    The constants have the full size of a picture: to stretch three numbers over it costs more
    than the arithmetic.
    """
    shape = images.shape[-3:]
    scale = np.broadcast_to(1 / np.float32(SPREAD), shape)
    shift = np.broadcast_to(-np.float32(MEAN) / np.float32(SPREAD), shape)
    return tf.cast(images, tf.float32) * tf.constant(scale) + tf.constant(shift)
