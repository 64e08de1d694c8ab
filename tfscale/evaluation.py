"""`evaluate`: loss and accuracy over a data set, each example once, on any number of replicas."""

import contextlib
import weakref

import tensorflow as tf

from tfscale._keras import check_model, keras
from tfscale._keras.averages import averaged_weights, averaging_optimizer
from tfscale._keras.training_state import is_read_synchronised
from tfscale.distribute import _tf_private
from tfscale.distribute.agreement import agree, gather_values
from tfscale.evaluation_labels import check_elements, check_labels
from tfscale.evaluation_step import EvaluationStep
from tfscale.layers.moving_statistics import merge_moving_statistics


def evaluate(
    model, dataset, steps=None, *, averaged=False, flip=False, top=(1, 5), timeout_seconds=600
):
    """Returns what one device would find in a single pass over all examples.

    ::

        loss  = sum of loss(y, model(x)) / examples
        top_k = examples whose class is among the k highest outputs / examples

    Each worker reads its part, sums in float64 and int64, and at the end the workers add up their
    sums, in the same order: the result is equal on all of them, and depends neither on how the
    examples are spread over replicas nor on the size of the last batch.

    The loss is the one that the model was compiled with, label smoothing and `loss_weights`
    included; regularisers and what layers add with `add_loss` are not part of it. It is averaged
    over the examples whatever reduction it has.

    Equal outputs rank by class number, the lower first, as with argmax. An example with a NaN
    among its outputs is never right, nor one whose label is no class (a number that is none, a
    row of equal entries, as `tf.one_hot` makes of one, or with NaN), as far as the loss takes such
    a label: with Keras's sparse_categorical_crossentropy it is a
    `tf.errors.InvalidArgumentError` (on a GPU, a loss of NaN). Where there are no more than k
    classes, all others are right: `top_5` of 5 classes is 1.

    Before it begins, what the replicas have of their own (moving statistics of batch norm, and
    all other variables that are synchronised on reading) is set to the replicas' mean for good,
    which is what a save keeps: see `tfscale.layers.merge_moving_statistics`.

    A collective: every worker has to call it, outside a replica.

    Args:
        model: compiled Keras model with one output: ``[batch, classes]``, 2 classes at least;
            any shape where `top` is empty.
        dataset: `tf.data.Dataset` of global batches, or a dataset that the model's own strategy
            has distributed. Elements are (x, y) or (x, y, weight): y a class number ``[batch]`` or
            ``[batch, 1]``, or a row for each class (its highest entry is the class); weight 1, or
            0 for padding, which counts nowhere. Batches may differ in size and be empty. It is
            read from its beginning.
        steps: `int`, how many global batches; None for all.
        averaged: `bool`, whether to evaluate the moving average of the weights that the optimizer
            keeps (``use_ema=True``); batch-norm statistics stay those of training.
        flip: `bool`, whether outputs are the mean of the probabilities of a picture and of its
            mirror image; x is then ``[batch, height, width, channels]``. Logits are turned into
            probabilities first, if the loss says ``from_logits=True``.
        top: `tuple` of `int` k.
        timeout_seconds: `float`, how long a worker waits for the others before it names them.

    Returns:
        `dict` of "loss" and "top_K" for each k of `top`, `float`, and "examples", `int`.

    Raises:
        ValueError: for an endless dataset without `steps`, one that ends before them or has no
            example, one of single examples or of another strategy, labels or weights that are no
            numbers, labels that do not fit the outputs or the loss, outputs of no classes unless
            `top` is empty, weights other than 0 and 1, outputs that are no probabilities with
            `flip`, a loss that gives no value for each example, an output or a loss with a mask
            (`ignore_class`), or workers that ask for different things.
        TimeoutError, RuntimeError: if a worker does not come, or has ended; names it.

    Example:
        >>> data = strategy.distribute_datasets_from_function(
        ...     lambda context: tfscale.data.eval_dataset("records", 256, 224, context))
        >>> tfscale.evaluation.evaluate(model, data)
        {'loss': 0.93, 'top_1': 0.761, 'top_5': 0.929, 'examples': 50000}

    Source: the definitions; flip: Krizhevsky et al., "ImageNet classification with deep
    convolutional neural networks", 2012, section 4.1 (there with crops as well).
    """
    data = prepared(model, dataset, steps, averaged=averaged, flip=flip, top=top)
    strategy = model.distribute_strategy
    # Before the first collective, in which a worker that is alone would wait without a word.
    asked = {"steps": steps, "averaged": averaged, "flip": flip, "top": list(top)}
    agree(strategy, "what to evaluate", asked, timeout_seconds)
    _merge_replicas(model)
    with averaged_weights(model) if averaged else contextlib.nullcontext():
        totals = _step_of(model, bool(flip), tuple(top)).run(data, steps)
    parts = gather_values(strategy, "the sums of the evaluation", totals, timeout_seconds)
    return _means(parts, top)


def prepared(model, dataset, steps, *, averaged, flip, top=(1, 5)):
    """Returns the data as `evaluate` reads it; raises for what is known to be wrong beforehand.

    Args: see `evaluate`. That the optimizer has taken a step is not asked with `averaged`.
    """
    check_model(model)
    _check_arguments(model, steps, top)
    if averaged:
        averaging_optimizer(model)
    if hasattr(dataset, "element_spec"):
        check_elements(dataset.element_spec, flip)
        check_labels(model, dataset.element_spec, top)
    return distribute(model.distribute_strategy, dataset, steps)


def distribute(strategy, dataset, steps=None):
    """Returns `dataset` as `strategy` reads it; one that is distributed already, as it is.

    Args:
        strategy: `tf.distribute.Strategy`.
        dataset, steps: see `evaluate`.

    Raises:
        TypeError, ValueError: for what is no dataset, or has no end though `steps` is None; if
            every worker would read all of it; or if another strategy has distributed it.
    """
    is_distributed = isinstance(dataset, tf.distribute.DistributedDataset)
    if not is_distributed and not isinstance(dataset, tf.data.Dataset):
        raise TypeError(f"dataset is a {type(dataset).__name__}; expected a tf.data.Dataset")
    cardinality = dataset.cardinality if is_distributed else dataset.cardinality()
    if steps is None and int(cardinality) == tf.data.INFINITE_CARDINALITY:
        raise ValueError("the dataset has no end: give steps, or leave out repeat()")
    if is_distributed:
        _check_strategy(strategy, _tf_private.strategy_of(dataset))
        return dataset
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if _tf_private.num_workers(strategy) > 1 and policy == (
        tf.data.experimental.AutoShardPolicy.OFF
    ):
        raise ValueError(
            "the dataset has the auto_shard_policy OFF, so every worker would count all of its "
            "examples: use strategy.distribute_datasets_from_function with a function of the "
            "input context (tfscale.data.eval_dataset takes it), or the policy DATA"
        )
    return strategy.experimental_distribute_dataset(dataset)


def _check_strategy(strategy, other):
    """Refuses another strategy than the model's, whose replicas would read other batches."""
    if other is strategy or strategy.num_replicas_in_sync == other.num_replicas_in_sync == 1:
        return
    names = [f"{type(s).__name__} (replicas: {s.num_replicas_in_sync})" for s in (other, strategy)]
    raise ValueError(
        f"the dataset was distributed by another strategy, {names[0]}, than the model's, "
        f"{names[1]}: distribute it with model.distribute_strategy, or give the plain dataset"
    )


def _check_arguments(model, steps, top):
    def is_count(value):
        return isinstance(value, int) and not isinstance(value, bool) and value >= 1

    if steps is not None and not is_count(steps):
        raise ValueError(f"steps={steps!r}: a number of batches of at least 1, or None for all")
    if not isinstance(top, (tuple, list)) or not all(map(is_count, top)):
        raise ValueError(f"top={top!r}: expected a tuple of whole numbers from 1, such as (1, 5)")
    if model.compiled_loss is None:
        raise ValueError(f"{model.name} has no loss to evaluate: compile it first")


def _merge_replicas(model):
    """Gives all replicas the values that a save would keep."""
    if model.distribute_strategy.num_replicas_in_sync == 1:
        return
    merge_moving_statistics(model)  # one message for all of them
    norms = [
        m for m in (model, *model.submodules) if isinstance(m, keras.layers.BatchNormalization)
    ]
    merged = {
        id(v) for norm in norms if norm.built for v in (norm.moving_mean, norm.moving_variance)
    }
    for variable in model.weights:
        if id(variable) not in merged and is_read_synchronised(variable):
            variable.assign(variable.read_value())


def _means(parts, top):
    """The results of the workers' sums, which are added in worker order on every worker."""
    loss = sum(part["loss"] for part in parts)
    counts = {
        name: sum(part[name] for part in parts)
        for name in ("examples", "odd_weights", "no_probabilities")
    }
    right = [sum(counts) for counts in zip(*(part["right"] for part in parts), strict=True)]
    if counts["odd_weights"]:
        raise ValueError(
            f"{counts['odd_weights']} examples have a weight other than 0 and 1: in an exact "
            "evaluation each example counts once, and weight 0 marks padding (the third part of "
            "an element is the weight)"
        )
    if counts["no_probabilities"]:
        raise ValueError(
            f"flip=True takes the mean of probabilities, but the outputs for "
            f"{counts['no_probabilities']} examples are negative or do not add up to 1: end the "
            "model with a softmax, or compile it with a loss that has from_logits=True"
        )
    examples = counts["examples"]
    if not examples:
        raise ValueError("the dataset has no example")
    accuracies = {f"top_{k}": n / examples for k, n in zip(top, right, strict=True)}
    return {"loss": loss / examples, **accuracies, "examples": examples}


# By model, so that it is traced once and not for each call.
_steps = weakref.WeakKeyDictionary()


def _step_of(model, flip, top):
    steps = _steps.setdefault(model, {})
    step = steps.get((flip, top))
    if step is None or step.compiled() is not model.compiled_loss:
        step = steps[flip, top] = EvaluationStep(model, flip, top)
    return step
