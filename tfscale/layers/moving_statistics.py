"""What the replicas' batch normalisations have learnt, made one."""

import tensorflow as tf

from tfscale._keras import keras
from tfscale.distribute.replica_groups import replica_groups


def merge_moving_statistics(model):
    """Gives every replica the mean over the groups of all moving means and variances of a model.

    Groups of replicas (plain `BatchNormalization`: single replicas) see different examples, so
    their moving statistics differ, and a checkpoint holds their mean. Call this before saving, and
    training goes on from exactly what was saved; call it before evaluating, and every replica
    uses the same statistics. Values are rounded by up to the replicas' bits (2 of float32's 24 for
    4 replicas, none for 2), so that the mean over replicas, which a save takes, returns them to
    the bit in whatever order they are summed.

    A collective, one message for the whole model: call it on every worker, outside a replica,
    eagerly or inside a ``tf.function``. Does nothing with one replica.

    Args:
        model: a Keras model, built under its strategy.

    Example:
        >>> merge_moving_statistics(model)
        >>> model.save_weights("weights")  # on every worker, each to a path of its own
    """
    strategy = model.distribute_strategy
    variables = {}
    for layer in (model, *model.submodules):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.built:
            for variable in (layer.moving_mean, layer.moving_variance):
                variables.setdefault(variable.dtype, []).append(variable)
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return
    for members in variables.values():
        # Per local replica, its own copies.
        local = list(zip(*map(strategy.experimental_local_results, members), strict=True))
        rows = [tf.concat([tf.reshape(v, [-1]) for v in copies], axis=0) for copies in local]
        gathered = replica_groups(strategy).gather_local(rows)
        for copies, rows in zip(local, gathered, strict=True):
            mean = tf.reduce_mean(tf.cast(rows, tf.float64), axis=0)
            mean = _round_for_sums(tf.cast(mean, rows.dtype), replicas)
            parts = tf.split(mean, [v.shape.num_elements() for v in copies])
            for variable, part in zip(copies, parts, strict=True):
                variable.assign(tf.reshape(part, variable.shape))


def _round_for_sums(x, replicas):
    """Drops the last bits of `x`, so that adding it up `replicas` times is exact in any order.

    A sum of k equal numbers of b bits has b bits more than the odd part of k, so it is exact if
    the bits of the largest odd k up to `replicas` are free.
    """
    odd = replicas if replicas % 2 else replicas - 1
    free = odd.bit_length() if odd > 1 else 0
    if free == 0:
        return x
    integer = tf.int64 if x.dtype == tf.float64 else tf.int32
    bits = tf.bitcast(x, integer)
    rounded = tf.bitwise.bitwise_and(
        bits + tf.constant(1 << (free - 1), integer), tf.constant(-(1 << free), integer)
    )
    return tf.where(tf.math.is_finite(x), tf.bitcast(rounded, x.dtype), x)
