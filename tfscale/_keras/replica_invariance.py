"""Makes ``fit`` and ``evaluate`` of tf_keras give what one device gives, also on uneven batches.

tf_keras averages a loss over each replica's own examples and then gives every replica the
weight 1/R. Where the last batch splits unevenly (2 + 1 examples), a lone example then counts
double. Here each replica's loss counts by its share of the examples:

    loss_r = n_r / n * mean_r(loss)        n = sum of n_r over the replicas

Where entries are masked (by the output, or by the loss's `ignore_class`), the unmasked ones count
in place of the examples. A loss that gives one number for a batch is taken for a mean over the
examples (its sum, with reduction SUM or NONE), with a warning.

Regularisation losses, and what layers add with `add_loss`, keep the weight 1/R: most do not
depend on the examples, and Keras does not say which of them do.
"""

import functools
import weakref
from typing import NamedTuple

import tensorflow as tf
from tf_keras.src.engine import compile_utils, training
from tf_keras.src.utils import losses_utils

from tfscale._keras import retrace, same_step
from tfscale._keras.loss_entries import observed, warn_of_one_number
from tfscale._keras.metric_results import in_one_message

_strategies = weakref.WeakSet()
_AVERAGED = (losses_utils.ReductionV2.AUTO, losses_utils.ReductionV2.SUM_OVER_BATCH_SIZE)


def install(strategy, operation=None, agree=None):
    """Makes Keras's built-in training replica-invariant under `strategy`.

    Three things change, for this strategy only, and only where it has more than one replica:
    the weight of a replica's data loss (see the module's docstring); the logs of a batch,
    which tf_keras multiplies by the number of replicas under MultiWorkerMirroredStrategy; and
    these logs travel in one message. The workers of a strategy, of one replica each or more,
    compare how a model's step runs before its first. A second call changes nothing.

    A model with a `train_step` of its own whose logs are metric results has to ask for logs
    that are not multiplied by `model.distribute_reduction_method = "first"`.

    Args:
        strategy: `tf.distribute.Strategy`.
        operation: what exchanges the strategy's gradients, for `tfscale._keras.retrace`.
        agree: how its workers compare what they do, for `tfscale._keras.same_step`.
    """
    _strategies.add(strategy)
    retrace.install(strategy, operation)
    if agree is not None:
        same_step.install(strategy, agree)
    container, model = compile_utils.LossesContainer, training.Model
    if not hasattr(container.__call__, "_tfscale_stock"):
        container.__call__ = _replica_invariant(container.__call__)
    if not hasattr(model.get_metrics_result, "_tfscale_stock"):
        model.get_metrics_result = in_one_message(model.get_metrics_result, _active)
    if not hasattr(losses_utils.apply_valid_mask, "_tfscale_guarded"):
        losses_utils.apply_valid_mask = _valid_mask(losses_utils.apply_valid_mask)
    if not hasattr(model.distribute_reduction_method.fget, "_tfscale_stock"):
        stock = model.distribute_reduction_method
        model.distribute_reduction_method = property(_first_replica(stock.fget), stock.fset)


def shares_of(counts):
    """Each count as a share of its sum over the replicas; one collective, and none if static.

        share = n_r / sum over replicas of n_r      (0 where the sum is 0)

    Args:
        counts: list of `int` (known while tracing, and then the same on every replica: its
            share is 1/R) or scalar tensor; one for each output of a model.

    Returns:
        list of `float` or float32 scalar tensors.
    """
    context = tf.distribute.get_replica_context()
    replicas = context.num_replicas_in_sync if context else 1
    dynamic = [i for i, n in enumerate(counts) if not isinstance(n, int)]
    shares = [1.0 / replicas] * len(counts)
    if dynamic and replicas > 1:
        # Integers, which no all-reduce compresses.
        local = tf.stack([tf.cast(counts[i], tf.int64) for i in dynamic])
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, local)
        share = tf.math.divide_no_nan(tf.cast(local, tf.float32), tf.cast(total, tf.float32))
        for k, i in enumerate(dynamic):
            shares[i] = share[k]
    return shares


def count_examples(values):
    """Length of axis 0: an `int` if every replica's must be the same, else a scalar tensor.

    A static length says so only where the batch is fetched inside the graph: it then comes
    from a dataset whose batches all split evenly. A batch that is fetched outside is traced
    with each replica's own length, and an eager tensor's length is always known.
    """
    if isinstance(values, tf.RaggedTensor):
        return values.nrows()
    length = values.shape[0]
    if length is None or tf.executing_eagerly() or not _fetched_inside(values.graph):
        return tf.shape(values)[0]
    return length


def _fetched_inside(graph):
    while graph is not None:
        if any(op.type.startswith("IteratorGetNext") for op in graph.get_operations()):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _active():
    strategy = tf.distribute.get_strategy()
    return (
        strategy in _strategies
        and strategy.num_replicas_in_sync > 1
        and not tf.distribute.in_cross_replica_context()
    )


def _replica_invariant(stock):
    @functools.wraps(stock)
    def call(self, y_true, y_pred, sample_weight=None, regularization_losses=None):
        if not _active():
            return stock(self, y_true, y_pred, sample_weight, regularization_losses)
        return weighted_loss(self, y_true, y_pred, sample_weight, regularization_losses)

    call._tfscale_stock = stock
    return call


class Part(NamedTuple):
    """Some of the examples of one replica, and what they count in the global batch.

    Attributes:
        examples: scalar, how many they are.
        share: scalar, that number divided by the examples on all replicas.
        share_of_replica: scalar, that number divided by the examples on this replica.
    """

    examples: tf.Tensor
    share: tf.Tensor
    share_of_replica: tf.Tensor


def weighted_loss(
    container, y_true, y_pred, sample_weight=None, regularization_losses=None, part=None
):
    """This replica's addend to the loss of the global batch; updates the loss metrics.

    Args:
        container: a model's `compiled_loss`.
        y_true, y_pred, sample_weight, regularization_losses: as `LossesContainer` takes them.
        part: `Part` that they belong to; None for the replica's whole batch.

    Raises:
        ValueError: for a part of an output, or of a loss, with a mask: a loss averages over the
            unmasked entries of the whole batch, and how many there are is not known in a part.
    """
    y_true = container._conform_to_outputs(y_pred, y_true)
    sample_weight = container._conform_to_outputs(y_pred, sample_weight)
    if not container.built:
        container.build(y_pred)
    columns = [tf.nest.flatten(x) for x in (y_true, y_pred, sample_weight)]
    columns += [container._losses, container._loss_weights, container._per_output_metrics]
    # An output without a target or without a loss adds nothing.
    outputs = [row for row in zip(*columns, strict=True) if row[0] is not None and row[3]]
    values, masks = [], []
    for y_t, y_p, weight, loss, *_ in outputs:
        y_t, y_p, weight = compile_utils.match_dtype_and_rank(y_t, y_p, weight)
        weight = losses_utils.apply_mask(y_p, weight, losses_utils.get_mask(y_p))
        value, entries, mask = observed(loss, y_t, y_p, weight)
        warn_of_one_number(loss, entries, loss.reduction in _AVERAGED)
        values.append(value)
        masks.append(mask)
    examples, share, shares = _weights(outputs, masks, part)
    count = examples
    addends, reported = [], []
    for addend, loss_share, (*_, loss, loss_weight, metric) in zip(
        values, shares, outputs, strict=True
    ):
        if loss.reduction in _AVERAGED:
            addend *= tf.cast(loss_share, addend.dtype)
        report = addend
        if addend.shape.rank == 0:
            # The loss metrics average over replicas with their examples as weights, so that the
            # sum of the addends comes out.
            report = tf.math.divide_no_nan(addend, tf.cast(share, addend.dtype))
        else:
            # Of the entries of an unreduced loss, each counts as much as the batch has examples.
            count = tf.math.divide_no_nan(tf.cast(examples, tf.float32), share)
        if metric is not None:
            metric.update_state(report, sample_weight=count)
        if loss_weight is not None:
            addend, report = addend * loss_weight, report * loss_weight
        addends.append(addend)
        reported.append(report)
    if regularization_losses:
        penalty = tf.add_n(losses_utils.cast_losses_to_common_dtype(regularization_losses))
        addend = losses_utils.scale_loss_for_distribution(penalty)
        if part is not None:
            addend *= tf.cast(part.share_of_replica, addend.dtype)
        addends.append(addend)
        reported.append(penalty)
    if not addends:
        return None
    report = tf.add_n(losses_utils.cast_losses_to_common_dtype(reported))
    container._total_loss_mean.update_state(report, sample_weight=count)
    return tf.add_n(losses_utils.cast_losses_to_common_dtype(addends))


def _weights(outputs, masks, part):
    """Number of examples, their share of the global batch, and the share of each output's loss."""
    if part is not None:
        for (_, _, _, loss, *_), mask in zip(outputs, masks, strict=True):
            if mask is not None and loss.reduction in _AVERAGED:
                raise ValueError(
                    f"the loss {loss.name!r} averages over the unmasked entries of the whole "
                    "batch (of an output with a mask, or of a loss with ignore_class), which are "
                    "not counted before its last part: train such a model without "
                    "accumulate_gradients, or give the loss reduction='sum'"
                )
        return part.examples, part.share, [part.share] * len(outputs)
    if not outputs:
        return None, None, []
    examples = count_examples(outputs[0][0])
    # A loss averages over its unmasked entries.
    averaged = [examples if mask is None else tf.math.count_nonzero(mask) for mask in masks]
    share, *shares = shares_of([examples, *averaged])
    return examples, share, shares


def _valid_mask(stock):
    @functools.wraps(stock)
    def apply_valid_mask(losses, sw, mask, reduction):
        weights = stock(losses, sw, mask, reduction)
        if mask is None or not _active():
            return weights
        # A replica whose entries are all masked would divide 0 by 0, where others have some.
        return tf.where(tf.reduce_any(tf.cast(mask, tf.bool)), weights, tf.zeros_like(weights))

    apply_valid_mask._tfscale_guarded = stock
    return apply_valid_mask


def _first_replica(stock):
    @functools.wraps(stock)
    def distribute_reduction_method(self):
        method = stock(self)
        # Keras's own steps return metric results, which are the same on all replicas. A step
        # of the user's may return anything: there the user's setting, or Keras's, stays.
        built_in = all(
            getattr(type(self), name) is getattr(training.Model, name)
            for name in ("train_step", "test_step", "compute_metrics", "get_metrics_result")
        )
        if method == "auto" and built_in and self.distribute_strategy in _strategies:
            return "first"
        return method

    distribute_reduction_method._tfscale_stock = stock
    return distribute_reduction_method
