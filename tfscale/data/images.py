"""Datasets of pictures and labels, for training and for evaluation."""

import logging

import tensorflow as tf

from tfscale import cores
from tfscale.data import (
    arguments,
    clock,
    crops,
    decoding,
    native,
    pipeline,
    records,
    rectangles,
    repair,
    service_address,
    service_client,
    verdict,
)
from tfscale.data import cache as cache_lib
from tfscale.data import rows as rows_lib
from tfscale.data import threads as threads_lib

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
    threads="auto",
    data_service=None,
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
        threads: `int`, records read and pictures decoded at a time, and threads of the pipeline;
            "auto", the default: measured at the start and remembered, see `threads`.
        data_service: "grpc://host:port" of processes that read and decode for this one (`python
            -m tfscale.data.service`); None: what the environment variable
            ``TFSCALE_DATA_SERVICE`` says, or no such service. The batches are the same.
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
    height_width, threads = arguments.height_and_width(image_size), threads_lib.check(threads)

    area_range = arguments.ascending("area_range", area_range, "(0, 1]")
    aspect_range = arguments.ascending("aspect_range", aspect_range, "(0, inf)")
    seed = arguments.integer("seed", seed, *arguments.INT64)
    initial_step = arguments.integer("initial_step", initial_step, 0, 2**40)

    if augment is not None and not callable(augment):
        raise TypeError(f"augment={augment!r} is no function of (image, key)")

    def window_of(shapes, keys):
        return crops.sample_crop(shapes, keys, area_range, aspect_range)

    def flip_of(keys):
        return crops.flips(keys) if flip else tf.zeros_like(keys, tf.bool)

    address = service_address.resolve(data_service)
    if address is not None and cache is not None:
        raise ValueError(
            f"cache={cache!r} keeps records in this process, and with the data service at "
            f"{address} other processes read them: use cache=None (--cache=none)"
        )
    source = _Source(
        data_dir, split, global_batch_size, height_width, input_context, cache, on_error,
        max_bad_share, num_classes, label_offset, scaled_decode, augment,
        order={"seed": seed, "remainder": remainder, "training": True},
    )  # fmt: skip
    rows = rows_lib.Rows(source.contract, source.worker, height_width, window_of, flip_of)
    mend = source.repair(rows)

    def batches(calls, first_step):
        if address is None:
            tables = pipeline.tables(first_step, None, rows, mend)
            vectors = source.decode.pictures(tables, source.batch_size, calls)
        else:
            vectors = service_client.distribute(
                address,
                first_step,
                lambda step: source.decode.pictures(
                    tf.data.Dataset.from_tensors(rows.table(step)),
                    service_client.ROWS,
                    service_client.CALLS,
                ),
                rows.per_step,
                mend.probe,
            )
        return pipeline.whole_batches(vectors, first_step * rows.per_step, mend, source.batch_size)

    calls = cores.usable_cores() if address else source.calls(threads, batches)
    verdict.register(
        source.contract, source.worker, source.store, calls, height_width,
        cached=cache is not None, tuned=threads == "auto", service=address is not None,
    )  # fmt: skip

    def elements(image, label, weight, record):
        return (image, label, record) if include_record_ids else (image, label)

    dataset = batches(calls, initial_step).map(elements)
    # An endless dataset that does not say so costs a collective among the workers at each step.
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    return clock.timed(_threaded(dataset, calls), rows.local_replicas)


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
    threads="auto",
    rectangular=False,
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
        rectangular: `bool`: pictures are sorted by aspect ratio and each batch has the size that
            cuts least off them, with `image_size`, an `int`, as its short side. For models that
            take any size. See `rectangles.plan`. Defaults to False.

    Returns:
        `tf.data.Dataset` of (image, label) or (image, label, weight).

    Raises:
        ValueError, FileNotFoundError: as `train_dataset`.

    Example:
        ```python
        model.evaluate(eval_dataset("records", 256, 224))
        ```
    """
    height_width, threads = arguments.height_and_width(image_size), threads_lib.check(threads)
    crop_fraction = arguments.number("crop_fraction", crop_fraction, "(0, 1]")
    source = _Source(
        data_dir, split, global_batch_size, height_width, input_context, cache, on_error,
        max_bad_share, num_classes, label_offset, order={"training": False},
        rectangular=rectangular,
    )  # fmt: skip
    contract, batch_size = source.contract, source.batch_size
    arguments_of_rows = (
        contract, source.worker, height_width,
        lambda shapes, keys: crops.centre_crop(shapes, height_width, crop_fraction),
        lambda keys: tf.zeros_like(keys, tf.bool),
    )  # fmt: skip
    if rectangular:
        plan = rectangles.plan(
            *contract.index.sizes(), contract.evaluation_bounds(), contract.num_replicas,
            image_size, crop_fraction,
        )  # fmt: skip
        rows, height_width = rows_lib.RectangularRows(*arguments_of_rows, plan), (None, None)
        logger.info("%d size%s of pictures, each a trace of the model: %s", len(plan.shapes),
                    "" if len(plan.shapes) == 1 else "s",
                    ", ".join(f"{h} x {w}" for h, w in plan.shapes))  # fmt: skip
    else:
        rows = rows_lib.Rows(*arguments_of_rows)
    mend = source.repair(rows)

    def batches(calls, first_step):
        tables = pipeline.tables(first_step, contract.steps_per_epoch - first_step, rows, mend)
        if rectangular:
            return pipeline.whole_rectangles(
                tables, lambda tables: source.decode.pictures(tables, batch_size, calls), mend,
                batch_size,
            )  # fmt: skip
        vectors = source.decode.pictures(tables, batch_size, calls)
        first, last = first_step * rows.per_step, contract.steps_per_epoch * rows.per_step
        return pipeline.whole_batches(vectors, first, mend, batch_size, last)

    calls = source.calls(threads, batches)
    batches_of_epoch = contract.steps_per_epoch * rows.local_replicas
    dataset = batches(calls, 0).take(batches_of_epoch)

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
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(batches_of_epoch))
    return clock.timed(_threaded(dataset, calls), rows.local_replicas)


class _Source:
    """What train and evaluation datasets have in common: the records, and what makes pictures."""

    def __init__(
        self, data_dir, split, global_batch_size, image_size, input_context, cache, on_error,
        max_bad_share, num_classes, label_offset, scaled_decode=False, augment=None, *, order,
        rectangular=False,
    ):  # fmt: skip
        arguments.choice("on_error", on_error, ("raise", "skip"))
        self._max_bad_share = arguments.number("max_bad_share", max_bad_share, "[0, 1]")
        self._on_error, self._image_size = on_error, image_size
        self._cache = cache_lib.resolve(cache, image_size)
        context = arguments.input_context(input_context)
        self.worker = context.input_pipeline_id
        self.contract = records.describe(
            data_dir, split, global_batch_size, num_replicas=context.num_replicas_in_sync,
            num_workers=context.num_input_pipelines, num_classes=num_classes,
            label_offset=label_offset, on_error=on_error, **order,
        )  # fmt: skip
        for line in self.contract.lines(self.worker):
            logger.info("%s", line)
        if not native.available():
            logger.info("  pictures are decoded by TensorFlow's ops: ours, which are faster, are "
                        "not built or switched off, see tfscale.data.native")  # fmt: skip
        self.store = cache_lib.create(self._cache, image_size, self.contract, self.worker)
        self.decode = decoding.Decoding(
            self.contract, self.store, (None, None) if rectangular else image_size, scaled_decode,
            augment, skips=on_error == "skip",
        )  # fmt: skip
        self.batch_size = self.contract.global_batch_size // self.contract.num_replicas

    def repair(self, rows):
        return repair.Repair(rows, self.decode.load, self._on_error, self._max_bad_share)

    def calls(self, threads, batches):
        """Returns the number of parallel calls, measured on `batches` for "auto"."""
        return threads_lib.choose(
            threads,
            lambda calls, step: _threaded(batches(calls, step), calls),
            self.contract,
            self._image_size,
            cache=repr(self._cache),
            native=native.available(),
        )


def _threaded(dataset, calls):
    """Returns the dataset with a buffer, and a thread for each call."""
    options = pipeline.options()
    options.threading.private_threadpool_size = calls
    return dataset.prefetch(2).with_options(options)
