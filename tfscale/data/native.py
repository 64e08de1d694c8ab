"""Decoding in C: three TensorFlow ops that read records, decode pictures, and resize kept ones.

Optional. They are built when the package is installed where a C compiler and libjpeg-turbo are
(Debian: ``apt install gcc libjpeg-dev``), in a clone by ``python setup.py build_ext --inplace``;
without them everything is done by TensorFlow's own ops, with the same pixels to within one grey
level. ``TFSCALE_NATIVE=0`` switches them off.
"""

import functools
import logging
import os
import sysconfig
from pathlib import Path

import tensorflow as tf

LIBRARY = Path(__file__).parent / "_native" / f"ops{sysconfig.get_config_var('EXT_SUFFIX')}"

_NAMES = "tfscale_read_records", "tfscale_decode_examples", "tfscale_resize_pictures"

logger = logging.getLogger(__name__)


@functools.cache
def _ops():
    """The loaded ops; None where they are not built or do not load."""
    if not LIBRARY.exists():
        return None
    try:
        found = tf.load_op_library(str(LIBRARY))
    except (tf.errors.OpError, OSError) as error:
        logger.warning("The C ops do not load, TensorFlow's are used instead: %s", error)
        return None
    if not all(hasattr(found, name) for name in _NAMES):
        logger.warning(
            "%s is of another version, TensorFlow's ops are used instead; build it again: "
            "python setup.py build_ext --inplace --force", LIBRARY,
        )  # fmt: skip
        return None
    return found


def available():
    """Returns whether the ops are built, load, and are not switched off.

    Example:
        >>> native.available() in (True, False)
        True
    """
    return os.environ.get("TFSCALE_NATIVE") != "0" and _ops() is not None


def read_records(paths, files, offsets, lengths):
    """Reads records at their places, their checksums verified.

    It raises for none of them: a row whose file is not there, whose frame is short or of another
    length, or whose checksum fails, is "". `reading.diagnose` says why. To TensorFlow it is, like
    `tf.io.read_file`, a pure function: in a graph, of constants alone, it is computed once.

    Args:
        paths: string tensor [files]: local paths.
        files: int64 tensor [n]: the file of each record, by its place in `paths`.
        offsets: int64 tensor [n]: the byte at which its frame begins.
        lengths: int64 tensor [n]: the bytes of its payload.

    Returns:
        string tensor [n], the payloads.

    Raises:
        tf.errors.InvalidArgumentError: if the shapes do not fit.

    Example:
        >>> with tf.io.TFRecordWriter("a.tfrecord") as file:
        ...     file.write(b"payload")
        >>> native.read_records(["a.tfrecord"], [0, 0], [0, 1], [7, 7]).numpy().tolist()
        [b'payload', b'']
    """
    return _ops().tfscale_read_records(
        paths=paths,
        files=tf.convert_to_tensor(files, tf.int64),
        offsets=tf.convert_to_tensor(offsets, tf.int64),
        lengths=tf.convert_to_tensor(lengths, tf.int64),
    )


def decode_examples(serialized, windows, flip, size, scaled=False):
    """Parses examples; decodes, resizes and flips a window of each one's picture.

    Per row what `reading.parse`, `jpeg.decode_and_crop` and `jpeg.resize` give, within one grey
    level. It raises for no row: whatever is not a sound JPEG of one or three components with that
    window inside it has `done` False, zeros for its picture, and is the caller's to decode by
    TensorFlow's ops, which take more formats and say what is wrong. Data behind the window is not
    decoded, so that damage there goes unseen, as it does in none of the window's pixels.

    With ``scaled``, a window of at least ``r = 2, 4 or 8`` times `size` in both directions is
    decoded at ``1 / r`` of the picture's size: what ``tf.io.decode_and_crop_jpeg(encoded,
    window // r, 3, ratio=r, dct_method="INTEGER_ACCURATE")`` gives, resized.

    Args:
        serialized: string tensor [n]: `tf.train.Example`s with `image/encoded` and
            `image/class/label`.
        windows: int32 tensor [n, 4]: top, left, height, width, in pixels.
        flip: bool tensor [n]: whether to mirror left and right.
        size: int32 tensor [2], or (height, width): of the output, from 1 to 16384 pixels.
        scaled: `bool`. Defaults to False.

    Returns:
        `(images, labels, done)`: uint8 [n, height, width, 3], int64 [n] as in the record, bool [n].

    Raises:
        tf.errors.InvalidArgumentError: if the shapes do not fit or `size` is out of its range.

    Example:
        >>> images, labels, done = native.decode_examples(
        ...     [example.SerializeToString()], [[0, 0, 48, 64]], [False], (32, 32))
        >>> images.shape
        TensorShape([1, 32, 32, 3])
    """
    return _windows(
        _ops().tfscale_decode_examples, windows, flip, size, serialized=serialized, scaled=scaled
    )


def resize_pictures(pictures, windows, flip, size):
    """Resizes and flips a window of each kept picture.

    Per row what `cache_pictures.unpack`, `jpeg.crop` and `jpeg.resize` give, within one grey
    level. It raises for no row: what is no kept picture with that window inside it has `done`
    False and zeros for its picture.

    Args:
        pictures: string tensor [n]: what `cache_pictures.pack` returned.
        windows: int32 tensor [n, 4]: top, left, height, width, in pixels of the kept picture.
        flip, size: see `decode_examples`.

    Returns, Raises: see `decode_examples`.

    Example:
        >>> images, labels, done = native.resize_pictures(
        ...     [cache_pictures.pack(image, label)], [[0, 0, 48, 64]], [False], (32, 32))
        >>> images.shape
        TensorShape([1, 32, 32, 3])
    """
    return _windows(_ops().tfscale_resize_pictures, windows, flip, size, pictures=pictures)


def _windows(op, windows, flip, size, **options):
    windows = tf.convert_to_tensor(windows, tf.int32)
    size = tf.convert_to_tensor(size, tf.int32)
    images, labels, done = op(windows=windows, flip=flip, size=size, **options)
    height_width = tf.get_static_value(size)
    sides = [None, None] if height_width is None else height_width.tolist()
    return tf.ensure_shape(images, [*windows.shape[:1], *sides, 3]), labels, done
