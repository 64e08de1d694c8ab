"""Looks at every file and record of a split, and says what is wrong with each."""

import itertools

import tensorflow as tf

from tfscale.cores import usable_cores
from tfscale.data import index as index_lib
from tfscale.data import jpeg, pipeline, reading, resync
from tfscale.data import records as records_lib
from tfscale.data.findings import Finding


def files(data_dir, split):
    """Finds the records of a split and what is wrong with its files.

    Args:
        data_dir, split: see `records.find`.

    Returns:
        `(index, findings)`: `index.RecordIndex`, and a `list` of `Finding`.
    """
    index = None if not tf.io.gfile.isdir(data_dir) else index_lib.load(data_dir, split)
    if index is None:
        return _without_index(data_dir, split)
    found = []
    paths = [*index.paths, *index_lib.record_files(data_dir, split)]
    for text in index.problems():
        path = next((path for path in paths if text.startswith(path)), index.directory)
        found.append(Finding(split, path, text))
    for path, shard in zip(index.paths, index.shards, strict=True):
        end = sum(shard.lengths) + index_lib.FRAME * len(shard.lengths)
        if end != shard.bytes:
            text = (
                f"{len(shard.lengths)} records of {path} take {end} bytes, but it says that the "
                f"file has {shard.bytes}"
            )
            found.append(of_index(index, text))
    return index, found


def _without_index(data_dir, split):
    """Walks through the files, as no index says what should be there."""
    index = records_lib.find(data_dir, split, on_error="skip")
    found = [Finding(split, index.directory, text) for text in index_lib.gaps(index.paths)]
    for path in index.paths:
        size = tf.io.gfile.stat(path).length
        for number, (offset, lost, fault) in enumerate(resync.walk(path)):
            if fault:
                hint = index_lib.gzip_hint(path) if number == 0 else ""
                text = (
                    f"record {number} of {path}, at byte {offset} of {size}: {fault}; {lost} "
                    f"bytes lost{hint}"
                )
                found.append(Finding(split, path, text, number, offset, lost))
    return index, found


def of_index(index, text):
    """Returns a finding about the index itself."""
    path = index_lib.index_path(index.directory, index.split)
    remedy = "delete it to index again, if the files are right"
    return Finding(index.split, path, f"{path}: {text}; {remedy}")


def records(index, num_classes, label_offset=0, decode=True):
    """Reads every record, and compares it with the index.

    Args:
        index: `index.RecordIndex`.
        num_classes, label_offset: `int`, to check labels by.
        decode: `bool`, whether to decode each picture.

    Yields:
        `(record, label, finding)` in order: its number in the split; its label, offset taken
        off, or None for a bad record; what is wrong with it or with the index's word on it, or
        None.
    """
    _, offsets, lengths = index.locations()
    heights, widths = index.sizes()
    expected = 0
    for good in itertools.chain(_good(index, num_classes, label_offset, decode), [None]):
        record = index.num_records if good is None else int(good[0])
        for bad in range(expected, record):
            text = reading.diagnose(index, bad, num_classes, label_offset)
            yield bad, None, _finding(index, bad, text)
        if good is None:
            return
        _, label, height, width, length = map(int, good)
        text = ""
        if length != lengths[record]:
            text = f"{length} bytes are there"
        elif (height, width) != (heights[record], widths[record]) and height and width:
            claimed = f"{heights[record]} x {widths[record]}"
            text = f"the index says height x width {claimed}, is {height} x {width}"
        if text:
            path, number, *_ = index.locate(record)
            place = f"({lengths[record]} bytes at byte {offsets[record]})"
            text = f"record {number} of {path} {place}: {text}"
        yield record, label, _finding(index, record, text) if text else None
        expected = record + 1


def _finding(index, record, text):
    path, number, offset, length = index.locate(record)
    return Finding(index.split, path, text, number, offset, length + index_lib.FRAME)


def _good(index, num_classes, label_offset, decode):
    """Yields int64 [record, label, height, width, bytes] of each record that can be used."""
    places, offsets, _ = index.locations()
    paths = tf.constant(index.paths)

    def probe(record, file, offset):
        serialized = reading.read(paths[file], offset)
        encoded, label = reading.parse(serialized)
        absent = tf.io.FixedLenFeature([], tf.int64, 0)
        sides = {reading.HEIGHT: absent, reading.WIDTH: absent}
        said = tf.io.parse_single_example(serialized, sides)
        said = tf.stack([said[reading.HEIGHT], said[reading.WIDTH]])
        if decode:
            size = tf.shape(jpeg.decode(encoded), tf.int64)[:2]
            good = tf.reduce_all(tf.logical_or(said == size, tf.reduce_any(said == 0)))
        else:
            size, good = said, tf.strings.length(encoded) > 0
        label -= label_offset
        good = tf.reduce_all([good, label >= 0, label < num_classes])
        with tf.control_dependencies([tf.debugging.Assert(good, [label])]):
            length = tf.strings.length(serialized)
            return tf.stack([record, label, size[0], size[1], tf.cast(length, tf.int64)])

    numbers = tf.data.Dataset.range(index.num_records)
    rows = tf.data.Dataset.zip((numbers, tf.data.Dataset.from_tensor_slices((places, offsets))))
    return (
        rows.map(
            lambda record, place: probe(record, *place),
            num_parallel_calls=usable_cores(),
        )
        .ignore_errors()
        .with_options(pipeline.options())
        .as_numpy_iterator()
    )
