"""Datasets with the elements of `images` and nothing on disk: to measure, and to try things out."""

import tensorflow as tf

from tfscale.data import arguments, pipeline


def train_dataset(
    data_dir=None,
    global_batch_size=32,
    image_size=224,
    input_context=None,
    seed=0,
    cache=None,
    initial_step=0,
    on_error="raise",
    *,
    num_classes=None,
    num_records=None,
    include_record_ids=False,
    **ignored,
):
    """Returns an endless dataset of one random batch, with the element spec of `images`.

    Args:
        num_classes: `int`; labels run from 0 to ``num_classes - 1``. None means 1000.
        global_batch_size, image_size, input_context, seed, include_record_ids: see
            `images.train_dataset`.
        data_dir, cache, initial_step, on_error, num_records, **ignored: accepted and without
            effect, so that either module can be called.

    Returns:
        `tf.data.Dataset` of (image, label): uint8 [batch, height, width, 3], int32 [batch].

    Example:
        >>> train_dataset(None, 4, 8).element_spec[0].shape
        TensorShape([4, 8, 8, 3])
    """
    element = _batch(global_batch_size, image_size, input_context, seed, num_classes)
    element = element if include_record_ids else element[:2]
    return tf.data.Dataset.from_tensors(element).repeat().with_options(pipeline.options())


def eval_dataset(
    data_dir=None,
    global_batch_size=32,
    image_size=224,
    input_context=None,
    pad_remainder=False,
    *,
    seed=0,
    num_classes=None,
    num_records=None,
    include_record_ids=False,
    **ignored,
):
    """Returns a finite dataset of random pictures, with the element spec of `images`.

    Args:
        num_records: `int`, examples in all, spread over the batches as `images.eval_dataset`
            does it. None means one global batch.
        pad_remainder: `bool`, see `images.eval_dataset`.
        global_batch_size, image_size, input_context, seed, num_classes, include_record_ids,
            data_dir, **ignored: see `train_dataset`.

    Returns:
        `tf.data.Dataset` of (image, label) or (image, label, weight).

    Example:
        >>> len(list(eval_dataset(None, 4, 8, num_records=10)))
        3
    """
    context = arguments.input_context(input_context)
    image, label, record = _batch(global_batch_size, image_size, context, seed, num_classes)
    if num_records is None:
        num_records = global_batch_size
    num_records = arguments.integer("num_records", num_records, 0)
    size = label.shape[0]
    local = context.num_replicas_in_sync // context.num_input_pipelines
    steps = -(-num_records // global_batch_size)

    def element(number):
        step, device = number // local, number % local
        replica = context.input_pipeline_id * local + device
        batches = steps * context.num_replicas_in_sync
        batch = step * context.num_replicas_in_sync + replica
        count = (batch + 1) * num_records // batches - batch * num_records // batches
        count = tf.cast(count, tf.int32)
        if pad_remainder:
            weight = tf.cast(tf.range(size) < count, tf.float32)
            parts = (image, label, weight)
        else:
            parts = (image[:count], label[:count])
        ids = (record if pad_remainder else record[:count],)
        return parts + (ids if include_record_ids else ())

    dataset = tf.data.Dataset.range(steps * local).map(element)
    return dataset.with_options(pipeline.options())


def _batch(global_batch_size, image_size, context, seed, num_classes):
    context = arguments.input_context(context)
    global_batch_size = arguments.integer("global_batch_size", global_batch_size, 1)
    seed = arguments.integer("seed", seed, *arguments.INT64)
    if num_classes is not None:
        num_classes = arguments.integer("num_classes", num_classes, 1, 2**31 - 1)
    if global_batch_size % context.num_replicas_in_sync:
        raise ValueError(
            f"global_batch_size={global_batch_size} is not a multiple of the "
            f"{context.num_replicas_in_sync} replicas"
        )
    size = global_batch_size // context.num_replicas_in_sync
    shape = [size, *arguments.height_and_width(image_size), 3]
    key = tf.constant([seed, context.input_pipeline_id], tf.int64)
    pixels = tf.random.stateless_uniform(shape, key, 0, 256, tf.int32)
    labels = tf.random.stateless_uniform([size], key, 0, num_classes or 1000, tf.int32)
    return tf.cast(pixels, tf.uint8), labels, tf.range(size, dtype=tf.int64)
