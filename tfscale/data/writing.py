"""Writes the shards of one split: resumable, deterministic, each in one piece or not at all."""

import collections
import concurrent.futures
import logging
import pathlib
import shutil
import time

import tensorflow as tf

from tfscale.data import index as index_lib
from tfscale.data import journal as journal_lib
from tfscale.data import jpeg, reading

logger = logging.getLogger("tfscale")


def encode_jpeg(image, quality):
    """Returns the bytes of a uint8 image [height, width, 1 or 3] as a JPEG.

    Colour is kept at full resolution from quality 90 on.
    """
    image = tf.convert_to_tensor(image)
    form = "grayscale" if image.shape[-1] == 1 else "rgb"
    return tf.io.encode_jpeg(
        image, format=form, quality=quality, chroma_downsampling=quality < 90
    ).numpy()


def from_file(picture, class_names, image_size, quality):
    """Returns the serialised example of a `sources.Picture`; raises ValueError naming a bad one."""
    encoded = picture.read()
    reason = reading.what_is_wrong_with_picture(encoded)
    if reason:
        raise ValueError(f"{picture.path} ({len(encoded)} bytes): {reason}")
    image = jpeg.decode(tf.constant(encoded))
    resized = image if image_size is None else jpeg.shrink(image, image_size)
    is_jpeg = encoded.startswith(jpeg.JPEG_START)
    # TensorFlow's header reader counts the channels: 1 grey, 3 colour, 4 CMYK.
    plain = is_jpeg and int(tf.io.extract_jpeg_shape(encoded)[2]) in (1, 3)
    if not plain or resized.shape != image.shape:
        try:
            encoded = encode_jpeg(resized, quality)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(f"{picture.path} cannot be made a JPEG: {error.message}") from None
    return _serialised(encoded, resized.shape, picture.label, picture.name, class_names)


def from_array(number, image, label, class_names, quality):
    """Returns the serialised example of a uint8 array and its label."""
    image = image[..., None] if image.ndim == 2 else image
    name = f"{number:08d}.jpg"
    return _serialised(encode_jpeg(image, quality), image.shape, label, name, class_names)


def check_array(image, label, num_classes, place):
    """Raises ValueError unless `image` and `label` can be written."""
    fits = image.ndim == 2 or (image.ndim == 3 and image.shape[-1] in (1, 3))
    if image.dtype != "uint8" or not fits or 0 in image.shape:
        raise ValueError(
            f"{place}: image of shape {image.shape}, {image.dtype}; wanted uint8 in [0, 255], "
            "[height, width] or [height, width, 1 or 3]"
        )
    if not 0 <= label < num_classes:
        raise ValueError(f"{place}: label {label} is outside [0, {num_classes})")


def _serialised(encoded, shape, label, name, class_names):
    return label, shape[:2], reading.example(
        encoded, label, height=shape[0], width=shape[1], filename=name, text=class_names[label]
    ).SerializeToString(deterministic=True)


def write_split(
    output, split, items, serialise, class_names, num_shards, options, on_error, overwrite
):
    """Writes `items` in their order to `num_shards` files and an index.

    Args:
        output, split: `str`.
        items: `list` of whatever `serialise` takes.
        serialise: function of an item that returns (label, (height, width), bytes) or raises
            ValueError.
        class_names: `tuple` of `str`.
        num_shards: `int`; no more than there are items.
        options: JSON-able `dict`: what the bytes are a function of.
        on_error: "raise" or "skip".
        overwrite: `bool`.

    Returns:
        `index.RecordIndex`.
    """
    folder = pathlib.Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    num_shards = max(1, min(num_shards, len(items)))
    options = {**options, "num_shards": num_shards, "on_error": on_error}
    finished = journal_lib.load_index(folder, split, overwrite)
    if finished is not None and finished.options == options and not finished.problems():
        logger.info("%s: already there, %d records", split, finished.num_records)
        return finished
    journal = journal_lib.Journal(folder, split, options, overwrite)
    journal_lib.clear(folder, split, journal, finished, overwrite)
    shards, labels = [], collections.Counter()
    said = time.monotonic()
    skipped = done = 0

    def say(number):
        nonlocal said
        if time.monotonic() - said > 5:
            said = time.monotonic()
            logger.info("%s: %d of %d pictures", split, done + number, len(items))

    with concurrent.futures.ThreadPoolExecutor() as pool:
        for number in range(num_shards):
            name = f"{split}-{number:05d}-of-{num_shards:05d}.tfrecord"
            part = items[
                len(items) * number // num_shards : len(items) * (number + 1) // num_shards
            ]
            entry = journal.finished(name)
            if entry is None:
                outcomes = in_order(pool, serialise, part)
                entry = _write_shard(folder / name, outcomes, on_error, say)
                journal.add(name, entry)
            done += len(part)
            skipped += entry["skipped"]
            labels.update({int(k): v for k, v in entry["labels"].items()})
            each = (tuple(entry[key]) for key in ("lengths", "heights", "widths"))
            shards.append(index_lib.Shard(name, entry["bytes"], *each))
            logger.info("%s: %d of %d pictures, shard %d of %d", split, done, len(items),
                        number + 1, num_shards)  # fmt: skip
    if skipped:
        logger.warning("%s: %d of %d pictures skipped", split, skipped, len(items))
    if skipped == len(items):
        raise ValueError(f"{folder}: no record for split {split!r}: {skipped} pictures skipped")
    index = index_lib.RecordIndex(
        str(folder), split, tuple(shards), labels, tuple(class_names), options
    )
    index.save()
    journal.path.unlink(missing_ok=True)
    return index


def _write_shard(path, outcomes, on_error, say):
    """Writes one file in one piece; returns its entry for the journal."""
    partial = path.with_name(f"{path.name}.partial")
    lengths, heights, widths, labels, skipped = [], [], [], collections.Counter(), 0
    try:
        with tf.io.TFRecordWriter(str(partial)) as writer:
            for outcome in outcomes:
                if isinstance(outcome, ValueError):
                    if on_error == "raise":
                        raise ValueError(f"{outcome}. Mend it, or pass on_error='skip'.")
                    logger.warning("skipped: %s", outcome)
                    skipped += 1
                else:
                    label, (height, width), payload = outcome
                    writer.write(payload)
                    lengths.append(len(payload))
                    heights.append(int(height))
                    widths.append(int(width))
                    labels[str(label)] += 1
                say(len(lengths) + skipped)
    except tf.errors.OpError as error:
        partial.unlink(missing_ok=True)  # a full disk has a use for the space
        free = shutil.disk_usage(path.parent).free
        raise OSError(
            f"{path} cannot be written: {error.message.splitlines()[0]} ({free / 1e6:.0f} MB free "
            "there). The files before it are kept: run again when this is mended."
        ) from None
    size = partial.stat().st_size
    partial.replace(path)
    return {
        "labels": labels,
        "skipped": skipped,
        "lengths": lengths,
        "heights": heights,
        "widths": widths,
        "bytes": size,
    }


def in_order(pool, function, items, ahead=64):
    """Yields each item's result, or the ValueError that it raised, a few at a time in parallel."""

    def attempt(item):
        try:
            return function(item)
        except ValueError as error:
            return error

    waiting = collections.deque()
    for item in items:
        waiting.append(pool.submit(attempt, item))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
