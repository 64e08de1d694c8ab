"""Indexes record files that came without an index."""

import collections
import logging
import os
import time

import tensorflow as tf

from tfscale.data import index as index_lib
from tfscale.data import jpeg, reading

logger = logging.getLogger("tfscale")

_POLYNOMIAL = 0x82F63B78  # Castagnoli, bits reversed


def _table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def masked_crc32c(data):
    """Returns the checksum that frames a TFRecord: CRC-32C, rotated by 15 bits, plus a constant.

    Slow (pure Python): for the 8 bytes of a length, not for payloads.

    Example:
        >>> hex(masked_crc32c(bytes(32)))
        '0x388a6fb4'

    Source: the TFRecord format, https://www.tensorflow.org/tutorials/load_data/tfrecord.
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def scan_file(path):
    """Walks through the frames of one TFRecord file.

    Args:
        path: `str`.

    Yields:
        `(length, payload)` of each record. The payload's own checksum is not verified here; a
        reader does so.

    Raises:
        ValueError: at a frame whose length is damaged or that the file's end cuts; names the
            file, the number of the record and its byte.
    """
    size = tf.io.gfile.stat(path).length
    number = offset = 0
    with tf.io.gfile.GFile(path, "rb") as file:
        while offset < size:
            header = file.read(12)
            place = f"record {number} of {path}, at byte {offset} of {size}"
            if len(header) < 12:
                raise ValueError(f"{place}: the file ends inside it (truncated)")
            if masked_crc32c(header[:8]) != int.from_bytes(header[8:], "little"):
                hint = index_lib.gzip_hint(path) if number == 0 else ""
                raise ValueError(f"{place}: its length is damaged or this is no TFRecord{hint}")
            length = int.from_bytes(header[:8], "little")
            if offset + length + index_lib.FRAME > size:
                raise ValueError(f"{place}: its {length} bytes go past the end (truncated)")
            payload = file.read(length)
            file.read(4)
            yield length, payload
            offset += length + index_lib.FRAME
            number += 1


def label_and_size(payload):
    """Returns `(label, height, width)` of a serialised example.

    The label is None, and the size (0, 0), where they cannot be told: whatever is wrong, the
    reader of the record will name it.
    """
    try:
        fields = tf.train.Example.FromString(payload).features.feature
    except Exception:  # noqa: BLE001 - protobuf's error type differs between its versions
        return None, 0, 0
    label = next(iter(fields[reading.LABEL].int64_list.value), None)
    sides = [sum(fields[side].int64_list.value) for side in (reading.HEIGHT, reading.WIDTH)]
    if min(sides) > 0:
        return label, *sides
    encoded = b"".join(fields[reading.ENCODED].bytes_list.value)
    try:
        if encoded.startswith(jpeg.JPEG_START):
            height, width = jpeg.shape_of(encoded).numpy()
        else:
            height, width = jpeg.decode(tf.constant(encoded)).shape[:2]
    except tf.errors.OpError:
        return label, 0, 0
    return label, int(height), int(width)


def scan(paths, split, on_error="raise"):
    """Builds the index of record files by reading each of them once.

    Args:
        paths: `list` of `str`, files of one folder.
        split: `str`.
        on_error: "raise", or "skip": give up a damaged file from its first damaged frame on,
            with a warning that says how many bytes are lost.

    Returns:
        `(index, whole)`: `index.RecordIndex`, and whether no file was given up.

    Raises:
        ValueError: for a damaged file, unless skipping; if no file holds a record.
    """
    logger.info("no index: reading %d file(s) of split %r once to build it", len(paths), split)
    shards, labels, said, whole = [], collections.Counter(), time.monotonic(), True
    for number, path in enumerate(paths):
        lengths, sizes = [], []
        try:
            for length, payload in scan_file(path):
                label, *size = label_and_size(payload)
                lengths.append(length)
                sizes.append(size)
                labels[label] += 1
                if time.monotonic() - said > 5:
                    said = time.monotonic()
                    logger.info("indexing: file %d of %d, %s", number + 1, len(paths), path)
        except ValueError as error:
            if on_error == "raise":
                raise
            whole = False
            lost = tf.io.gfile.stat(path).length - sum(lengths) - index_lib.FRAME * len(lengths)
            logger.warning("%s; the %d bytes from there on are lost", error, lost)
        if not lengths:
            logger.warning("%s holds no records", path)
        heights, widths = zip(*sizes, strict=True) if sizes else ((), ())
        size = tf.io.gfile.stat(path).length
        name = os.path.basename(path)
        shards.append(index_lib.Shard(name, size, tuple(lengths), heights, widths))
    labels.pop(None, None)
    if not any(shard.lengths for shard in shards):
        raise ValueError(f"none of the {len(paths)} file(s) of split {split!r} holds a record")
    folder = os.path.dirname(paths[0])
    return index_lib.RecordIndex(folder, split, tuple(shards), labels), whole
