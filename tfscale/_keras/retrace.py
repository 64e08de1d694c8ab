"""Keras traces a training step once; here it is traced again when what it exchanges has changed.

An operation that exchanges gradients has a `generation`: a number that changes when a step that
was traced before no longer does what the operation would do now. Keras keeps its traced step
from one `fit` to the next and knows nothing of that.
"""

import contextlib
import functools
import logging
import weakref

import tensorflow as tf
from tf_keras.src.engine import training

from tfscale._keras.choice import keras

_logger = logging.getLogger("tfscale")

# The values are weak too: an operation refers to its strategy, a step to its model, and both
# would then live for ever.
_operations = weakref.WeakKeyDictionary()


def install(strategy, operation):
    """Makes the models of a strategy trace their step again when the operation asks for it.

    Args:
        strategy: `tf.distribute.Strategy`.
        operation: what exchanges the gradients of this strategy: an object with

            * `generation`: int; a step that was traced under another one is traced again,
            * `compressor.momentum`: float; above 0 the optimizer must have none of its own,
            * `wants_measurement`: bool; while True, `after_step(strategy)` is called after each
              execution of the step, and returns True where the step is to be traced again,
            * `for_model(model)`: context in which the model's step is traced and run,
            * `explain(error)`: what to say in place of a TensorFlow error, or None; also asked
              in `evaluate` and `predict`.

            Anything without a `generation`, and None, is left alone.
    """
    if not hasattr(operation, "generation"):
        return
    _operations[strategy] = weakref.ref(operation)
    model = training.Model
    if not hasattr(model.make_train_function, "_tfscale_stock"):
        model.make_train_function = _traced_anew(model.make_train_function)
        model.make_test_function = _explained(model.make_test_function, "test_function")
        model.make_predict_function = _explained(model.make_predict_function, "predict_function")


def operation_of(strategy):
    """The operation that `install` was given for a strategy; None if there was none."""
    reference = _operations.get(strategy)
    return reference and reference()


def for_model(model):
    """The context in which a model's step is traced: that of its strategy's operation, if any."""
    operation = operation_of(model.distribute_strategy)
    return contextlib.nullcontext() if operation is None else operation.for_model(model)


def retrace(model):
    """Has the model's training step traced again before it runs the next time, also within `fit`.

    A model whose step is not traced yet, or whose strategy has no operation, is left alone.
    """
    reference = _steps.get(model)
    step = reference and reference()
    if step is not None and step.generation is not None:
        step.generation = _STALE


def trace_of(model):
    """A number that differs from one trace of the model's step to the next.

    None before the first trace, between the request for another one and that, and for a model
    whose strategy has no operation.
    """
    reference = _steps.get(model)
    step = reference and reference()
    return None if step is None or step.generation is _STALE else step.generation


_STALE = object()
# By model, since `fit` may have put something in front of the step (see `before_first_step`).
_steps = weakref.WeakKeyDictionary()


def _traced_anew(stock):
    @functools.wraps(stock)
    def make_train_function(self, force=False):
        operation = operation_of(self.distribute_strategy)
        if operation is None:
            return stock(self, force)
        check_momentum(self.optimizer, operation.compressor)
        before = self.train_function
        function = stock(self, force)
        if function is not before:
            step = _Step(self, operation, function, stock)
            _steps[self] = weakref.ref(step)
            self.train_function = step
        return self.train_function

    make_train_function._tfscale_stock = stock
    return make_train_function


def _explained(stock, name):
    """`make_test_function` or the like, whose function says who is lost."""

    @functools.wraps(stock)
    def make_function(self, force=False):
        before = getattr(self, name)
        function = stock(self, force)
        operation = operation_of(self.distribute_strategy)
        if operation is not None and function is not before:

            @functools.wraps(function)
            def explained(iterator):
                with _explaining(operation):
                    return function(iterator)

            setattr(self, name, explained)
        return getattr(self, name)

    return make_function


@contextlib.contextmanager
def _explaining(operation):
    try:
        yield
    except tf.errors.OpError as error:
        text = operation.explain(error)
        if text is None:
            raise
        raise RuntimeError(text) from error


class _Step:
    """A model's training step, which notices when it has to be traced again.

    It notices when it is called and not when `fit` begins: callbacks that change the exchange
    within `fit` need nothing else then, and what was put in front of the step stays there.
    """

    def __init__(self, model, operation, function, make):
        self._model = weakref.ref(model)
        self._operation = operation
        self._function = function
        self._make = make
        self.generation = None  # that of the trace, which happens in the first call

    def __call__(self, iterator):
        operation, model = self._operation, self._model()
        if self.generation not in (None, operation.generation):
            self._rebuild()
        self.generation = operation.generation
        with operation.for_model(model), _explaining(operation):
            logs = self._function(iterator)
        if operation.wants_measurement and operation.after_step(model.distribute_strategy):
            self.generation = _STALE
        return logs

    def _rebuild(self):
        model = self._model()
        check_momentum(model.optimizer, self._operation.compressor)
        in_front = model.train_function
        self._function = self._make(model, True)
        model.train_function = in_front
        if model.train_tf_function is not None:
            # It would advise against traces that were asked for.
            model.train_tf_function._omit_frequent_tracing_warning = True
        _logger.info("tracing the training step again: what it exchanges has changed")


def check_momentum(optimizer, compressor):
    """Raises ValueError where both the compressor and the optimizer would apply momentum.

    With momentum in the compressor, what leaves it is the velocity and no longer a gradient:
    an optimizer that is not plain SGD would use it for something else.

    Args:
        optimizer: a Keras optimizer, also inside a LossScaleOptimizer.
        compressor: has `momentum` and `name`.
    """
    momentum = getattr(compressor, "momentum", 0.0)
    if not momentum:
        return
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    has = f"the compression {compressor.name!r} has momentum {momentum:g} of its own"
    fix = "Or give the compressor momentum=0, and plain error feedback is left."
    if not isinstance(inner, (keras.optimizers.SGD, keras.optimizers.legacy.SGD)):
        name = type(inner).__name__
        raise ValueError(
            f"{has}, and the model was compiled with {name}, which takes what it gets for a "
            f"gradient. Compile with keras.optimizers.SGD(learning_rate, momentum=0.0). {fix}"
        )
    own = inner.get_config()["momentum"]
    if own:
        raise ValueError(
            f"{has}, and {type(inner).__name__} has momentum={float(own):g}: it would be applied "
            f"twice. Compile with keras.optimizers.SGD(learning_rate, momentum=0.0). "
            f"{fix}"
        )
