"""One record: read it at its place, parse it, and say what is wrong with it."""

import tensorflow as tf

from tfscale.data import jpeg

# The field names of the Inception scripts, in which most ImageNet record files are written.
ENCODED, LABEL, HEIGHT, WIDTH = "image/encoded", "image/class/label", "image/height", "image/width"
FILENAME, FORMAT, TEXT = "image/filename", "image/format", "image/class/text"
_KINDS = {
    jpeg.JPEG_START: "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"BM": "BMP", b"RIFF": "WEBP",
}  # fmt: skip


def records_from(path, offset):
    """Returns the records of a file from the one that begins at byte `offset` on, a dataset.

    Args:
        path: string scalar tensor.
        offset: integer scalar tensor.
    """
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path],
        compression_type="",
        buffer_size=tf.constant(0, tf.int64),  # one read of the right size beats a buffer
        byte_offsets=tf.reshape(tf.cast(offset, tf.int64), [1]),
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))


def read(path, offset):
    """Reads the one record that begins at byte `offset`, its checksums verified.

    Args:
        path: string scalar tensor.
        offset: integer scalar tensor.

    Returns:
        string scalar tensor, the payload.

    Raises:
        tf.errors.DataLossError, tf.errors.InvalidArgumentError: if it is damaged or not there.
    """
    return records_from(path, offset).take(1).get_single_element()


def parse(serialized):
    """Parses a serialised example.

    Args:
        serialized: string scalar tensor.

    Returns:
        `(encoded, label)`: the picture's bytes, and the int64 label as in the file.
    """
    fields = tf.io.parse_single_example(
        serialized,
        {
            ENCODED: tf.io.FixedLenFeature([], tf.string),
            LABEL: tf.io.FixedLenFeature([], tf.int64),
        },
    )
    return fields[ENCODED], fields[LABEL]


def example(encoded, label, *, height, width, filename="", text="", image_format="JPEG"):
    """Returns a `tf.train.Example` in the Inception fields.

    Args:
        encoded: `bytes` of the picture.
        label: `int`, from 0.
        height, width: `int`, pixels.
        filename, text: `str`, the picture's file and its class's name.
        image_format: `str`. Defaults to "JPEG".
    """

    def integer(value):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

    def data(value):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    return tf.train.Example(
        features=tf.train.Features(
            feature={
                ENCODED: data(encoded),
                FORMAT: data(image_format.encode()),
                LABEL: integer(label),
                TEXT: data(text.encode()),
                FILENAME: data(filename.encode(errors="surrogateescape")),
                HEIGHT: integer(height),
                WIDTH: integer(width),
            }
        )
    )


def kind_of(encoded):
    """Returns the format that a picture's first bytes say, such as "JPEG"; None for no picture."""
    if encoded[:4] == b"RIFF" and encoded[8:12] != b"WEBP":
        return None
    return next((kind for start, kind in _KINDS.items() if encoded.startswith(start)), None)


def what_is_wrong_with_picture(encoded):
    """Returns why the bytes are not a complete picture; None if they are."""
    if not encoded:
        return "zero bytes"
    if kind_of(encoded) is None:
        return f"not a {jpeg.FORMATS} picture: begins with {encoded[:8]!r}"
    try:
        jpeg.decode(tf.constant(encoded))
    except tf.errors.OpError as error:
        if encoded.startswith(jpeg.JPEG_START) and jpeg.JPEG_END not in encoded[-1024:]:
            return "truncated JPEG: its end marker is missing"
        return f"cannot be decoded: {_short(error)}"
    return None


def diagnose(index, record, num_classes, label_offset, error=None):
    """Says where a record is and what is wrong with it.

    Args:
        index: `index.RecordIndex`.
        record: `int`, its number in the split.
        num_classes, label_offset: `int`, to check its label by.
        error: what was raised when it was used, for a fault that is not known here.

    Returns:
        `str`: the file, the number in it, the bytes, the picture's name, the reason.
    """
    path, number, offset, length = index.locate(record)
    place = f"record {number} of {path} ({length} bytes at byte {offset})"
    try:
        payload = read(path, tf.constant(offset, tf.int64)).numpy()
    except tf.errors.DataLossError:
        return f"{place}: CRC mismatch, the file is damaged there"
    except tf.errors.NotFoundError:
        return f"{place}: the file is missing"
    except tf.errors.OpError as fault:
        if tf.io.gfile.stat(path).length < offset + length + 16:
            return f"{place}: the file is truncated"
        return f"{place}: cannot be read: {_short(fault)}"
    try:
        fields = tf.train.Example.FromString(payload).features.feature
    except Exception:  # noqa: BLE001 - protobuf's error type differs between its versions
        return f"{place}: not a tf.train.Example"
    for name in (ENCODED, LABEL):
        if name not in fields:
            return f"{place}: no field {name!r}; it has {', '.join(sorted(fields)) or 'none'}"
    name = b"".join(fields[FILENAME].bytes_list.value).decode(errors="replace")
    encoded = b"".join(fields[ENCODED].bytes_list.value)
    place = f"{place}, picture {name!r} of {len(encoded)} bytes" if name else place
    reason = what_is_wrong_with_picture(encoded)
    if reason:
        return f"{place}: {reason}"
    label = fields[LABEL].int64_list.value[0] - label_offset
    if not 0 <= label < num_classes:
        offset = f" (label_offset={label_offset} taken off)" if label_offset else ""
        classes = f"[0, {num_classes}) for {num_classes} classes"
        return f"{place}: label {label}{offset} is outside {classes}"
    if fields[HEIGHT].int64_list.value or fields[WIDTH].int64_list.value:
        said = [sum(fields[side].int64_list.value) for side in (HEIGHT, WIDTH)]
        true = list(jpeg.decode(tf.constant(encoded)).shape[:2])
        if said != true and 0 not in said:
            return f"{place}: says height x width {said[0]} x {said[1]}, is {true[0]} x {true[1]}"
    return f"{place}: {_short(error)}" if error else f"{place}: nothing wrong found now"


def _short(error):
    text = getattr(error, "message", None) or str(error)
    return text.split("}} ")[-1].split("\n")[0].split(" [Op:")[0][:200]
