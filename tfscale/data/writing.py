"""Writes the shards of one split: resumable, deterministic, each in one piece or not at all."""

import collections
import concurrent.futures
import json
import logging
import pathlib
import re
import time

import tensorflow as tf

from tfscale.data import index as index_lib
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
        encoded = encode_jpeg(resized, quality)
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
    return label, reading.example(
        encoded, label, height=shape[0], width=shape[1], filename=name, text=class_names[label]
    ).SerializeToString(deterministic=True)


def write_split(
    output, split, items, serialise, class_names, num_shards, options, on_error, overwrite
):
    """Writes `items` in their order to `num_shards` files and an index.

    Args:
        output, split: `str`.
        items: `list` of whatever `serialise` takes.
        serialise: function of an item that returns (label, bytes) or raises ValueError.
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
    finished = index_lib.load(folder, split)
    if finished is not None and finished.options == options and not finished.problems():
        logger.info("%s: already there, %d records", split, finished.num_records)
        return finished
    journal = _Journal(folder / f".{split}.journal.json", options)
    _check_output(folder, split, journal, overwrite)
    shards, labels, said = [], collections.Counter(), time.monotonic()
    skipped = done = 0
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for number in range(num_shards):
            name = f"{split}-{number:05d}-of-{num_shards:05d}.tfrecord"
            part = items[
                len(items) * number // num_shards : len(items) * (number + 1) // num_shards
            ]
            entry = journal.finished(name)
            if entry is None:
                entry = {"labels": collections.Counter(), "skipped": 0, "lengths": []}
                partial = folder / f"{name}.partial"
                with tf.io.TFRecordWriter(str(partial)) as writer:
                    for outcome in in_order(pool, serialise, part):
                        if isinstance(outcome, ValueError):
                            if on_error == "raise":
                                raise ValueError(f"{outcome}. Mend it, or pass on_error='skip'.")
                            logger.warning("skipped: %s", outcome)
                            entry["skipped"] += 1
                        else:
                            label, payload = outcome
                            writer.write(payload)
                            entry["lengths"].append(len(payload))
                            entry["labels"][str(label)] += 1
                        if time.monotonic() - said > 5:
                            said = time.monotonic()
                            sofar = done + len(entry["lengths"]) + entry["skipped"]
                            logger.info("%s: %d of %d pictures", split, sofar, len(items))
                entry["bytes"] = partial.stat().st_size
                partial.replace(folder / name)
                journal.add(name, entry)
            done += len(part)
            skipped += entry["skipped"]
            labels.update({int(k): v for k, v in entry["labels"].items()})
            shards.append(index_lib.Shard(name, entry["bytes"], tuple(entry["lengths"])))
            logger.info("%s: %d of %d pictures, shard %d of %d", split, done, len(items),
                        number + 1, num_shards)  # fmt: skip
    if skipped:
        logger.warning("%s: %d of %d pictures skipped", split, skipped, len(items))
    index = index_lib.RecordIndex(
        str(folder), split, tuple(shards), labels, tuple(class_names), options
    )
    index.save()
    journal.path.unlink(missing_ok=True)
    return index


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


class _Journal:
    """Which shards are finished: what a stopped run leaves for the next."""

    def __init__(self, path, options):
        self.path, self.options, self.shards = path, options, {}
        self.other = None
        if path.exists():
            content = json.loads(path.read_text())
            if content["options"] == options:
                self.shards = content["shards"]
            else:
                self.other = content["options"]

    def finished(self, name):
        entry = self.shards.get(name)
        path = self.path.parent / name
        if entry is None or not path.exists() or path.stat().st_size != entry["bytes"]:
            return None
        return entry

    def add(self, name, entry):
        self.shards[name] = entry
        content = {"options": self.options, "shards": self.shards}
        index_lib.write_atomically(str(self.path), json.dumps(content))


def _check_output(folder, split, journal, overwrite):
    """Refuses, or clears, what another run left in the output folder; never another's files."""
    own = re.compile(rf"{re.escape(split)}-\d{{5,}}-of-\d{{5,}}\.tfrecord")
    for leftover in folder.glob("*.partial"):
        if own.fullmatch(leftover.name.removesuffix(".partial")):
            leftover.unlink()
    there = [pathlib.Path(path) for path in index_lib.record_files(folder, split)]
    strange = [path for path in there if journal.finished(path.name) is None]
    old = index_lib.load(folder, split)
    indexed = {shard.name for shard in old.shards} if old else set()
    foreign = [p.name for p in strange if not own.fullmatch(p.name) and p.name not in indexed]
    if foreign:
        raise ValueError(
            f"{folder} holds {', '.join(foreign[:3])}{' ...' if len(foreign) > 3 else ''}, which a "
            f"reader would take for records of split {split!r}, and which neither an index lists "
            f"nor prepare wrote (its files are {split}-00000-of-00001.tfrecord and so on): move "
            "such files away, or choose another output"
        )
    if strange and not overwrite:
        before = journal.other or (old.options if old else None)
        changed = "they have no note of their source"
        if before is not None:
            names = sorted(k for k in {*before, *journal.options}
                           if before.get(k) != journal.options.get(k))  # fmt: skip
            changed = "changed since: " + (", ".join(names) or "the files themselves")
        raise ValueError(
            f"{folder} already holds records of split {split!r} ({strange[0].name} and "
            f"{len(strange) - 1} more) of another run; {changed}. Pass overwrite (--overwrite), "
            "or another output."
        )
    for path in strange:
        path.unlink()
    pathlib.Path(index_lib.index_path(folder, split)).unlink(missing_ok=True)
