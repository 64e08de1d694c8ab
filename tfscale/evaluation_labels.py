"""The labels of an exact evaluation: which can be counted, and how they rank among the outputs."""

import tensorflow as tf

from tfscale._keras import keras
from tfscale.distribute import _tf_private


def check_elements(spec, flip):
    """Refuses elements of a dataset that cannot be counted, before any is read.

    Args:
        spec: the dataset's `element_spec`, plain or distributed.
        flip: `bool`, whether x has to be pictures.

    Raises:
        ValueError: for elements that are not batches of (x, y) or (x, y, weight).
    """
    # Of a distributed dataset, the first replica's.
    parts = spec if isinstance(spec, tuple) else (spec,)
    x, *others = (_tf_private.first_replica_spec(part) for part in parts)
    if len(others) not in (1, 2) or not all(_is_numbers(part) for part in others):
        raise ValueError(
            "elements of the dataset are (x, y) or (x, y, weight), y and weight tensors of "
            f"numbers, not {spec}"
        )
    if any(part.shape.rank == 0 for part in others):
        raise ValueError(
            f"elements of the dataset are single examples, {spec}: make batches of them, with "
            "dataset.batch(global_batch_size)"
        )
    shape = others[-1].shape
    if len(others) == 2 and (shape.rank or 1) > 1 and shape[1:].num_elements() != 1:
        raise ValueError(f"weights of shape {shape} are not one for each example: wanted [batch]")
    if flip and not (isinstance(x, tf.TensorSpec) and x.shape.rank in (4, None)):
        raise ValueError(
            f"flip=True mirrors pictures [batch, height, width, channels], but x is {x}"
        )


def check_labels(model, spec, top):
    """Refuses labels that do not fit the model's outputs and loss, before any is read.

    Only where their shapes are known; those of a subclassed model show when it is called.

    Args:
        model: compiled Keras model.
        spec: see `check_elements`, which it has passed.
        top: see `tfscale.evaluation.evaluate`.

    Raises:
        ValueError: names both shapes.
    """
    labels = _tf_private.first_replica_spec(spec[1]).shape
    outputs = [tensor.shape for tensor in model.outputs or ()]
    losses = tf.nest.flatten(model.loss)
    if len(outputs) != 1 or len(losses) != 1 or None in (labels.rank, outputs[0].rank):
        return
    (outputs,), loss = outputs, keras.losses.get(losses[0])
    classes = outputs[-1] if outputs.rank else None
    if classes is None:
        return
    if top:
        _check_shapes(outputs, labels)
    if outputs.rank != 2 or labels.rank > 2:
        return
    width, known = labels[1] if labels.rank == 2 else 1, keras.losses
    takes_numbers = (
        loss is known.sparse_categorical_crossentropy
        or type(loss) is known.SparseCategoricalCrossentropy
    )
    takes_rows = (
        loss is known.categorical_crossentropy or type(loss) is known.CategoricalCrossentropy
    )
    if takes_numbers and width not in (1, None):
        wanted = "class numbers [batch], or categorical_crossentropy for a row of each example"
    elif takes_rows and width not in (classes, None):
        wanted = f"a row of {classes} for each example" + (
            ", or sparse_categorical_crossentropy for class numbers" if width == 1 else ""
        )
    else:
        return
    raise ValueError(
        f"labels of shape {labels} with outputs of shape {outputs} do not fit the loss "
        f"{getattr(loss, 'name', None) or loss.__name__}: expected {wanted}"
    )


def rank_of_label(outputs, labels):
    """How many classes come before that of the label, by output: 0 where it is the highest.

        rank = number of c with outputs[c] > outputs[label], or equal and c < label

    Args:
        outputs: floating tensor ``[b, classes]``.
        labels: ``[b]`` or ``[b, 1]``, class numbers, or ``[b, classes]``, whose highest entry
            is the class.

    Returns:
        int64 tensor ``[b]``; the highest int64 where an output is NaN or the label is no class:
        a number that is none, a row of equal entries (`tf.one_hot` of such a number) or with NaN.

    Raises:
        ValueError: for other shapes.

    Example:
        >>> rank_of_label(tf.constant([[0.2, 0.4, 0.4]]), tf.constant([2])).numpy()
        array([1])
    """
    _check_shapes(outputs.shape, labels.shape)
    classes = outputs.shape[1]
    if labels.shape.rank == 2 and labels.shape[1] == classes:
        rows = tf.cast(labels, tf.float64)
        is_class = tf.reduce_any(rows != rows[:, :1], axis=1)
        is_class &= ~tf.reduce_any(tf.math.is_nan(rows), axis=1)
        labels = tf.argmax(labels, axis=1)
    else:
        given = tf.reshape(labels, [-1])
        labels = tf.cast(given, tf.int64)
        # A fraction is no class, nor is NaN.
        is_class = (labels >= 0) & (labels < classes) & (tf.cast(labels, given.dtype) == given)
    labels = tf.clip_by_value(labels, 0, classes - 1)[:, tf.newaxis]
    own = tf.gather(outputs, labels, batch_dims=1)
    lower = tf.range(classes, dtype=tf.int64)[tf.newaxis] < labels
    rank = tf.math.count_nonzero((outputs > own) | ((outputs == own) & lower), axis=1)
    is_sound = is_class & ~tf.reduce_any(tf.math.is_nan(outputs), axis=1)
    return tf.where(is_sound, rank, rank.dtype.max)


def _is_numbers(spec):
    dtype = getattr(spec, "dtype", tf.string)
    numbers = dtype.is_floating or dtype.is_integer or dtype.is_bool
    return isinstance(spec, tf.TensorSpec) and numbers


def _check_shapes(outputs, labels):
    classes = outputs[1] if outputs.rank == 2 else None
    if classes is None or classes < 2:
        raise ValueError(
            f"outputs of shape {outputs} are not [batch, classes] with 2 classes or more, so "
            "there is no top-k accuracy of them: evaluate with top=() for the loss alone"
        )
    if labels.rank != 1 and (labels.rank != 2 or labels[1] not in (1, classes)):
        raise ValueError(
            f"labels of shape {labels} with outputs of shape {outputs}: expected class numbers "
            f"[batch], or a row of {classes} for each example"
        )
