"""The moving average of a model's weights that its optimizer keeps, put in their place."""

import contextlib

import tensorflow as tf


@contextlib.contextmanager
def averaged_weights(model):
    """Context in which a model has the exponential moving average of its trainable weights.

        average <- m * average + (1 - m) * weight      after each step, m = ema_momentum

    On leaving it, also by an error, every weight has its own bits again. Moving statistics
    of batch norm, and weights that are not trained, stay as they are. All workers have to do it;
    nothing is sent.

    `fit` itself puts the averages in the place of the weights when it ends, for good.

    Args:
        model: a Keras model whose optimizer was made with ``use_ema=True`` and has taken a step
            or was built.

    Raises:
        ValueError: if the optimizer keeps no averages, or none of some trainable weight.

    Example:
        with averaged_weights(model):
            model.save_weights("averaged")

    Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992;
    the exponential form is that of the `ema_momentum` of Keras's optimizers.
    """
    local = model.distribute_strategy.experimental_local_results
    copies = [
        pair
        for variable, average in _averages(model)
        for pair in zip(local(variable), local(average), strict=True)
    ]
    kept = [tf.identity(variable) for variable, _ in copies]
    try:
        for variable, average in copies:
            variable.assign(average)
        yield
    finally:
        for (variable, _), value in zip(copies, kept, strict=True):
            variable.assign(value)


def averaging_optimizer(model):
    """Returns the optimizer that keeps the averages; raises ValueError if it keeps none."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if not getattr(optimizer, "use_ema", False):
        raise ValueError(
            f"the optimizer of {model.name}, {type(optimizer).__name__}, keeps no moving average "
            "of the weights: make it with use_ema=True, or evaluate with averaged=False"
        )
    return optimizer


def _averages(model):
    """Pairs of each trainable variable and its average."""
    optimizer = averaging_optimizer(model)
    averages = getattr(optimizer, "_model_variables_moving_average", None)
    if averages is None:
        raise ValueError(
            f"the optimizer of {model.name} has no moving average of the weights yet: it has not "
            "taken a step. Train first, or call optimizer.build(model.trainable_variables)"
        )
    pairs = []
    for variable in model.trainable_variables:
        index = optimizer._index_dict.get(optimizer._var_key(variable))
        if index is None:
            raise ValueError(
                f"the optimizer of {model.name} has no moving average of {variable.name}, which "
                "was not trainable when the optimizer was built: compile the model again"
            )
        pairs.append((variable, averages[index]))
    return pairs
