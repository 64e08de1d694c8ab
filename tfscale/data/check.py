"""Verifies record shards before a training run does.

python -m tfscale.data.check RECORDS [--decode] [--num_classes=1000] [--label_offset=0]
"""

import argparse
import itertools
import logging
import pathlib
import sys
import time

logger = logging.getLogger("tfscale")


def check(data_dir, split=None, *, decode=True, num_classes=None, label_offset=0, log=print):
    """Verifies files, checksums, fields, labels and pictures of all records.

    Args:
        data_dir: `str`, see `records.find`.
        split: `str`; None checks every split that has an index or record files.
        decode: `bool`, whether to decode each picture. Defaults to True.
        num_classes, label_offset: see `records.describe`.
        log: function of one `str`, called for each finding and with the outcome.

    Returns:
        `list` of `str`, one for each fault; empty if all is well.

    Raises:
        FileNotFoundError: if there is nothing to check.

    Example:
        ```python
        assert not check("records")
        ```
    """
    from tfscale.data import arguments
    from tfscale.data import index as index_lib

    label_offset = arguments.integer("label_offset", label_offset)
    if num_classes is not None:
        num_classes = arguments.integer("num_classes", num_classes, 1)
    splits = [split] if split else find_splits(data_dir)
    if not splits:
        raise FileNotFoundError(f"{data_dir} holds neither an index nor record files")
    faults = []
    for name in splits:
        faults += _check_split(
            index_lib, str(data_dir), name, decode, num_classes, label_offset, log
        )
    return faults


def find_splits(data_dir):
    """Returns the names of the splits in a folder."""
    names = set()
    for path in pathlib.Path(data_dir).glob("*"):
        if path.name.endswith(".index.json"):
            names.add(path.name.removesuffix(".index.json"))
        elif "-of-" in path.name and not path.name.startswith("."):
            names.add(path.name.split("-")[0])
        elif path.name.endswith(".tfrecord"):
            names.add(path.name.split(".")[0].split("-")[0])
    return sorted(names)


def _check_split(index_lib, data_dir, split, decode, num_classes, label_offset, log):
    from tfscale.data import records

    found, faults = index_lib.load(data_dir, split), []
    if found is not None:
        faults += found.problems()
    else:
        try:
            found = records.find(data_dir, split)
        except ValueError as error:
            faults.append(str(error))
            found = records.find(data_dir, split, on_error="skip")
    for fault in faults:
        log(fault)
    # Records with labels outside are named below, one by one.
    classes = num_classes or records.check_labels(found, None, label_offset, on_error="skip")
    said, bad = time.monotonic(), []
    for record, reason in bad_records(found, classes, label_offset, decode):
        if reason:
            log(reason)
            bad.append(reason)
        if time.monotonic() - said > 5:
            said = time.monotonic()
            log(f"{split}: {record + 1} of {found.num_records} records checked")
    log(
        f"{split}: {found.num_records} records in {len(found.shards)} file(s): "
        + (f"{len(bad)} bad record(s), {len(faults)} bad file(s)" if bad or faults else "all good")
    )
    return faults + bad


def bad_records(index, num_classes, label_offset=0, decode=True):
    """Yields `(record, reason)` for each record; the reason is None for a good one."""
    import tensorflow as tf

    from tfscale.data import jpeg, pipeline, reading

    files, offsets, _ = index.locations()
    paths = tf.constant(index.paths)

    def probe(record, file, offset):
        encoded, label, shape = reading.parse(reading.read(paths[file], offset))
        if decode:
            image = jpeg.decode(encoded)
            true = tf.shape(image)[:2]
            fits = tf.reduce_all(tf.logical_or(shape == true, tf.reduce_any(shape == 0)))
        else:
            fits = tf.strings.length(encoded) > 0
        label -= label_offset
        fits = tf.reduce_all([fits, label >= 0, label < num_classes])
        with tf.control_dependencies([tf.debugging.Assert(fits, [label])]):
            return tf.identity(record)

    numbers = tf.data.Dataset.range(index.num_records)
    rows = tf.data.Dataset.zip((numbers, tf.data.Dataset.from_tensor_slices((files, offsets))))
    good = (
        rows.map(
            lambda record, place: probe(record, *place), num_parallel_calls=pipeline.usable_cores()
        )
        .ignore_errors()
        .with_options(pipeline.options())
        .as_numpy_iterator()
    )
    expected = 0
    for record in itertools.chain(good, [index.num_records]):
        for bad in range(expected, record):
            yield bad, reading.diagnose(index, bad, num_classes, label_offset)
        if record < index.num_records:
            yield int(record), None
        expected = record + 1


def main(argv=None):
    """The command line; returns the exit code: 0 all good, 1 faults, 2 nothing to check."""
    parser = argparse.ArgumentParser(
        prog="python -m tfscale.data.check", description="Verifies record shards."
    )
    parser.add_argument("data_dir")
    parser.add_argument("--split")
    parser.add_argument("--decode", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--num_classes", type=int)
    parser.add_argument("--label_offset", type=int, default=0)
    arguments = vars(parser.parse_args(argv))
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        return 1 if check(arguments.pop("data_dir"), **arguments) else 0
    except (FileNotFoundError, ValueError) as error:
        print(f"check: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
