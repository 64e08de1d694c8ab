"""What `evaluate` does on a worker: sums over the examples of its part, batch by batch."""

import weakref

import tensorflow as tf

from tfscale._keras.example_loss import per_example_loss, takes_logits
from tfscale.distribute.lost_workers import explain_lost_worker
from tfscale.evaluation_labels import rank_of_label

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
