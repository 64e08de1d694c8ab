"""Which part of a picture is looked at, and whether mirrored: for all pictures of a step at once.

Only heights and widths are needed, which the index knows: nothing is decoded for it.
"""

import tensorflow as tf

from tfscale.data import order as order_lib

_DRAWS = 4  # random numbers for one attempt at a window
_FLIP = -1  # their number for the flip


def sample_crop(shapes, keys, area_range=(0.08, 1.0), aspect_range=(3 / 4, 4 / 3), attempts=10):
    """Samples windows by aspect ratio and area.

    ``aspect ~ U(aspect_range)``; ``height ~ U`` between those that give the smallest and the
    largest area of `area_range` and fit; ``width = height * aspect``; the place uniform where it
    fits. After `attempts` that do not fit, the whole picture. It is the distribution of
    `tf.image.sample_distorted_bounding_box`, with which networks published for TensorFlow were
    trained: small areas are likelier than large ones.

    Args:
        shapes: int64 tensor [n, 2]: heights and widths in pixels.
        keys: int64 tensor [n]: equal keys give equal windows.
        area_range: share of the picture's area, in (0, 1]. Defaults to (0.08, 1).
        aspect_range: width over height. Defaults to (3/4, 4/3).
        attempts: `int`. Defaults to 10.

    Returns:
        int64 tensor [n, 4]: top, left, height, width, in pixels.

    Example:
        >>> sample_crop([[100, 200]], keys=[7]).shape
        TensorShape([1, 4])

    Source: Szegedy et al., "Going deeper with convolutions", 2015, section 6.
    """
    shapes = tf.convert_to_tensor(shapes, tf.int64)
    size = tf.cast(shapes, tf.float64)[:, tf.newaxis]
    full_height, full_width = size[..., 0], size[..., 1]
    draws = uniform(keys, tf.range(attempts * _DRAWS, dtype=tf.int64))
    draws = tf.reshape(draws, [-1, attempts, _DRAWS])
    aspect = aspect_range[0] + draws[..., 0] * (aspect_range[1] - aspect_range[0])
    smallest, largest = (share * full_height * full_width for share in area_range)
    lowest = tf.round(tf.sqrt(smallest / aspect))
    highest = tf.minimum(
        tf.round(tf.sqrt(largest / aspect)),
        tf.minimum(full_height, tf.floor((full_width + 0.499) / aspect)),
    )
    lowest = tf.minimum(lowest, highest)
    height = lowest + tf.floor(draws[..., 1] * (highest - lowest + 1))
    width = tf.round(height * aspect)
    # Rounding may leave the range by a row.
    height += tf.cast(height * width < smallest, tf.float64)
    height -= tf.cast(height * width > largest, tf.float64)
    width = tf.round(height * aspect)
    area = height * width
    fits = (height >= 1) & (width >= 1) & (height <= full_height) & (width <= full_width)
    fits &= (area >= smallest) & (area <= largest)
    top = tf.floor(draws[..., 2] * (full_height - height + 1))
    left = tf.floor(draws[..., 3] * (full_width - width + 1))
    windows = tf.cast(tf.stack([top, left, height, width], -1), tf.int64)
    chosen = tf.gather(windows, tf.argmax(fits, 1), batch_dims=1)
    whole = tf.concat([tf.zeros_like(shapes), shapes], 1)
    return tf.where(tf.reduce_any(fits, 1, keepdims=True), chosen, whole)


def centre_crop(shapes, image_size, crop_fraction=0.875):
    """Returns the windows that "resize the short side, then cut the centre" leaves.

    With ``scale = crop_fraction * min(height / image_height, width / image_width)`` the window
    is ``scale * image_size``, rounded, at least one pixel, in the middle.

    Args:
        shapes: integer tensor [..., 2]: heights and widths in pixels.
        image_size: (height, width) wanted, in pixels.
        crop_fraction: in (0, 1]. Defaults to 0.875 (224 of 256).

    Returns:
        int64 tensor [..., 4]: top, left, height, width, in pixels.

    Example:
        >>> centre_crop([256, 512], (224, 224)).numpy().tolist()
        [16, 144, 224, 224]
    """
    shapes = tf.cast(shapes, tf.int64)
    size = tf.cast(shapes, tf.float32)
    wanted = tf.constant(image_size, tf.float32)
    scale = crop_fraction * tf.reduce_min(size / wanted, -1, keepdims=True)
    window = tf.cast(tf.round(scale * wanted), tf.int64)
    window = tf.minimum(tf.maximum(window, 1), shapes)
    return tf.concat([(shapes - window) // 2, window], -1)


def flips(keys):
    """Returns which pictures are mirrored left and right: each with probability one half.

    Args:
        keys: int64 tensor [n].

    Returns:
        bool tensor [n].

    Example:
        >>> flips([1, 2]).shape
        TensorShape([2])
    """
    return uniform(keys, tf.constant([_FLIP], tf.int64))[:, 0] < 0.5


def uniform(keys, numbers):
    """Returns float64 [n, k] in [0, 1): the random numbers called `numbers` [k] of each key [n]."""
    keys = tf.convert_to_tensor(keys, tf.int64)[:, tf.newaxis]
    words = order_lib.mix64(keys, numbers)
    words = tf.bitwise.right_shift(words, tf.constant(11, tf.uint64))
    return tf.cast(tf.bitcast(words, tf.int64), tf.float64) * 2.0**-53
