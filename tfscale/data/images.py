"""Datasets of pictures and labels, for training and for evaluation."""

import logging

import tensorflow as tf

from tfscale.data import arguments, clock, crops, decoding, pipeline, records, repair
from tfscale.data import cache as cache_lib
from tfscale.data import rows as rows_lib

logger = logging.getLogger("tfscale")
skipped_records = repair.skipped_records


def train_dataset(
    data_dir,
    global_batch_size,
    image_size,
    input_context=None,
    seed=0,
    cache=None,
    initial_step=0,
    on_error="raise",
    *,
    split="train",
    num_classes=None,
    label_offset=0,
    remainder="carry",
    area_range=(0.08, 1.0),
    aspect_range=(3 / 4, 4 / 3),
    flip=True,
    scaled_decode=False,
    augment=None,
    max_bad_share=0.01,
    threads=None,
    include_record_ids=False,
):
    """Returns an endless dataset of augmented pictures.

    The rows of a global batch are a function of (seed, step), and a picture's augmentation is a
    function of (seed, epoch, record): neither depends on the number of workers or devices, and
    a dataset that starts at `initial_step` continues one that was stopped there, to the bit.

    Args:
        data_dir: `str`, a folder that `prepare` made, or see `records.find`.
        global_batch_size: `int`, examples per step over all replicas.
        image_size: `int` or (height, width), pixels.
        input_context: `tf.distribute.InputContext`. With it, elements are per-replica batches
            of this worker, for `strategy.distribute_datasets_from_function`; without, global
            batches.
        seed: `int`. Defaults to 0.
        cache: None, "memory" or "disk" (files' bytes), "decoded" (pictures in memory, short side
            at most ``image_size / 0.875``), or a `cache.Cache`. Never the order, never an
            augmentation.
        initial_step: `int`, the step of training to start at. Defaults to 0.
        on_error: "raise": a bad record stops the job and is named; "skip": the next good record
            of its stream takes its place; it is named and counted (`skipped_records`).
        split: `str`. Defaults to "train".
        num_classes: `int`, outputs of the model, to check labels by. None: from the index.
        label_offset: `int`, subtracted from the labels in the files. Defaults to 0.
        remainder: "carry" or "drop": what is left of an epoch after the last whole batch.
        area_range, aspect_range: see `crops.sample_crop`.
        flip: `bool`, whether to mirror every other picture. Defaults to True.
        scaled_decode: `bool`, whether JPEGs are decoded at half, a quarter or an eighth of their
            scale where the window is that much larger than `image_size`: faster for small
            sizes, with other pixels. Defaults to False. See `jpeg.decode_and_crop`.
        augment: function of (image uint8 [height, width, 3], key int64) to such an image, for
            what is to be done besides crop and flip; equal keys must give equal images. See
            `augment.rand_augment`.
        max_bad_share: share of its records that a worker may skip, so that the limit is the
            same on any number of workers. Defaults to 0.01 (ten are always allowed).
        threads: `int`, pictures decoded at a time, and threads of the pipeline; None: as many as
            this process has cores.
        include_record_ids: `bool`: elements are (image, label, record number), to look at.

    Returns:
        `tf.data.Dataset` of (image, label): uint8 [batch, height, width, 3] in [0, 255], and
        int32 [batch].

    Raises:
        ValueError, FileNotFoundError: see `records.describe`. A bad record raises
            `tf.errors.InvalidArgumentError` when it is reached.
        TypeError, ValueError: if an argument is of another type or outside its range.

    Example:
        ```python
        dataset = strategy.distribute_datasets_from_function(
            lambda context: train_dataset("records", 256, 224, context, seed=1))
        model.fit(dataset, steps_per_epoch=contract.steps_per_epoch, epochs=90)
        ```

    Source: Szegedy et al., "Going deeper with convolutions", 2015 (the crops).
    """
    height_width = arguments.height_and_width(image_size)

    area_range = arguments.ascending("area_range", area_range, "(0, 1]")
    aspect_range = arguments.ascending("aspect_range", aspect_range, "(0, inf)")
    seed = arguments.integer("seed", seed, *arguments.INT64)
    initial_step = arguments.integer("initial_step", initial_step, 0)

    if augment is not None and not callable(augment):
        raise TypeError(f"augment={augment!r} is no function of (image, key)")

    def window_of(shapes, keys):
        return crops.sample_crop(shapes, keys, area_range, aspect_range)

    def flip_of(keys):
        return crops.flips(keys) if flip else tf.zeros_like(keys, tf.bool)

    dataset, contract = _batches(
        data_dir, split, global_batch_size, height_width, input_context, cache, on_error,
        max_bad_share, num_classes, label_offset, threads, window_of, flip_of, scaled_decode,
        augment, initial_step,
        order={"seed": seed, "remainder": remainder, "training": True},
    )  # fmt: skip

    def elements(image, label, weight, record):
        return (image, label, record) if include_record_ids else (image, label)

    dataset = dataset.map(elements)
    # An endless dataset that does not say so costs a collective among the workers at each step.
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    return _finish(dataset, threads)


def eval_dataset(
    data_dir,
    global_batch_size,
    image_size,
    input_context=None,
    pad_remainder=False,
    *,
    split="validation",
    crop_fraction=0.875,
    cache=None,
    on_error="raise",
    max_bad_share=0.01,
    num_classes=None,
    label_offset=0,
    threads=None,
    include_record_ids=False,
):
    """Returns a finite dataset with every picture exactly once, in the order of the records.

    The short side is resized to ``image_size / crop_fraction`` and the centre cut out. All
    workers and replicas get the same number of batches. Their sizes differ by one at most, so
    that no example is counted twice and no batch is empty, unless there are fewer examples than
    batches.

    Args:
        data_dir, global_batch_size, image_size, input_context: see `train_dataset`.
        pad_remainder: `bool`: batches are all full, and elements are (image, label, weight) with
            weight 0 for padding: for accelerators that need static shapes. Defaults to False.
        split: `str`. Defaults to "validation".
        crop_fraction: see `crops.centre_crop`. Defaults to 0.875.
        on_error: "skip" leaves a bad picture out of its batch (or gives it weight 0).
        cache, max_bad_share, num_classes, label_offset, threads, include_record_ids: see
            `train_dataset`.

    Returns:
        `tf.data.Dataset` of (image, label) or (image, label, weight).

    Example:
        ```python
        model.evaluate(eval_dataset("records", 256, 224))
        ```
    """
    height_width = arguments.height_and_width(image_size)
    crop_fraction = arguments.number("crop_fraction", crop_fraction, "(0, 1]")
    dataset, contract = _batches(
        data_dir, split, global_batch_size, height_width, input_context, cache, on_error,
        max_bad_share, num_classes, label_offset, threads,
        window_of=lambda shapes, keys: crops.centre_crop(shapes, height_width, crop_fraction),
        flip_of=lambda keys: tf.zeros_like(keys, tf.bool),
        scaled_decode=False, augment=None, initial_step=0, order={"training": False},
    )  # fmt: skip

    def only_examples(image, label, weight, record):
        everything = (image, label, record)
        return tf.cond(
            tf.reduce_all(weight > 0),
            lambda: everything,
            lambda: tuple(tf.boolean_mask(part, weight > 0) for part in everything),
        )

    if pad_remainder:
        dataset = dataset.map(
            lambda image, label, weight, record: (
                (image, label, weight) + ((record,) if include_record_ids else ())
            )
        )
    else:
        dataset = dataset.map(only_examples)
        dataset = dataset.map(
            lambda image, label, record: (
                tf.ensure_shape(image, [None, *height_width, 3]),
                tf.ensure_shape(label, [None]),
                *((tf.ensure_shape(record, [None]),) if include_record_ids else ()),
            )
        )
    batches = contract.steps_per_epoch * contract.num_replicas // contract.num_workers
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(batches))
    return _finish(dataset, threads)


def _batches(
    data_dir, split, global_batch_size, image_size, input_context, cache, on_error, max_bad_share,
    num_classes, label_offset, threads, window_of, flip_of, scaled_decode, augment, initial_step,
    order,
):  # fmt: skip
    """Returns `(dataset, contract)`: batches (image, label, weight, record)."""
    arguments.choice("on_error", on_error, ("raise", "skip"))
    max_bad_share = arguments.number("max_bad_share", max_bad_share, "[0, 1]")
    if threads is not None:
        threads = arguments.integer("threads", threads, 1)
    arguments.choice("cache", cache, cache_lib.KINDS)
    context = arguments.input_context(input_context)
    worker = context.input_pipeline_id
    contract = records.describe(
        data_dir, split, global_batch_size, num_replicas=context.num_replicas_in_sync,
        num_workers=context.num_input_pipelines, num_classes=num_classes,
        label_offset=label_offset, on_error=on_error, **order,
    )  # fmt: skip
    for line in contract.lines(worker):
        logger.info("%s", line)
    store = cache_lib.create(cache, image_size, contract, worker)
    decode = decoding.Decoding(contract, store, image_size, scaled_decode, augment)
    rows = rows_lib.Rows(contract, worker, window_of, flip_of)
    mend = repair.Repair(rows, decode.load, on_error, max_bad_share)
    steps = None if contract.order is not None else contract.steps_per_epoch
    batch_size = contract.global_batch_size // contract.num_replicas
    tables = pipeline.tables(initial_step, steps, rows, mend)
    vectors = decode.pictures(tables, batch_size, threads or pipeline.usable_cores())
    whole = pipeline.whole_batches(vectors, initial_step * rows.per_step, mend, batch_size)
    return (whole if steps is None else whole.take(steps * rows.local_replicas)), contract


def _finish(dataset, threads):
    options = pipeline.options()
    if threads is not None:
        options.threading.private_threadpool_size = threads
    return clock.timed(dataset.prefetch(2)).with_options(options)
