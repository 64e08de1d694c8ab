"""The results of all metrics in one message a step, where workers exchange them.

tf_keras reads a metric's variables one by one in every step, each with an all-reduce of one
number: four for a loss and an accuracy. Between workers that is four round trips, in a row.
"""

import functools

import tensorflow as tf

from tfscale._keras.choice import keras


def in_one_message(stock, is_active):
    """Wraps `Model.get_metrics_result`, for the strategies where `is_active()`."""

    @functools.wraps(stock)
    def get_metrics_result(self):
        means = [metric for metric in self.metrics if _is_plain_mean(metric)]
        no_merge_call = tf.__internal__.distribute.strategy_supports_no_merge_call
        if len(means) < 2 or not is_active() or no_merge_call():
            return stock(self)
        local = tf.stack([tf.convert_to_tensor(v) for m in means for v in (m.total, m.count)])
        merged = tf.distribute.get_replica_context().merge_call(_means, args=(local,))
        known = {id(metric): mean for metric, mean in zip(means, merged, strict=True)}
        results = {}
        for metric in self.metrics:
            result = known[id(metric)] if id(metric) in known else metric.result()
            # A metric of several values gives a dictionary of its own.
            results.update(result if isinstance(result, dict) else {metric.name: result})
        return results

    get_metrics_result._tfscale_stock = stock
    return get_metrics_result


def _means(strategy, totals_and_counts):
    # Reduced as one value and not in a batch, which a compressing all-reduce would round. The
    # division is here, in cross-replica context, so that Keras sees one value for all replicas
    # and has nothing to add up.
    sums = strategy.reduce(tf.distribute.ReduceOp.SUM, totals_and_counts, axis=None)
    return tf.unstack(tf.math.divide_no_nan(sums[::2], sums[1::2]))


def _is_plain_mean(metric):
    mean = keras.metrics.Mean
    return (
        isinstance(metric, mean)
        and type(metric).result is mean.result
        and all(v.dtype == tf.float32 and v.shape.rank == 0 for v in (metric.total, metric.count))
    )
