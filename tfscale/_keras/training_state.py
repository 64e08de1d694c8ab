"""Where `fit` starts: at any step of any epoch, with the metrics that the epoch had so far."""

import tensorflow as tf

from tfscale._keras import retrace
from tfscale._keras.choice import keras


class StepCallback(keras.callbacks.Callback):
    """A callback with batch hooks that does not make Keras fetch the logs after every step."""

    def __init__(self):
        super().__init__()
        # Otherwise Keras waits for the device and copies the logs before it calls the hooks.
        self._supports_tf_logs = True


class _StartingPoint:
    """What `fit` asks, after `on_train_begin`, where to start; it answers once."""

    def __init__(self, model, epoch, step):
        self._model, self._start = model, (epoch, step)

    def maybe_load_initial_counters_from_ckpt(self, steps_per_epoch, initial_epoch, mode):
        del steps_per_epoch, initial_epoch, mode
        # A later `fit` of the same model, after an interrupted one, starts where it is told to.
        self._model._training_state = None
        return self._start


def start_fit_at(model, epoch, step):
    """Makes the `fit` that is about to begin start at a step within an epoch.

    Args:
        model: a Keras model; to be called in `on_train_begin`.
        epoch: int, from 0.
        step: int, step within the epoch, from 0.
    """
    model._training_state = _StartingPoint(model, epoch, step)


def before_first_step(model, function):
    """Calls `function()` once in this `fit`, when all metrics have their variables.

    Keras makes the variables of metrics while it traces the first step, and sets them to zero
    before; so what an interrupted epoch had so far can only be put back between the two.

    Args:
        model: a Keras model; to be called in `on_train_begin`.
        function: called without arguments before the first step runs.

    Returns:
        `bool`: False if the model runs eagerly: nothing is traced, and `function` not called.
    """
    step, traced = model.train_function, model.train_tf_function
    if model.run_eagerly or traced is None:
        return False

    def first_step(iterator):
        with retrace.for_model(model):
            traced.get_concrete_function(iterator)
        model.train_function = step
        function()
        return step(iterator)

    model.train_function = first_step
    return True


def metric_variables(model):
    """The variables of a model's metrics, the loss included, in a fixed order."""
    return [variable for metric in model.metrics for variable in metric.variables]


def build_optimizer(model):
    """Makes the optimizer's slots, which Keras does only in the first step."""
    optimizer, variables = model.optimizer, model.trainable_variables
    with model.distribute_strategy.scope():
        if isinstance(optimizer, keras.optimizers.legacy.Optimizer):
            optimizer._create_all_weights(variables)
        elif optimizer is not None:
            optimizer.build(variables)


def put_in_force(optimizer, name, value):
    """Sets again a setting that a checkpoint has restored, as the optimizer has it in a variable.

    Others, which checkpoints do not hold, are left as they are.

    Args:
        optimizer: a Keras optimizer, or the loss scale around one.
        name: `str`, of the setting in the optimizer's config.
        value: as in the config.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if name == "learning_rate" or name in getattr(optimizer, "_hyper", ()):
        setattr(optimizer, name, value)


def is_read_synchronised(variable):
    """Whether each replica has a value of its own until the variable is read or saved."""
    return variable.synchronization == tf.VariableSynchronization.ON_READ
