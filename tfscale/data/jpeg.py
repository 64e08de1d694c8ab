"""Pure functions on one image: sample a crop, decode it, resize it, flip it.

All random functions are stateless: the same seed gives the same pixels, in any order, on any
thread.
"""

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


def sample_crop(shape, seed, area_range=(0.08, 1.0), aspect_range=(3 / 4, 4 / 3), attempts=100):
    """Samples a window by area and aspect ratio.

    ``area ~ U(area_range) * height * width``, ``width / height ~ U(aspect_range)``, the place
    uniform where it fits; after `attempts` that do not fit, the whole image.

    Args:
        shape: int32 tensor [2]: height and width of the image in pixels.
        seed: integer tensor [2].
        area_range: share of the image's area, in (0, 1]. Defaults to (0.08, 1).
        aspect_range: width over height. Defaults to (3/4, 4/3).
        attempts: `int`. Defaults to 100.

    Returns:
        int32 tensor [4]: top, left, height, width, in pixels.

    Example:
        >>> sample_crop([100, 200], seed=[1, 2]).shape
        TensorShape([4])

    Source: Szegedy et al., "Going deeper with convolutions", 2015, section 6.
    """
    shape = tf.convert_to_tensor(shape, tf.int32)
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.concat([shape, [3]], 0),
        bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        seed=seed,
        min_object_covered=0.0,
        aspect_ratio_range=aspect_range,
        area_range=area_range,
        max_attempts=attempts,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], size[:2]], 0)


def centre_crop(shape, image_size, crop_fraction=0.875):
    """Returns the window that "resize the short side, then cut the centre" leaves.

    With ``scale = crop_fraction * min(height / image_height, width / image_width)`` the window
    is ``scale * image_size``, rounded, at least one pixel, in the middle.

    Args:
        shape: int32 tensor [2]: height and width of the image in pixels.
        image_size: (height, width) wanted, in pixels.
        crop_fraction: in (0, 1]. Defaults to 0.875 (224 of 256).

    Returns:
        int32 tensor [4]: top, left, height, width, in pixels.

    Example:
        >>> centre_crop([256, 512], (224, 224)).numpy().tolist()
        [16, 144, 224, 224]
    """
    shape = tf.convert_to_tensor(shape, tf.int32)
    size = tf.cast(shape, tf.float32)
    wanted = tf.constant(image_size, tf.float32)
    scale = crop_fraction * tf.reduce_min(size / wanted)
    window = tf.cast(tf.round(scale * wanted), tf.int32)
    window = tf.clip_by_value(window, 1, shape)
    return tf.concat([(shape - window) // 2, window], 0)


def crop(image, window):
    """Cuts `window` (top, left, height, width) out of `image` [height, width, 3]."""
    image = tf.slice(image, [window[0], window[1], 0], [window[2], window[3], 3])
    return tf.ensure_shape(image, [None, None, 3])


def decode_and_crop(encoded, window_of, shape=None):
    """Decodes only the part of a picture that a window needs.

    A JPEG decoder can skip rows and columns outside the window: 20-30 % faster than decoding
    first and cropping then. Other formats are decoded whole and cropped.

    Args:
        encoded: string scalar tensor.
        window_of: function of an int32 tensor [2] (height, width) that returns the window.
        shape: int32 tensor [2], the picture's height and width if known (zeros if not), which
            saves reading its header. A wrong one that does not fit raises.

    Returns:
        uint8 tensor [height of the window, width of the window, 3].

    Raises:
        tf.errors.InvalidArgumentError: if the bytes are not a complete picture.

    Example:
        >>> jpeg = tf.io.encode_jpeg(tf.zeros([8, 8, 3], tf.uint8))
        >>> decode_and_crop(jpeg, lambda shape: tf.constant([0, 0, 4, 5])).shape
        TensorShape([4, 5, 3])
    """

    def fused():
        if shape is None:
            size = shape_of(encoded)
        else:
            size = tf.cond(tf.reduce_all(shape > 0), lambda: shape, lambda: shape_of(encoded))
        return tf.io.decode_and_crop_jpeg(encoded, window_of(size), 3, dct_method=DCT)

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
        image_size: (height, width) wanted, in pixels.

    Returns:
        uint8 tensor [*image_size, 3].

    Example:
        >>> resize(tf.zeros([5, 7, 3], tf.uint8), (4, 4)).shape
        TensorShape([4, 4, 3])
    """
    image = tf.image.resize(image, image_size, method="bilinear")
    image = tf.cast(image + 0.5, tf.uint8)  # a weighted mean of [0, 255] stays inside it
    return tf.ensure_shape(image, [*image_size, 3])


def flip(image, seed):
    """Mirrors left and right with probability one half.

    Args:
        image: tensor [height, width, 3].
        seed: integer tensor [2].

    Returns:
        A tensor like `image`.

    Example:
        >>> flip(tf.zeros([2, 2, 3], tf.uint8), seed=[1, 2]).shape
        TensorShape([2, 2, 3])
    """
    heads = tf.random.stateless_uniform([], seed) < 0.5
    return tf.cond(heads, lambda: tf.reverse(image, [1]), lambda: image)


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
