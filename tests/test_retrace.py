"""A training step is traced again when what it exchanges has changed, and only then."""

import contextlib
import types
import weakref

import numpy as np
import pytest
import tensorflow as tf

from tests.garbage import assert_collected
from tfscale._keras import install, keras, retrace
from tfscale._keras.training_state import before_first_step
from tfscale.optimizers.lars import LARS


class Operation(tf.distribute.ReductionToOneDevice):
    """Stands in for Hierarchical2DAllReduce; `traces` notes the generation of each trace."""

    def __init__(self):
        super().__init__()
        self.generation, self.traces = 0, []
        self.compressor = types.SimpleNamespace(momentum=0.0, name="none")
        self.measured_steps = None  # after how many more the plan is made
        self.calls, self.models = 0, []

    @property
    def wants_measurement(self):
        return self.measured_steps is not None

    def after_step(self, strategy):
        self.calls += 1
        self.measured_steps -= 1
        if self.measured_steps == 0:
            self.measured_steps = None
            return True
        return False

    def for_model(self, model):
        self.models.append(weakref.ref(model))
        return contextlib.nullcontext()

    def explain(self, error):
        return "worker 1 is lost" if "a lost worker" in str(error) else None

    def batch_reduce_implementation(self, *args, **kwargs):
        if not tf.executing_eagerly():
            self.traces.append(self.generation)
        return super().batch_reduce_implementation(*args, **kwargs)


OPERATION = Operation()


@pytest.fixture(scope="module")
def strategy():
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"], cross_device_ops=OPERATION)
    install(strategy, OPERATION)
    install(strategy, OPERATION)
    return strategy


@pytest.fixture
def operation(strategy):
    vars(OPERATION).update(vars(Operation()))
    return OPERATION


def build(strategy, optimizer=None, **compiled):
    with strategy.scope():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        model.compile(optimizer or keras.optimizers.SGD(0.1), "mse", metrics=["mae"], **compiled)
    return model


def fit(model, epochs=1, steps=6, callbacks=()):
    x = np.random.RandomState(0).randn(4 * steps, 2).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True)))
    return model.fit(
        data.batch(4, drop_remainder=True).repeat(), epochs=epochs, steps_per_epoch=steps,
        verbose=0, callbacks=list(callbacks),
    )  # fmt: skip


def first(generation):
    """The first trace of a model: TensorFlow traces twice where the trace makes variables."""
    return [generation, generation]


class Bump(keras.callbacks.Callback):
    """Changes the generation before given steps of `fit`, or asks for a trace outright."""

    def __init__(self, operation, at=(), outright=()):
        super().__init__()
        self.operation, self.at, self.outright = operation, at, outright

    def on_train_batch_begin(self, batch, logs=None):
        if batch in self.at:
            self.operation.generation += 1
        if batch in self.outright:
            retrace.retrace(self.model)


def test_between_fits_one_retrace(strategy, operation):
    model = build(strategy)
    fit(model)
    fit(model)
    assert operation.traces == first(0)
    operation.generation = 5
    fit(model)
    fit(model)
    assert operation.traces == [*first(0), 5]
    # Nothing was traced between the two changes, so the first costs nothing.
    operation.generation = 6
    operation.generation = 7
    fit(model)
    assert operation.traces == [*first(0), 5, 7]


@pytest.mark.slow
def test_in_the_middle_of_fit_the_maths_stays(strategy, operation):
    keras.utils.set_random_seed(1)
    model = build(strategy)
    history = fit(model, epochs=2, callbacks=[Bump(operation, at=[2, 4], outright=[5])]).history
    assert operation.traces == [*first(0), 1, 2, 2, 3, 4, 4]
    keras.utils.set_random_seed(1)
    plain = build(strategy)
    assert fit(plain, epochs=2).history == history
    for a, b in zip(model.variables, plain.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    # Before the first step there is nothing to trace again.
    operation.traces.clear()
    fit(build(strategy), callbacks=[Bump(operation, at=[0], outright=[0])])
    assert len(operation.traces) == 2


@pytest.mark.slow
def test_tensorflow_does_not_advise_against_traces_that_were_asked_for(strategy, operation, caplog):
    fit(build(strategy), steps=12, callbacks=[Bump(operation, at=range(2, 12, 2))])
    assert operation.traces == [*first(0), 1, 2, 3, 4, 5]
    assert "triggered tf.function retracing" not in caplog.text


@pytest.mark.slow
def test_train_on_batch_and_several_steps_per_execution(strategy, operation):
    model = build(strategy, steps_per_execution=3)
    fit(model, callbacks=[Bump(operation, at=[3])])
    # The body of a loop is traced twice, and the first time around twice more.
    assert operation.traces == [*first(0), *first(0), 1, 1]
    assert model.optimizer.iterations.numpy() == 6
    x = np.ones([4, 2], "float32")
    model = build(strategy)
    operation.traces.clear()
    model.train_on_batch(x, x[:, :1])
    operation.generation += 1
    model.train_on_batch(x, x[:, :1])
    assert operation.traces == [*first(1), 2]


def test_measurements_end_with_one_retrace(strategy, operation):
    operation.measured_steps = 3
    model = build(strategy)
    fit(model, epochs=2)
    assert operation.traces == [*first(0), 0] and operation.calls == 3
    operation.traces.clear()
    operation.calls, operation.measured_steps = 0, 2
    fit(build(strategy, steps_per_execution=2))
    assert len(operation.traces) == 4 + 2 and operation.calls == 2


@pytest.mark.slow
def test_what_stands_before_the_first_step_is_called_once(strategy, operation):
    calls = []

    class Resume(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            before_first_step(self.model, lambda: calls.append(len(self.model.metrics)))

    model = build(strategy)
    fit(model, callbacks=[Resume(), Bump(operation, at=[0, 3])])
    assert calls == [2] and operation.traces == [*first(1), 2]
    # The second time the step is traced already, under another generation.
    fit(model, callbacks=[Resume(), Bump(operation, at=[0], outright=[0])])
    assert calls == [2, 2] and operation.traces == [*first(1), 2, 3]


@pytest.mark.slow
def test_a_step_of_the_users_own_is_wrapped_once(strategy, operation):
    class Model(keras.Sequential):
        def make_train_function(self, force=False):
            if self.train_function is not None and not force:
                return self.train_function
            inner = super().make_train_function(force)

            def counted(iterator):
                self.count = getattr(self, "count", 0) + 1
                return inner(iterator)

            self.train_function = counted
            return counted

    with strategy.scope():
        model = Model([keras.Input([2]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    fit(model, callbacks=[Bump(operation, at=[2])])
    assert operation.traces == [*first(0), 1] and model.count == 6


def test_each_step_is_traced_and_run_for_its_model(strategy, operation):
    models = [build(strategy) for _ in range(2)]
    for model in models:
        fit(model, steps=1)
    x = np.ones([4, 2], "float32")
    for model in models:
        model.train_on_batch(x, x[:, :1])
    assert [reference() for reference in operation.models] == models * 2


def test_other_strategies_and_operations_are_left_alone(strategy):
    other = tf.distribute.get_strategy()
    install(other, tf.distribute.ReductionToOneDevice())
    assert retrace.operation_of(other) is None
    assert retrace.operation_of(strategy) is OPERATION
    model = build(other)
    model.train_function = function = lambda iterator: {}
    assert model.make_train_function() is function
    retrace.retrace(model)


def test_models_and_strategies_are_not_kept_alive(strategy, operation):
    model = build(strategy)
    fit(model)
    reference = weakref.ref(model)
    del model
    keras.backend.clear_session()
    assert_collected(reference)


# ---------------------------------------------------------------- momentum


def momentum(value=0.9):
    return types.SimpleNamespace(momentum=value, name=f"topk ratio 0.01 momentum {value:g}")


@pytest.mark.parametrize(
    "optimizer, message",
    [
        (lambda: keras.optimizers.SGD(0.1, momentum=0.9), r"SGD has momentum=0.9.*twice"),
        (lambda: keras.optimizers.legacy.SGD(0.1, momentum=0.5), r"SGD has momentum=0.5"),
        (lambda: LARS(0.1), "compiled with LARS"),
        (lambda: keras.optimizers.Adam(), "compiled with Adam"),
        (
            lambda: keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam()),
            "compiled with Adam",
        ),
    ],
)
def test_momentum_twice_is_refused(strategy, operation, optimizer, message):
    with strategy.scope():
        optimizer = optimizer()
    retrace.check_momentum(optimizer, operation.compressor)
    operation.compressor = momentum()
    model = build(strategy, optimizer)
    with pytest.raises(ValueError, match=rf"(?s)momentum 0.9 of its own.*{message}.*momentum=0.0"):
        fit(model)


def test_momentum_once_is_fine(strategy, operation):
    operation.compressor = momentum()
    legacy, wrapper = keras.optimizers.legacy.SGD, keras.mixed_precision.LossScaleOptimizer
    for optimizer in (keras.optimizers.SGD(0.1), legacy(0.1), wrapper(keras.optimizers.SGD(0.1))):
        retrace.check_momentum(optimizer, operation.compressor)


@pytest.mark.slow
def test_momentum_that_begins_within_fit_is_refused_there(strategy, operation):
    class Begin(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 2:
                operation.compressor = momentum()
                operation.generation += 1

    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    with pytest.raises(ValueError, match="twice"):
        fit(build(strategy, optimizer), callbacks=[Begin()])


def test_the_error_of_a_lost_worker_is_put_in_words(strategy, operation):
    model = build(strategy)
    fit(model)
    step = model.train_function

    def failing(text):
        def function(iterator):
            raise tf.errors.UnavailableError(None, None, text)

        return function

    step._function = failing("a lost worker")
    with pytest.raises(RuntimeError, match="worker 1 is lost"):
        fit(model)
    step._function = failing("something else")
    with pytest.raises(tf.errors.UnavailableError):
        fit(model)


@pytest.mark.parametrize("what", ["evaluate", "predict"])
def test_so_it_is_in_evaluate_and_predict(strategy, operation, what):
    class Failing(keras.layers.Layer):
        def call(self, inputs, training=False):
            if not training:
                tf.py_function(self.fail, [inputs], [])
            return inputs

        def fail(self, inputs):
            if self.text:
                raise ValueError(self.text)

    layer = Failing()
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), layer, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones([4, 1], "float32")
    data = [x, x] if what == "evaluate" else [x]

    def run(text):
        layer.text = text
        return getattr(model, what)(*data, verbose=0)

    result = run(None)
    function = getattr(model, f"{what.replace('evaluate', 'test')}_function")
    with pytest.raises(RuntimeError, match="worker 1 is lost"):
        run("a lost worker")
    with pytest.raises(tf.errors.OpError, match="something else"):
        run("something else")
    np.testing.assert_array_equal(run(None), result)
    assert getattr(model, f"{what.replace('evaluate', 'test')}_function") is function
