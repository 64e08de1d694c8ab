"""The loss of a global batch, for training loops of your own."""

import tensorflow as tf

from tfscale._keras.replica_invariance import count_examples, shares_of


def average_loss(per_example_loss, sample_weight=None):
    """This replica's addend to the mean loss over the global batch; the addends sum to the mean.

        addend_r = sum_i(w_i * loss_i) / n          n = examples on all replicas together

    Gradients are summed over the replicas by the optimizer, so the gradients of these addends
    give the gradient of the mean over the global batch, however unevenly it splits.
    `tf.nn.compute_average_loss` needs the global batch size as a number beforehand, which is
    wrong for the last batch; this function counts the examples (one small collective, and none
    where the batch size is static). With one replica it is the plain mean. A replica without
    examples adds 0.

    Add penalties on the weights with `tf.nn.scale_regularization_loss`, which divides by the
    number of replicas. `model.fit` does all of this by itself under `create_strategy`.

    Args:
        per_example_loss: floating tensor `[b]` or `[b, ...]` (then averaged over the trailing
            axes), of a loss made with `reduction="none"`; `b` is this replica's batch size.
        sample_weight: tensor `[b]` or of the shape of `per_example_loss`, or None. As in Keras,
            the divisor stays the number of examples.

    Returns:
        scalar tensor of the dtype of `per_example_loss`.

    Raises:
        ValueError: if `per_example_loss` is a scalar: its examples cannot be counted.

    Example:
        with tf.GradientTape() as tape:
            loss = average_loss(cross_entropy(labels, model(images, training=True)))
            loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))
        optimizer.minimize(loss, model.trainable_variables, tape=tape)

    Source: the definition of the mean; it is what one device computes on the joined batch.
    """
    loss = tf.convert_to_tensor(per_example_loss)
    if loss.shape.rank == 0:
        raise ValueError(
            "per_example_loss is a scalar: the loss has already been averaged. Make the loss "
            'with reduction="none", so that it has one entry for each example'
        )
    if sample_weight is not None:
        weight = tf.cast(sample_weight, loss.dtype)
        while weight.shape.rank < loss.shape.rank:
            weight = weight[..., tf.newaxis]
        loss *= weight
    (share,) = shares_of([count_examples(loss)])
    entries = tf.cast(tf.size(loss), loss.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(loss), entries) * tf.cast(share, loss.dtype)
