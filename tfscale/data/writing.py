"""Writes the shards of one split: resumable, deterministic, each in one piece or not at all."""

import collections
import concurrent.futures
import logging
import pathlib
import shutil

import tensorflow as tf

from tfscale.data import index as index_lib
from tfscale.data import journal as journal_lib
from tfscale.data.progress import Progress

logger = logging.getLogger("tfscale")


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
    skipped = done = 0
    progress = Progress(logger.info, split, len(items), "pictures")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for number in range(num_shards):
            name = f"{split}-{number:05d}-of-{num_shards:05d}.tfrecord"
            part = items[
                len(items) * number // num_shards : len(items) * (number + 1) // num_shards
            ]
            entry = journal.finished(name)
            if entry is None:
                outcomes = in_order(pool, serialise, part)
                entry = _write_shard(folder / name, outcomes, on_error, progress, done)
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


def _write_shard(path, outcomes, on_error, progress, done):
    """Writes one file in one piece, after `done` pictures; returns its entry for the journal."""
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
                progress(done + len(lengths) + skipped)
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
