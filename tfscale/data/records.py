"""From a folder or a pattern to a checked data contract."""

import glob
import itertools
import logging
import os

import tensorflow as tf

from tfscale.data import arguments
from tfscale.data import index as index_lib
from tfscale.data import order as order_lib
from tfscale.data import scan as scan_lib
from tfscale.data.contract import DataContract

logger = logging.getLogger("tfscale")


def find(data_dir, split="train", on_error="raise"):
    """Finds the records of a split and their index, which is built if there is none.

    Args:
        data_dir: `str`: a folder with ``SPLIT.index.json`` or with files ``SPLIT-*`` or
            ``SPLIT.tfrecord*``; or a file; or a pattern of files with ``*`` or ``?``, which
            then is the split.
        split: `str`. Defaults to "train".
        on_error: "raise" or "skip": whether damaged files are an error or a warning.

    Returns:
        `index.RecordIndex`.

    Raises:
        FileNotFoundError: if nothing matches; names the pattern and the working directory.
        ValueError: if files are missing, truncated, compressed or not in the index.

    Example:
        ```python
        find("gs://bucket/imagenet", "validation").num_records
        ```
    """
    if not data_dir:
        raise ValueError(f"data_dir={data_dir!r}; wanted the folder of the records")
    data_dir = str(data_dir)
    if glob.has_magic(data_dir) or (
        tf.io.gfile.exists(data_dir) and not tf.io.gfile.isdir(data_dir)
    ):
        paths = sorted(tf.io.gfile.glob(data_dir))
        if not paths:
            raise FileNotFoundError(
                f"no file matches {data_dir!r} (working directory {os.getcwd()})"
            )
        folders = sorted({os.path.dirname(path) for path in paths})
        if len(folders) > 1:
            raise ValueError(f"{data_dir!r} matches files of several folders: {folders[:3]}")
        if len(paths) > 1:  # part of a split on purpose, or a part that was lost: who knows
            for problem in index_lib.gaps(paths):
                logger.warning("%r: %s", data_dir, problem)
        return _say_empty(scan_lib.scan(paths, split, on_error)[0])
    found = index_lib.load(data_dir, split)
    if found is None:
        return _say_empty(_index_again(data_dir, split, on_error))
    _raise_or_say(
        found.problems(),
        f"the files of split {split!r} do not fit {index_lib.index_path(data_dir, split)}",
        "Copy or prepare them again",
        on_error,
    )
    return _say_empty(found)


def _raise_or_say(problems, heading, remedy, on_error):
    """Raises all problems at once, or names each in the log and lets the caller read on."""
    if problems and on_error == "raise":
        raise ValueError(
            f"{heading}:\n  "
            + "\n  ".join(problems)
            + f"\n{remedy}, or read on with on_error='skip'."
        )
    for problem in problems:
        logger.warning("%s", problem)


def _say_empty(index):
    for path, shard in zip(index.paths, index.shards, strict=True):
        if not shard.lengths:
            logger.warning("%s holds no records", path)
    return index


def _index_again(data_dir, split, on_error):
    paths = index_lib.record_files(data_dir, split)
    if not paths:
        there = sorted(tf.io.gfile.listdir(data_dir)) if tf.io.gfile.isdir(data_dir) else None
        holds = "is not a folder" if there is None else f"holds {there[:8] or 'nothing'}"
        text = (
            f"no records: {os.path.join(data_dir, split)}-* and {split}.tfrecord* match nothing "
            f"(working directory {os.getcwd()}); {data_dir} {holds}. "
        )
        splits = [name.split(".")[0] for name in there or () if name.endswith(".index.json")]
        if splits:
            raise FileNotFoundError(f"{text}It has the split(s) {', '.join(map(repr, splits))}")
        folders = [n for n in there or () if tf.io.gfile.isdir(os.path.join(data_dir, n))]
        source, output = (data_dir, "RECORDS") if folders else ("IMAGES", data_dir)
        raise FileNotFoundError(
            f"{text}Make records with: python -m tfscale.data.prepare --source={source} "
            f"--output={output}"
        )
    lost = index_lib.gaps(paths)
    _raise_or_say(
        lost,
        f"split {split!r} in {data_dir} is not complete",
        "Copy the missing files again",
        on_error,
    )
    found, whole = scan_lib.scan(paths, split, on_error)
    if lost or not whole:
        return found  # written down, the lost records would never be missed again
    try:
        logger.info("index written: %s", found.save())
    except (OSError, tf.errors.OpError) as error:
        logger.info("index kept in memory only, %s cannot be written: %s", data_dir, error)
    return found


def describe(
    data_dir,
    split="train",
    global_batch_size=1,
    *,
    num_replicas=1,
    num_workers=1,
    seed=0,
    remainder="carry",
    num_classes=None,
    label_offset=0,
    training=None,
    on_error="raise",
):
    """Returns the data contract of a split, after checking files and labels.

    Args:
        data_dir: `str`, see `find`.
        split: `str`. Defaults to "train".
        global_batch_size: `int`, examples per step over all replicas.
        num_replicas: `int`, replicas in the job; divides the global batch. Defaults to 1.
        num_workers: `int`, divides the replicas. Defaults to 1.
        seed: `int`, of the order. Defaults to 0.
        remainder: "carry" or "drop", see `order.Order`. Defaults to "carry".
        num_classes: `int`, outputs of the model; None takes it from the index.
        label_offset: `int`, what to subtract from the labels in the files (1 where they run
            from 1). Defaults to 0.
        training: `bool`; None means whether the split is called "train".
        on_error: "raise" or "skip".

    Returns:
        `DataContract`.

    Raises:
        ValueError: if the batch does not divide, exceeds the records, or a label is outside
            ``[0, num_classes)``.
        TypeError: if a number is no integer.

    Example:
        ```python
        contract = describe("records", "train", global_batch_size=256, num_replicas=8)
        model.fit(..., steps_per_epoch=contract.steps_per_epoch)
        ```
    """
    global_batch_size = arguments.integer("global_batch_size", global_batch_size)
    num_replicas = arguments.integer("num_replicas", num_replicas, 1)
    num_workers = arguments.integer("num_workers", num_workers, 1)
    label_offset = arguments.integer("label_offset", label_offset)
    seed = arguments.integer("seed", seed, *arguments.INT64)
    if num_classes is not None:
        num_classes = arguments.integer("num_classes", num_classes, 1)
    arguments.choice("on_error", on_error, ("raise", "skip"))
    if global_batch_size < 1 or global_batch_size % num_replicas:
        raise ValueError(
            f"global_batch_size={global_batch_size} is not a positive multiple of the "
            f"{num_replicas} replicas ({global_batch_size} % {num_replicas} = "
            f"{global_batch_size % num_replicas}); {_multiples(global_batch_size, num_replicas)}"
            " would be"
        )
    if num_replicas % num_workers:
        raise ValueError(f"{num_workers} workers do not divide {num_replicas} replicas")
    index = find(data_dir, split, on_error)
    num_classes = check_labels(index, num_classes, label_offset, on_error)
    order = None
    if split == "train" if training is None else training:
        streams = order_lib.logical_streams(index.num_records, global_batch_size)
        order = order_lib.Order(index.num_records, global_batch_size, streams, seed, remainder)
    return DataContract(
        index, order, global_batch_size, num_replicas, num_workers, num_classes, label_offset
    )


def check_labels(index, num_classes=None, label_offset=0, on_error="raise"):
    """Checks the labels that the index counted; returns the number of classes.

    Raises:
        ValueError: names the label, the range seen, the number of classes, and the offset that
            would fit.
    """
    counts = {label - label_offset: count for label, count in index.label_counts.items()}
    if not counts:
        if num_classes is None and not index.class_names:
            raise ValueError(f"{index.directory}: no label known; pass num_classes")
        return num_classes or len(index.class_names)
    low, high = min(counts), max(counts)
    given = num_classes or len(index.class_names) or high + 1
    if not (num_classes or index.class_names) and given > 1000 * index.num_records:
        raise ValueError(
            f"split {index.split!r} of {index.directory}: the highest label is "
            f"{high + label_offset} ({counts[high]} record(s)), which would make {given} classes "
            f"of {index.num_records} records: mend it, or pass num_classes"
        )
    if low < 0 or high >= given:
        outside = {k: v for k, v in sorted(counts.items()) if not 0 <= k < given}
        label, count = next(iter(outside.items()))
        text = (
            f"split {index.split!r} of {index.directory}: label {label} ({count} records) is "
            f"outside [0, {given}) for {given} classes; the labels in the files run from "
            f"{low + label_offset} to {high + label_offset}"
        )
        if high - low < given:
            text += f": pass label_offset={low + label_offset}"
        elif low >= 0:
            text += f": pass num_classes={high + 1}"
        if on_error == "raise":
            raise ValueError(text)
        logger.warning("%s; %d such records are skipped", text, sum(outside.values()))
    known = sum(0 <= label < given for label in counts)
    if given > known:
        # The first few only: a label that is a mistake may stand for billions of classes.
        unseen = list(itertools.islice((n for n in range(given) if n not in counts), 9))
        guess = ""
        if not (num_classes or index.class_names):
            guess = (
                f" (a number guessed from the highest label, {high + label_offset}, of "
                f"{counts[high]} record(s): if that is a mistake, or classes are missing above it, "
                "pass num_classes)"
            )
        logger.warning(
            "split %r: %d of %d classes never occur: %s%s%s",
            index.split,
            given - known,
            given,
            ", ".join(_class(index, label) for label in unseen[:8]),
            " ..." if len(unseen) > 8 else "",
            guess,
        )
    return given


def _class(index, label):
    known = label < len(index.class_names)
    return f"{label} ({index.class_names[label]})" if known else str(label)


def _multiples(number, factor):
    """The multiples of a factor next to a number, for people."""
    below = number // factor * factor
    return f"{below} or {below + factor}" if below > 0 else str(factor)
