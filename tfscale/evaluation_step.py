"""What `evaluate` does on a worker: sums over the examples of its part, batch by batch."""

import weakref

import tensorflow as tf

from tfscale._keras.example_loss import per_example_loss, takes_logits
from tfscale.distribute import _tf_private
from tfscale.distribute.lost_workers import explain_lost_worker

# Of a row of probabilities: bfloat16 has 8 bits, and a softmax may have thousands of classes.
_SUM_TOLERANCE = 0.02


class EvaluationStep:
    """Counts a global batch; traced once for a model, which it does not keep alive.

    Args:
        model: compiled Keras model with one output.
        flip: `bool`, see `tfscale.evaluation.evaluate`.
        top: `tuple` of `int`.

    Attributes:
        compiled: weak reference to the `compiled_loss` that is traced.
    """

    def __init__(self, model, flip, top):
        self._model = weakref.ref(model)
        self.compiled = weakref.ref(model.compiled_loss)
        self._flip, self._top = flip, top
        self._add_batch = tf.function(self._add_next_batch)

    def run(self, data, steps):
        """Sums over this worker's part of a dataset.

        Args:
            data: dataset that the model's strategy has distributed.
            steps: `int`, how many global batches; None for all.

        Returns:
            `dict` of "loss", `float`; "examples", those that count; "odd_weights", those with
            a weight other than 0 and 1; "no_probabilities", those whose outputs are none where
            they have to be, `int`; "right", a list of `int` for `top`.

        Raises:
            ValueError: if the dataset ends before `steps`.
        """
        totals, done = _zeros(self._top), 0
        try:
            iterator = iter(data)
            while steps is None or done < steps:
                totals, found = self._add_batch(iterator, totals)
                if not found:
                    break
                done += 1
        except tf.errors.OpError as error:
            text = explain_lost_worker(error)
            if text is None:
                raise
            raise RuntimeError(text) from error
        if steps is not None and done < steps:
            raise ValueError(f"steps={steps}, but the dataset ended after {done} batches")
        return {name: total.numpy().tolist() for name, total in totals.items()}

    def _add_next_batch(self, iterator, totals):
        strategy = self._model().distribute_strategy
        # Not `next`, which drops the last batches where not all replicas have one.
        batch = iterator.get_next_as_optional()

        def add():
            counted = strategy.run(self._count, args=(batch.get_value(),))
            local = strategy.experimental_local_results
            return {name: tf.add_n([totals[name], *local(counted[name])]) for name in totals}

        found = batch.has_value()
        return tf.cond(found, add, lambda: totals), found

    def _count(self, batch):
        """The sums of a replica's batch."""
        x, y, weight = (*batch, None)[:3]
        if y.shape[0]:
            return self._count_examples(x, y, weight)
        # A convolution over an empty batch is an error in some of TensorFlow's kernels.
        return tf.cond(
            tf.shape(y)[0] > 0,
            lambda: self._count_examples(x, y, weight),
            lambda: _zeros(self._top),
        )

    def _count_examples(self, x, y, weight):
        model = self._model()
        counts, odd = _counted(weight, tf.shape(y)[0])
        # Losses refuse labels such as -1, with which padding may be marked.
        counts_by_row = tf.reshape(counts, [-1] + [1] * (y.shape.rank - 1))
        y = tf.where(counts_by_row, y, tf.zeros_like(y))
        outputs = model(x, training=False)
        no_probabilities = tf.zeros(tf.shape(y)[:1], tf.bool)
        if self._flip:
            outputs, no_probabilities = _mean_with_mirrored(model, x, outputs)
        loss = per_example_loss(model, y, outputs)
        right = [tf.zeros([0], tf.int64)]
        if self._top:
            rank = rank_of_label(outputs, y)
            right = [_count_true((rank < k) & counts)[tf.newaxis] for k in self._top]
        # Not a product with 0: padding may give NaN.
        loss = tf.where(counts, tf.cast(loss, tf.float64), tf.zeros([], tf.float64))
        return {
            "loss": tf.reduce_sum(loss),
            "examples": _count_true(counts),
            "odd_weights": _count_true(odd),
            "no_probabilities": _count_true(no_probabilities & counts),
            "right": tf.concat(right, axis=0),
        }


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


def _is_numbers(spec):
    dtype = getattr(spec, "dtype", tf.string)
    numbers = dtype.is_floating or dtype.is_integer or dtype.is_bool
    return isinstance(spec, tf.TensorSpec) and numbers


def rank_of_label(outputs, labels):
    """How many classes come before that of the label, by output: 0 where it is the highest.

        rank = number of c with outputs[c] > outputs[label], or equal and c < label

    Args:
        outputs: floating tensor ``[b, classes]``.
        labels: ``[b]`` or ``[b, 1]``, class numbers, or ``[b, classes]``, whose highest entry
            is the class.

    Returns:
        int64 tensor ``[b]``; the highest int64 where an output is NaN or the label is no class.

    Raises:
        ValueError: for other shapes.

    Example:
        >>> rank_of_label(tf.constant([[0.2, 0.4, 0.4]]), tf.constant([2])).numpy()
        array([1])
    """
    classes = outputs.shape[-1] if outputs.shape.rank == 2 else None
    if classes is None or classes < 2:
        raise ValueError(
            f"outputs of shape {outputs.shape} are not [batch, classes] with 2 classes or more, so "
            "there is no top-k accuracy of them: evaluate with top=() for the loss alone"
        )
    if labels.shape.rank == 2 and labels.shape[1] == classes:
        labels = tf.argmax(labels, axis=1)
    elif labels.shape.rank == 1 or (labels.shape.rank == 2 and labels.shape[1] == 1):
        labels = tf.reshape(labels, [-1])
    else:
        raise ValueError(
            f"labels of shape {labels.shape} with outputs of shape {outputs.shape}: expected "
            f"class numbers [batch], or a row of {classes} for each example"
        )
    given, labels = labels, tf.cast(labels, tf.int64)
    # A fraction is no class, nor is NaN.
    is_class = (labels >= 0) & (labels < classes) & (tf.cast(labels, given.dtype) == given)
    labels = tf.clip_by_value(labels, 0, classes - 1)[:, tf.newaxis]
    own = tf.gather(outputs, labels, batch_dims=1)
    lower = tf.range(classes, dtype=tf.int64)[tf.newaxis] < labels
    rank = tf.math.count_nonzero((outputs > own) | ((outputs == own) & lower), axis=1)
    is_sound = is_class & ~tf.reduce_any(tf.math.is_nan(outputs), axis=1)
    return tf.where(is_sound, rank, rank.dtype.max)


def _mean_with_mirrored(model, x, outputs):
    """Outputs for pictures and their mirror images as one, and which are no probabilities."""
    mirrored = model(tf.reverse(x, axis=[2]), training=False)
    if takes_logits(model, outputs):
        # Logarithms of probabilities are logits too.
        both = tf.stack([tf.nn.log_softmax(outputs), tf.nn.log_softmax(mirrored)])
        mean = tf.reduce_logsumexp(both, axis=0) - tf.math.log(tf.constant(2, outputs.dtype))
        return mean, tf.zeros(tf.shape(outputs)[:1], tf.bool)
    mean = (outputs + mirrored) / 2
    off = tf.abs(tf.reduce_sum(tf.cast(mean, tf.float32), axis=-1) - 1) > _SUM_TOLERANCE
    return mean, off | tf.reduce_any(mean < 0, axis=-1)


def _counted(weight, examples):
    """Which examples count, and which have a weight that is neither 0 nor 1."""
    if weight is None:
        return tf.ones([examples], tf.bool), tf.zeros([examples], tf.bool)
    weight = tf.reshape(weight, [examples])
    counts = weight == tf.ones([], weight.dtype)
    return counts, ~counts & (weight != tf.zeros([], weight.dtype))


def _count_true(values):
    return tf.math.count_nonzero(values, dtype=tf.int64)


def _zeros(top):
    return {
        "loss": tf.zeros([], tf.float64),
        "examples": tf.zeros([], tf.int64),
        "odd_weights": tf.zeros([], tf.int64),
        "no_probabilities": tf.zeros([], tf.int64),
        "right": tf.zeros([len(top)], tf.int64),
    }
