"""Pure functions on one image: decode a window of it, resize it, mirror it."""

import functools

import tensorflow as tf

FORMATS = "JPEG, PNG, GIF, BMP or WebP"
JPEG_START, JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
# The default is the fast transform, up to 7 of 255 off in good JPEGs and no faster with SIMD;
# the accurate one gives the pixels of Pillow and torchvision.
DCT = "INTEGER_ACCURATE"


def is_jpeg(encoded):
    """Returns whether the bytes can be decoded by windows: a JPEG that reaches its end marker.

    A window above the place where a JPEG was cut decodes without an error, so an incomplete one
    must go the long way, where the whole picture is decoded and the damage found. Files with
    bytes after the end marker go that way too and come out right.

    Args:
        encoded: string scalar tensor.

    Returns:
        bool scalar tensor.
    """
    start = tf.strings.substr(encoded, 0, 3) == JPEG_START
    size = tf.strings.length(encoded)
    end = tf.strings.substr(encoded, tf.maximum(size - 2, 0), 2) == JPEG_END
    return tf.logical_and(start, end)


def decode(encoded):
    """Decodes a whole picture of any format that TensorFlow reads; of a GIF, the first frame.

    Args:
        encoded: string scalar tensor: the bytes of a JPEG (also grey or CMYK), PNG, GIF, BMP or
            WebP file.

    Returns:
        uint8 tensor [height, width, 3], RGB, in [0, 255].

    Raises:
        tf.errors.InvalidArgumentError: if the bytes are not a complete picture.

    Example:
        >>> decode(tf.io.encode_png(tf.zeros([4, 6, 3], tf.uint8))).shape
        TensorShape([4, 6, 3])
    """
    image = tf.cond(
        tf.strings.substr(encoded, 0, 3) == JPEG_START,
        lambda: tf.io.decode_jpeg(encoded, channels=3, dct_method=DCT),
        # expand_animations=False matters: a WebP or GIF otherwise gains a leading frame axis.
        lambda: tf.io.decode_image(encoded, channels=3, expand_animations=False),
    )
    return tf.ensure_shape(image, [None, None, 3])


def shape_of(encoded):
    """Returns int32 [height, width] of a JPEG, read from its header."""
    return tf.io.extract_jpeg_shape(encoded)[:2]


def crop(image, window):
    """Cuts `window` (top, left, height, width) out of `image` [height, width, 3]."""
    image = tf.slice(image, [window[0], window[1], 0], [window[2], window[3], 3])
    return tf.ensure_shape(image, [None, None, 3])


def decode_and_crop(encoded, window_of, image_size=None):
    """Decodes only the part of a picture that a window needs.

    A JPEG decoder can skip rows and columns outside the window: 20-30 % faster than decoding
    first and cropping then. Other formats are decoded whole and cropped.

    Args:
        encoded: string scalar tensor.
        window_of: function of an int32 tensor [2] (height, width) that returns the window. One
            that is known without it costs no reading of the header.
        image_size: (height, width) wanted later. With it, a JPEG whose window is at least
            twice, four or eight times as large is decoded at half, a quarter or an eighth of
            its scale, which leaves work out. Not the same pixels: an average of 2 x 2 and more
            in place of every other one. None decodes at full scale.

    Returns:
        uint8 tensor [height of the window, width of the window, 3]; its sides are divided by
        the scale, rounded down.

    Raises:
        tf.errors.InvalidArgumentError: if the bytes are not a complete picture.

    Example:
        >>> jpeg = tf.io.encode_jpeg(tf.zeros([8, 8, 3], tf.uint8))
        >>> decode_and_crop(jpeg, lambda shape: tf.constant([0, 0, 4, 5])).shape
        TensorShape([4, 5, 3])
    """

    def at_scale(window, ratio):
        window = tf.concat([window[:2] // ratio, tf.maximum(window[2:] // ratio, 1)], 0)
        return tf.io.decode_and_crop_jpeg(encoded, window, 3, ratio, dct_method=DCT)

    def fused():
        window = tf.cast(window_of(shape_of(encoded)), tf.int32)
        if image_size is None:
            return at_scale(window, 1)
        times = tf.reduce_min(window[2:] // tf.constant(image_size))
        chosen = tf.reduce_sum(tf.cast(times >= [2, 4, 8], tf.int32))
        scales = [functools.partial(at_scale, window, ratio) for ratio in (1, 2, 4, 8)]
        return tf.switch_case(chosen, scales)

    def whole():
        image = decode(encoded)
        return crop(image, window_of(tf.shape(image)[:2]))

    image = tf.cond(is_jpeg(encoded), fused, whole)
    return tf.ensure_shape(image, [None, None, 3])


def resize(image, image_size):
    """Resizes bilinearly and rounds to uint8.

    Two taps per axis, not antialiased: it is what networks published for TensorFlow were
    trained with, and 40 % faster than the antialiased form.

    Args:
        image: uint8 tensor [height, width, 3].
        image_size: (height, width) wanted, in pixels, or such an int32 tensor.

    Returns:
        uint8 tensor [*image_size, 3].

    Example:
        >>> resize(tf.zeros([5, 7, 3], tf.uint8), (4, 4)).shape
        TensorShape([4, 4, 3])
    """
    image = tf.image.resize(image, image_size, method="bilinear")
    image = tf.cast(image + 0.5, tf.uint8)  # a weighted mean of [0, 255] stays inside it
    sides = [None, None] if tf.is_tensor(image_size) else image_size
    return tf.ensure_shape(image, [*sides, 3])


def flip(image, mirrored):
    """Mirrors `image` [height, width, 3] left and right where `mirrored`, a bool scalar."""
    return tf.cond(mirrored, lambda: tf.reverse(image, [1]), lambda: image)


def shrink(image, short_side):
    """Resizes an image so that its short side has at most `short_side` pixels.

    Args:
        image: uint8 tensor [height, width, 3].
        short_side: `int`.

    Returns:
        uint8 tensor [height, width, 3]; `image` itself where it is small enough.

    Example:
        >>> shrink(tf.zeros([20, 30, 3], tf.uint8), 10).shape
        TensorShape([10, 15, 3])
    """
    shape = tf.shape(image)[:2]
    scale = short_side / tf.reduce_min(shape)

    def smaller():
        size = tf.cast(tf.round(tf.cast(shape, tf.float64) * scale), tf.int32)
        # Antialiased, as this may reduce a photograph many times and is done once.
        resized = tf.image.resize(image, size, method="bilinear", antialias=True)
        return tf.cast(tf.clip_by_value(resized + 0.5, 0, 255), tf.uint8)

    return tf.ensure_shape(tf.cond(scale < 1, smaller, lambda: image), [None, None, 3])
