"""Gradient accumulation: a large batch on few devices, in parts, with one update."""

import numbers

from tfscale._keras import check_model
from tfscale._keras.accumulated_step import AccumulatedStep, check_step


def accumulate_gradients(model, micro_batches):
    """Makes each training step of a model run its batch in parts, one after another.

        gradient = sum over the parts k of n_k / n * gradient of mean_k(loss)        n = sum of n_k

    The dataset's batches stay whole: what a replica gets is split on its device into
    `micro_batches` consecutive parts, of equal size or, where that does not come out even, the
    first ones an example longer. Only one part's activations are in memory at a time. The gradients
    are summed on each replica, in float32, exchanged once and applied once, so a step is a step of
    the whole batch for everything that counts steps: `optimizer.iterations`, schedules, moving
    averages of the weights, checkpoints, callbacks, compression. Under float16 the sum of the
    scaled gradients is checked, once.

    The result is that of the whole batch, also where batches split unevenly, with sample weights,
    and with penalties, which count once. Three things differ:

    * Batch norm normalises each part by itself, and its moving statistics move once a part
      (`GroupedSyncBatchNormalization`: the parts of a group's replicas are joined).
    * Layers that draw random numbers (dropout) draw them anew for each part.
    * Sparse gradients, of embeddings, are made dense.

    A loss has to give a value for each example: one number for a batch is taken for the mean over
    its examples, with a warning. `evaluate` and `predict` stay as they are. A batch with fewer
    examples than `micro_batches`, such as the last one of an epoch, is run in as many parts as it
    has examples. The setting belongs to this object: it outlives `compile`, and is not saved with
    the model. It is the same on all workers.

    Args:
        model: a compiled and built `keras.Model`, in or outside of its strategy's scope. The
            loss has to be one that `compile` was given, not `compute_loss` of a subclass.
        micro_batches: `int`, parts of a replica's batch, at least 1 and at most its examples.
            1 takes an earlier call back.

    Returns:
        The model.

    Raises:
        TypeError: if `model` is not one of the Keras in force.
        ValueError: if `micro_batches` is below 1; if the model is not compiled or not built, or
            has its own `train_step`, `compute_loss` or `compute_metrics`; if the optimizer
            computes gradients in its own way. In the first step: if `micro_batches` is larger
            than the batch of a replica (`tf.errors.InvalidArgumentError` where the size is not
            known before); if the loss averages over unmasked entries (of an output with a mask, or
            with `ignore_class`); if the workers differ in `micro_batches`, which is a TimeoutError
            where only some of them change it after the model's first step.

    Example:

    >>> from tfscale import keras
    >>> model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> model = accumulate_gradients(model, micro_batches=4)  # then fit, as without

    Reference: Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.3 on batch norm, whose
    statistics are those of the small batch, https://arxiv.org/abs/1706.02677.
    """
    check_model(model)
    if not isinstance(micro_batches, numbers.Integral) or isinstance(micro_batches, bool):
        raise ValueError(f"micro_batches must be an integer of at least 1; got {micro_batches!r}")
    if micro_batches < 1:
        raise ValueError(f"micro_batches must be an integer of at least 1; got {micro_batches!r}")
    check_step(model)
    if isinstance(vars(model).get("train_step"), AccumulatedStep):
        del model.train_step
    if micro_batches > 1:
        model.train_step = AccumulatedStep(model, int(micro_batches))
    model.train_function = None  # `fit` traces it anew
    return model
