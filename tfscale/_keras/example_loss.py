"""The loss that a model was compiled with, as one value for each example."""

import copy

import tensorflow as tf
from tf_keras.src.engine import compile_utils
from tf_keras.src.utils import losses_utils

from tfscale._keras.loss_entries import observed


def per_example_loss(model, y_true, y_pred):
    """The compiled loss of each example of a batch, times the compiled `loss_weights`.

    Where the loss has several entries for an example, they are averaged; with the reduction SUM
    they are added up.

    Args:
        model: a compiled Keras model of one output.
        y_true: tensor ``[b, ...]``.
        y_pred: tensor ``[b, ...]``, the model's output, ``b`` at least 1.

    Returns:
        floating tensor ``[b]``.

    Raises:
        ValueError: if the loss gives no value for each example, or the output or the loss has a
            mask.
    """
    loss, weight = _loss_and_weight(model, y_pred)
    y_true = model.compiled_loss._conform_to_outputs(y_pred, y_true)
    (y_true,) = tf.nest.flatten(y_true)
    y_true, y_pred, _ = compile_utils.match_dtype_and_rank(y_true, y_pred, None)
    # A copy, for the model's own goes on to train.
    unreduced = copy.copy(loss)
    unreduced.reduction = losses_utils.ReductionV2.NONE
    has_mask = losses_utils.get_mask(y_pred) is not None
    values, _, mask = observed(unreduced, y_true, y_pred)
    if has_mask or mask is not None:
        has = f"output of {model.name} has" if has_mask else f"loss {loss.name} makes"
        raise ValueError(
            f"the {has} a mask, and the examples' losses would count by their unmasked entries: "
            "evaluate such a model with model.evaluate"
        )
    if values.shape.rank == 0:
        raise ValueError(
            f"the loss {loss.name} gives one number for a batch and none for each example; let it "
            "return a tensor [batch] or [batch, ...], which Keras averages by itself"
        )
    further = list(range(1, values.shape.rank))
    is_sum = loss.reduction == losses_utils.ReductionV2.SUM
    values = (tf.reduce_sum if is_sum else tf.reduce_mean)(values, axis=further)
    return values if weight is None else values * tf.cast(weight, values.dtype)


def takes_logits(model, y_pred):
    """Whether the compiled loss says that the model's output are logits (`from_logits=True`)."""
    loss, _ = _loss_and_weight(model, y_pred)
    known = getattr(loss, "_fn_kwargs", {})
    return bool(known.get("from_logits", getattr(loss, "from_logits", False)))


def _loss_and_weight(model, y_pred):
    container = model.compiled_loss
    if container is None:
        raise ValueError(f"{model.name} has no loss to evaluate: compile it first")
    if not tf.is_tensor(y_pred):
        raise ValueError(
            f"{model.name} has {len(tf.nest.flatten(y_pred))} outputs; "
            "exact evaluation is for models with one output tensor"
        )
    if not container.built:
        container.build(y_pred)
    ((loss, weight),) = zip(container._losses, container._loss_weights, strict=True)
    if loss is None:
        raise ValueError(f"{model.name} was compiled without a loss")
    return loss, weight
