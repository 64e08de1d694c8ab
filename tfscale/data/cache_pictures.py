"""Decoded pictures as strings of bytes, the form in which they are kept."""

import numpy as np
import tensorflow as tf

_HEADER = 64  # bytes; so the pixels stay aligned, and are cut off without a copy
_PADDING = 16  # bytes, which the native op may read behind the pixels: RESIZE_PADDING in resize.h
UNKNOWN_ASPECT = 2


def pack(image, label):
    """Returns a picture and its label as a string: eight int64 (label, height, width), pixels,
    sixteen zero bytes.

    Args:
        image: uint8 tensor [height, width, 3].
        label: int64 scalar tensor.
    """
    shape = tf.shape(image, tf.int64)
    head = tf.concat([[label], shape[:2], tf.zeros([_HEADER // 8 - 3], tf.int64)], 0)
    head = tf.reshape(tf.bitcast(head, tf.uint8), [_HEADER])
    raw = tf.concat([head, tf.reshape(image, [-1]), tf.zeros([_PADDING], tf.uint8)], 0)
    size = tf.size(raw)
    # A serialised tensor ends with its bytes.
    return tf.strings.substr(tf.io.serialize_tensor(raw), -size, size)


def unpack(payload):
    """Returns `(image, label)` of what `pack` returned."""
    label, height, width = tf.unstack(
        tf.io.decode_raw(tf.strings.substr(payload, 0, _HEADER), tf.int64)[:3], 3
    )
    pixels = tf.io.decode_raw(payload, tf.uint8)[_HEADER:-_PADDING]
    return tf.ensure_shape(tf.reshape(pixels, [height, width, 3]), [None, None, 3]), label


def shapes(payloads):
    """Returns the heights and widths, int64 [n, 2], of what `pack` returned; of "", zeros."""
    return tf.io.decode_raw(payloads, tf.int64, fixed_length=_HEADER)[:, 1:3]


def sizes(heights, widths, short_side):
    """Returns the bytes of pictures that are packed when `jpeg.shrink` has reduced them.

    Where the size of a picture is not known, 2:1 is taken, more than most have: rather too few
    pictures kept than too many.

    Args:
        heights, widths: int64 arrays; 0 for unknown.
        short_side: `int`.

    Returns:
        int64 array.

    Example:
        >>> sizes([0, 6, 12], [0, 8, 16], 6).tolist()
        [296, 224, 224]
    """
    shapes = np.stack([heights, widths], 1).astype(np.float64)
    shapes[(shapes <= 0).any(1)] = short_side, UNKNOWN_ASPECT * short_side
    scale = np.minimum(short_side / shapes.min(1, keepdims=True), 1)
    return _HEADER + _PADDING + 3 * np.round(shapes * scale).astype(np.int64).prod(1)
