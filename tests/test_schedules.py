"""Linear warm-up, lines between knots and linear scaling against NumPy."""

import doctest

import numpy as np
import pytest
import tensorflow as tf

from tests import references_lars as reference
from tfscale import keras
from tfscale.optimizers import schedules

POWER = dict(initial_learning_rate=8.0, decay_steps=90, end_learning_rate=1e-4, power=2.0)


def power_decay(step):
    return (8.0 - 1e-4) * (1 - min(step, 90) / 90) ** 2 + 1e-4


def warmup(steps=10, **kwargs):
    decay = keras.optimizers.schedules.PolynomialDecay(**POWER)
    return schedules.LinearWarmup(decay, steps, **kwargs)


@pytest.mark.parametrize("decay_start", ["after_warmup", "at_step_0"])
@pytest.mark.parametrize("steps,initial", [(10, 0.0), (10, 0.1), (1, 0.0), (0, 0.0)])
def test_equals_numpy_at_every_step(decay_start, steps, initial):
    rate = warmup(steps, initial_learning_rate=initial, decay_start=decay_start)
    for step in range(0, 120):
        expected = reference.linear_warmup(step, steps, power_decay, initial, decay_start)
        np.testing.assert_allclose(float(rate(step)), expected, rtol=1e-6, atol=1e-7)


def test_golden_rows():
    # 8 * 0, 8 * 1/10, 8 * 9/10, then 8 and (8 - 1e-4) * (1 - 45/90)^2 + 1e-4 at step 10 + 45.
    values = [float(warmup()(step)) for step in (0, 1, 9, 10, 55, 100, 1000)]
    np.testing.assert_allclose(values, [0, 0.8, 7.2, 8.0, 2.000075, 1e-4, 1e-4], rtol=1e-6)


@pytest.mark.parametrize("decay_start", ["after_warmup", "at_step_0"])
def test_is_continuous_at_the_seam(decay_start):
    rate = warmup(1000, decay_start=decay_start)
    before, at = float(rate(999.999)), float(rate(1000))
    assert abs(before - at) < 1e-4


@pytest.mark.parametrize(
    "kind", [int, float, np.int64, tf.constant, lambda t: tf.constant(t, tf.int64), tf.Variable]
)
def test_every_kind_of_step(kind):
    rate = warmup()
    for step in (3, 10, 55):
        expected = reference.linear_warmup(step, 10, power_decay)
        assert float(rate(kind(step))) == pytest.approx(expected, rel=1e-6)


def test_inside_a_function_it_traces_once():
    rate, traces = warmup(), []

    @tf.function
    def rate_at(step):
        traces.append(step)
        return rate(step)

    values = [float(rate_at(tf.constant(step, tf.int64))) for step in (3, 10, 55)]
    expected = [reference.linear_warmup(step, 10, power_decay) for step in (3, 10, 55)]
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert len(traces) == 1


@pytest.mark.parametrize(
    "decay",
    [
        0.5,
        keras.optimizers.schedules.CosineDecay(0.5, 50),
        keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.9, staircase=True),
        keras.optimizers.schedules.PiecewiseConstantDecay([5, 9], [0.5, 0.2, 0.1]),
        keras.optimizers.schedules.InverseTimeDecay(0.5, 10, 0.9),
        schedules.LinearWarmup(0.5, 3),
    ],
    ids=lambda decay: type(decay).__name__,
)
def test_any_decay_and_round_trip(decay):
    rate = schedules.LinearWarmup(decay, 4, initial_learning_rate=0.1)
    config = keras.optimizers.schedules.serialize(rate)
    again = keras.optimizers.schedules.deserialize(config)
    assert again.get_config() == rate.get_config()

    def decay_at(step):
        return decay if isinstance(decay, float) else float(decay(step))

    for step in (0, 2, 4, 5, 9, 13, 40):
        expected = reference.linear_warmup(step, 4, decay_at, initial=0.1)
        for each in (rate, again):
            assert float(each(tf.constant(step, tf.int64))) == pytest.approx(expected, rel=1e-6)


def test_equals_tf_models_official_where_its_decay_starts_at_step_0():
    lr_schedule = pytest.importorskip("official.modeling.optimization.lr_schedule")
    decay = keras.optimizers.schedules.PolynomialDecay(**POWER)
    theirs = lr_schedule.LinearWarmup(decay, warmup_steps=10, warmup_learning_rate=0.1)
    ours = schedules.LinearWarmup(decay, 10, initial_learning_rate=0.1, decay_start="at_step_0")
    for step in (0, 1, 5, 9, 10, 11, 50, 200):
        assert float(ours(step)) == pytest.approx(float(theirs(step)), rel=1e-6)


def test_counts_global_batches_whatever_the_replicas():
    for devices in (["CPU:0"], ["CPU:0", "CPU:1"]):
        strategy = tf.distribute.MirroredStrategy(
            devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
        )
        with strategy.scope():
            model = keras.Sequential([keras.layers.Dense(1, input_shape=(2,))])
            model.compile(keras.optimizers.SGD(warmup(10)), "mse")
        model.fit(np.ones([12, 2]), np.ones([12, 1]), batch_size=4, epochs=2, verbose=0)
        assert model.optimizer.iterations.numpy() == 6
        # The rate that Keras keeps is the one of the last step taken, number 5.
        assert model.optimizer.learning_rate.numpy() == pytest.approx(8.0 * 5 / 10)


@pytest.mark.parametrize(
    "kwargs,words",
    [
        (dict(schedule=-1.0), "schedule must be a number at least 0.0; got -1.0"),
        (dict(schedule="fast"), "got 'fast'"),
        (dict(schedule=lambda step: 1.0), "Take keras by `from tfscale import keras`"),
        (dict(warmup_steps=-1), "warmup_steps must be an integer of at least 0; got -1"),
        (dict(warmup_steps=2.5), "got 2.5"),
        (dict(warmup_steps=True), "got True"),
        (dict(initial_learning_rate=float("nan")), "initial_learning_rate .* got nan"),
        (dict(decay_start="end"), "one of 'after_warmup', 'at_step_0'; got 'end'"),
    ],
)
def test_bad_arguments_are_named(kwargs, words):
    with pytest.raises(ValueError, match=words):
        schedules.LinearWarmup(**{"schedule": 1.0, "warmup_steps": 2, **kwargs})


def test_a_schedule_of_keras_3_is_refused():
    keras_3 = pytest.importorskip("keras")
    with pytest.raises(ValueError, match="Keras in force"):
        schedules.LinearWarmup(keras_3.optimizers.schedules.CosineDecay(1.0, 10), 2)


# ---------------------------------------------------------------- lines between knots


@pytest.mark.parametrize(
    "steps,values",
    [
        ([0, 10, 40, 60], [0.0, 8.0, 0.5, 0.5]),
        ([5, 6, 20], [0.98, 0.9, 0.98]),
        ([7], [0.3]),
        ([0, 3, 10], [1.0, 0.0, 2.0]),
    ],
)
def test_piecewise_linear_equals_numpy_at_every_step(steps, values):
    rate = schedules.PiecewiseLinear(steps, values)
    for step in (*range(0, 70), 2.5, 59.75):
        expected = np.interp(step, steps, values)
        np.testing.assert_allclose(float(rate(step)), expected, rtol=1e-6, atol=1e-7)
    for step, value in zip(steps, values, strict=True):
        assert float(rate(step)) == np.float32(value)


def test_piecewise_linear_far_out_and_at_a_jump():
    far = schedules.PiecewiseLinear([2**24 + 1, 2**24 + 3], [0.0, 1.0])  # no float32 has the first
    steps = [2**24, 2**24 + 1, 2**24 + 2, 2**24 + 3]
    assert [float(far(tf.constant(s, tf.int64))) for s in steps] == [0.0, 0.0, 0.5, 1.0]
    beyond = schedules.PiecewiseLinear([0, 2**33], [0.0, 1.0])
    assert float(beyond(tf.constant(2**30))) == 0.125
    jump = schedules.PiecewiseLinear([0, 99, 100], [4.0, 4.0, 1.0])
    assert [float(jump(s)) for s in (98, 99, 100, 101)] == [4.0, 4.0, 1.0, 1.0]


def test_piecewise_linear_inside_a_function_traces_once():
    rate, traces = schedules.PiecewiseLinear([0, 10, 20], [0.0, 1.0, 0.5]), []

    @tf.function
    def rate_at(step):
        traces.append(step)
        return rate(step)

    values = [float(rate_at(tf.constant(step, tf.int64))) for step in (5, 10, 15, 50)]
    np.testing.assert_allclose(values, [0.5, 1.0, 0.75, 0.5], rtol=1e-6)
    assert len(traces) == 1


def test_piecewise_linear_round_trip_also_inside_a_warmup():
    lines = schedules.PiecewiseLinear([0, 10, 20], [2.0, 1.0, 0.5])
    for rate in (lines, schedules.LinearWarmup(lines, 4)):
        again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(rate))
        assert type(again) is type(rate) and again.get_config() == rate.get_config()
        assert [float(again(s)) for s in range(30)] == [float(rate(s)) for s in range(30)]


@pytest.mark.parametrize(
    "steps,values,words",
    [
        ([], [], "the same length, at least 1; got 0 steps and 0 values"),
        ([0, 5], [1.0], "got 2 steps and 1 values"),
        ([0, 5, 5], [1.0, 2.0, 3.0], "got 5 after 5 .* two knots a step apart"),
        ([5, 0], [1.0, 2.0], "got 0 after 5"),
        ([-1, 0], [1.0, 2.0], "steps must be an integer of at least 0; got -1"),
        ([0, 2.5], [1.0, 2.0], "steps .* got 2.5"),
        (None, [1.0], "steps must be a list of numbers; got None"),
        ([0], 1.0, "values must be a list of numbers; got 1.0"),
        ([0], [1e39], "values must be a number .* within float32's range; got 1e"),
        ([0, 5], [1.0, -2.0], "values must be a number at least 0.0; got -2.0"),
    ],
)
def test_piecewise_linear_refuses(steps, values, words):
    with pytest.raises(ValueError, match=words):
        schedules.PiecewiseLinear(steps, values)


# ---------------------------------------------------------------- the linear scaling rule


def test_linear_scaling_rule():
    # Goyal et al. 2017: 0.1 for 256 images becomes 3.2 for 8,192.
    assert schedules.scale_learning_rate(0.1, 8192) == pytest.approx(3.2)
    assert schedules.scale_learning_rate(0.1, 256) == 0.1
    assert schedules.scale_learning_rate(0.5, 64, base_batch_size=128) == 0.25


@pytest.mark.parametrize(
    "args,words",
    [
        ((-0.1, 256), "base .* got -0.1"),
        ((0.1, 0), "global_batch_size .* got 0"),
        ((0.1, 256.0), "global_batch_size must be an integer of at least 1; got 256.0"),
        ((0.1, 256, -1), "base_batch_size .* got -1"),
    ],
)
def test_linear_scaling_rule_refuses(args, words):
    with pytest.raises(ValueError, match=words):
        schedules.scale_learning_rate(*args)


def test_examples_run():
    results = doctest.testmod(schedules)
    assert results.attempted > 0
    assert results.failed == 0
