"""Indexes record files that came without an index."""

import collections
import logging
import os
import time

import tensorflow as tf

from tfscale.data import index as index_lib
from tfscale.data import jpeg, reading, resync

logger = logging.getLogger("tfscale")


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
    encoded = b"".join(fields[reading.ENCODED].bytes_list.value)
    try:
        if encoded.startswith(jpeg.JPEG_START):
            true = jpeg.shape_of(encoded).numpy().tolist()
        elif min(sides) > 0:
            return label, *sides
        else:
            true = jpeg.decode(tf.constant(encoded)).shape[:2]
    except tf.errors.OpError:
        return label, 0, 0
    # Where the record says otherwise, a window might fit and be the wrong one.
    return (label, *true) if min(sides) <= 0 or sides == list(true) else (label, 0, 0)


def scan(paths, split, on_error="raise"):
    """Builds the index of record files by reading each of them once.

    Args:
        paths: `list` of `str`, files of one folder.
        split: `str`.
        on_error: "raise", or "skip": go on behind damage, with a warning that says how many bytes
            are lost.

    Returns:
        `(index, whole)`: `index.RecordIndex`, and whether nothing was lost.

    Raises:
        ValueError: for a damaged file, unless skipping; if no file holds a record.
    """
    logger.info("no index: reading %d file(s) of split %r once to build it", len(paths), split)
    shards, labels, said, whole = [], collections.Counter(), time.monotonic(), True
    for number, path in enumerate(paths):
        lengths, sizes, gaps = [], [], []
        size = tf.io.gfile.stat(path).length
        with tf.io.gfile.GFile(path, "rb") as file:
            for offset, taken, fault in resync.walk(path):
                if fault:
                    text = _lost(path, len(lengths), offset, size, fault)
                    if on_error == "raise":
                        raise ValueError(
                            f"{text}. Copy the file again, or read on with on_error='skip'."
                        )
                    logger.warning("%s; %d bytes are lost", text, taken)
                    whole = False
                    gaps.append((len(lengths), taken))
                    continue
                file.seek(offset + resync.HEADER)
                label, *sides = label_and_size(file.read(taken - index_lib.FRAME))
                lengths.append(taken - index_lib.FRAME)
                sizes.append(sides)
                labels[label] += 1
                if time.monotonic() - said > 5:
                    said = time.monotonic()
                    logger.info("indexing: file %d of %d, %s", number + 1, len(paths), path)
        if not lengths:
            logger.warning("%s holds no records", path)
        heights, widths = zip(*sizes, strict=True) if sizes else ((), ())
        name = os.path.basename(path)
        shards.append(index_lib.Shard(name, size, tuple(lengths), heights, widths, tuple(gaps)))
    labels.pop(None, None)
    if not any(shard.lengths for shard in shards):
        raise ValueError(f"none of the {len(paths)} file(s) of split {split!r} holds a record")
    folder = os.path.dirname(paths[0])
    return index_lib.RecordIndex(folder, split, tuple(shards), labels), whole


def _lost(path, number, offset, size, fault):
    hint = index_lib.gzip_hint(path) if number == 0 else ""
    return f"record {number} of {path}, at byte {offset} of {size}: {fault}{hint}"
