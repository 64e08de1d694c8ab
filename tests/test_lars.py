"""LARS step by step: by hand, against NumPy, and against tf-models-official."""

import doctest
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests import references_lars as reference
from tfscale import keras
from tfscale.optimizers import lars as lars_module
from tfscale.optimizers import trust_ratio as trust_ratio_module
from tfscale.optimizers.lars import LARS
from tfscale.optimizers.schedules import LinearWarmup, PiecewiseLinear
from tfscale.optimizers.trust_ratio import trust_ratio

# Exact in binary, so that float32 hyperparameters do not disturb float64 comparisons.
RATES = [0.5, 0.5, 1.0, 0.25, 0.125]


def run(optimizer, w, gradients, rates=None, dtype=tf.float64, in_function=False, name="kernel"):
    """Returns the weights after each step."""
    variable = tf.Variable(w, dtype=dtype, name=name)
    optimizer.build([variable])
    step = lambda g: optimizer.apply_gradients([(g, variable)])  # noqa: E731
    if in_function:
        step = tf.function(step)
    trajectory = []
    for g, rate in itertools.zip_longest(gradients, rates or ()):
        if rate is not None:
            optimizer.learning_rate = rate
        step(tf.constant(g, dtype))
        trajectory.append(variable.numpy())
    return np.stack(trajectory)


def data(seed=0, shape=(3, 4), steps=5):
    random = np.random.RandomState(seed)
    return random.randn(*shape), [random.randn(*shape) for _ in range(steps)]


# ---------------------------------------------------------------- by hand
# w = [3, 4], g = [0.6, 0.8] twice, momentum 0.9, learning rate 1 then 0.1, no decay.
# |w| = 5, |g| = 1, so ratio 0.005 and the first step is 0.005 g = [0.003, 0.004] in all four,
# but for nesterov: 1.9 times that. Second step, |w| = 4.995 (nesterov: 4.9905):
#   unscaled            0.9 * 0.005 g + 0.1 * 0.004995 g         = 0.0049995 g
#   scaled              0.1 * (0.9 * 0.005 + 0.004995) g         = 0.0009495 g
#   unscaled, nesterov  0.9 * (0.0045 + 0.00049905) g + 0.00049905 g = 0.004998195 g
#   scaled, nesterov    0.1 * (0.9 * (0.0045 + 0.0049905) + 0.0049905) g = 0.001353195 g
GOLDEN = {
    ("unscaled", False): (0.005, 0.0049995),
    ("scaled", False): (0.005, 0.0009495),
    ("unscaled", True): (0.0095, 0.004998195),
    ("scaled", True): (0.0095, 0.001353195),
}


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("form,nesterov", GOLDEN)
def test_golden_steps(form, nesterov, in_function):
    first, second = GOLDEN[form, nesterov]
    optimizer = LARS(
        1.0,
        weight_decay=0.0,
        momentum_form=form,
        nesterov=nesterov,
        exclude_from_layer_adaptation=[],
    )
    g = np.array([0.6, 0.8])
    weights = run(optimizer, [3.0, 4.0], [g, g], [1.0, 0.1], in_function=in_function)
    expected = np.array([[3.0, 4.0] - first * g, [3.0, 4.0] - (first + second) * g])
    # 0.1 is not a float32: its relative error is 1.5e-8.
    np.testing.assert_allclose(weights, expected, rtol=1e-10)


def test_golden_ratio_with_decay_epsilon_and_clip():
    w, g = tf.constant([[3.0, 4.0]]), tf.constant([[0.6, 0.8]])
    # 0.001 * 5 / (1 + 0.1 * 5 + 0.5)
    assert float(trust_ratio(w, g, 0.1, 1e-3, 0.5)) == pytest.approx(0.0025)
    assert float(trust_ratio(w, g, trust_clip=(0.01, 1.0))) == pytest.approx(0.01)
    assert float(trust_ratio(w, g, trust_clip=(0.0, 0.002))) == pytest.approx(0.002)


@pytest.mark.parametrize("w,g", [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
@pytest.mark.parametrize("weight_decay,epsilon", [(0.0, 0.0), (1e-4, 1e-5)])
def test_a_zero_norm_gives_ratio_1(w, g, weight_decay, epsilon):
    ratio = trust_ratio(tf.fill([2, 2], w), tf.fill([2, 2], g), weight_decay, 1e-3, epsilon)
    assert float(ratio) == 1.0


def test_a_nan_gradient_is_not_hidden():
    optimizer = LARS(1.0)
    assert np.isnan(run(optimizer, np.ones([2, 2]), [np.full([2, 2], np.nan)])).all()


# ---------------------------------------------------------------- against NumPy
VARIANTS = [
    dict(momentum_form=form, nesterov=nesterov, **more)
    for form in ("unscaled", "scaled")
    for nesterov in (False, True)
    for more in (
        dict(),
        dict(weight_decay=0.0),
        dict(weight_decay=0.05, epsilon=1e-3, trust_coefficient=0.02),
        dict(momentum=0.0),
        dict(trust_clip=(0.0005, 0.0012)),
    )
]


@pytest.mark.parametrize("kwargs", VARIANTS, ids=str)
def test_five_steps_equal_numpy(kwargs):
    w, gradients = data()
    expected = reference.lars_run(w, gradients, RATES, **kwargs)
    for in_function in (False, True):
        weights = run(LARS(1.0, **kwargs), w, gradients, RATES, in_function=in_function)
        np.testing.assert_allclose(weights, expected, rtol=1e-12)
    weights = run(LARS(1.0, **kwargs), w, gradients, RATES, dtype=tf.float32)
    # Weights are about 1; one that passes through zero keeps the rounding of its terms.
    np.testing.assert_allclose(weights, expected, rtol=2e-6, atol=1e-6)


def test_a_single_clip_bound_is_the_upper_one():
    w, gradients = data()
    one, pair = LARS(1.0, trust_clip=0.0012), LARS(1.0, trust_clip=(0.0, 0.0012))
    np.testing.assert_array_equal(run(one, w, gradients), run(pair, w, gradients))


def test_excluded_variables_have_ratio_1_and_no_decay():
    w, gradients = data()
    for name, shape in (("bias", (3, 4)), ("bn/gamma", (3, 4)), ("kernel", (12,))):
        weights = run(
            LARS(1.0, weight_decay=0.1),
            w.reshape(shape),
            [g.reshape(shape) for g in gradients],
            RATES,
            name=name,
        )
        expected = reference.lars_run(w, gradients, RATES, weight_decay=0.0, adapted=False)
        np.testing.assert_allclose(weights.reshape(expected.shape), expected, rtol=1e-12)


def test_the_two_lists_are_independent():
    w, gradients = data()
    decayed = LARS(1.0, weight_decay=0.1, exclude_from_layer_adaptation="kernel")
    expected = reference.lars_run(w, gradients, RATES, weight_decay=0.1, adapted=False)
    np.testing.assert_allclose(run(decayed, w, gradients, RATES), expected, rtol=1e-12)
    adapted = LARS(1.0, weight_decay=0.1, exclude_from_weight_decay="kernel")
    expected = reference.lars_run(w, gradients, RATES, weight_decay=0.0)
    np.testing.assert_allclose(run(adapted, w, gradients, RATES), expected, rtol=1e-12)


def test_the_step_does_not_depend_on_the_gradients_scale():
    w, gradients = data()
    plain = run(LARS(1.0, weight_decay=0.0), w, gradients)
    scaled = run(LARS(1.0, weight_decay=0.0), w, [1000 * g for g in gradients])
    np.testing.assert_allclose(plain, scaled, rtol=1e-12)


def test_clipping_comes_before_the_ratio():
    w, gradients = data()
    clipped = [g / np.linalg.norm(g) for g in gradients]  # all have a norm above 1
    for kwargs in (dict(clipnorm=1.0), dict(global_clipnorm=1.0)):
        expected = reference.lars_run(w, clipped, RATES, weight_decay=0.5)
        weights = run(LARS(1.0, weight_decay=0.5, **kwargs), w, gradients, RATES)
        np.testing.assert_allclose(weights, expected, rtol=1e-7)


def test_moving_average_of_the_weights():
    w, gradients = data()
    optimizer = LARS(1.0, use_ema=True, ema_momentum=0.5)
    trajectory = run(optimizer, w, gradients)
    average = w
    for weights in trajectory:
        average = 0.5 * average + 0.5 * weights
    variable = tf.Variable(w, name="kernel")
    optimizer = LARS(1.0, use_ema=True, ema_momentum=0.5)
    for g in gradients:
        optimizer.apply_gradients([(tf.constant(g), variable)])
    optimizer.finalize_variable_values([variable])
    np.testing.assert_allclose(variable.numpy(), average, rtol=1e-12)


def test_sparse_gradients_equal_dense_ones():
    table, _ = data(shape=(6, 4))
    rows = [[0, 2, 2], [5, 5, 5], [1, 0, 3]]  # row 2 and row 5 come more than once
    dense = []
    for indices in rows:
        g = np.zeros([6, 4])
        np.add.at(g, indices, np.ones([3, 4]) * [[1.0], [2.0], [3.0]])
        dense.append(g)
    expected = reference.lars_run(table, dense, [0.5] * 3, weight_decay=0.1)

    variable = tf.Variable(table, name="embeddings")
    optimizer = LARS(0.5, weight_decay=0.1)

    @tf.function
    def step(indices):
        with tf.GradientTape() as tape:
            picked = tf.gather(variable, indices) * tf.constant([[1.0], [2.0], [3.0]], tf.float64)
            loss = tf.reduce_sum(picked)
        gradient = tape.gradient(loss, variable)
        assert isinstance(gradient, tf.IndexedSlices)
        optimizer.apply_gradients([(gradient, variable)])

    for indices, weights in zip(rows, expected, strict=True):
        step(tf.constant(indices))
        np.testing.assert_allclose(variable.numpy(), weights, rtol=1e-12)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_half_precision_variables_have_float32_norms(dtype):
    # |w|^2 = 256 * 300^2 is beyond float16, whose maximum is 65504.
    w, g = np.full([16, 16], 300.0), np.full([16, 16], 2.0)
    ratio = trust_ratio(tf.constant(w, dtype), tf.constant(g, dtype))
    assert ratio.dtype == tf.float32
    assert float(ratio) == pytest.approx(0.15)
    variable = tf.Variable(w, dtype=dtype, name="kernel")
    LARS(8.0, weight_decay=0.0).apply_gradients([(tf.constant(g, dtype), variable)])
    expected = tf.cast(300.0 - 8.0 * 0.15 * 2.0, dtype)
    np.testing.assert_array_equal(variable.numpy(), np.full([16, 16], expected.numpy()))


# ---------------------------------------------------------------- a momentum schedule
@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("form", ["unscaled", "scaled"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_a_momentum_schedule_is_read_at_the_present_step(form, nesterov, in_function):
    w, gradients = data()
    momenta = [0.75, 0.625, 0.5, 0.5, 0.5]  # exact in binary
    schedule = PiecewiseLinear([0, 2], [0.75, 0.5])
    kwargs = dict(momentum_form=form, nesterov=nesterov, weight_decay=0.125)
    optimizer = LARS(1.0, schedule, **kwargs)
    weights = run(optimizer, w, gradients, RATES, in_function=in_function)
    v, expected = np.zeros_like(w), w
    for g, rate, momentum, got in zip(gradients, RATES, momenta, weights, strict=True):
        expected, v = reference.lars_step(expected, v, g, rate, momentum=momentum, **kwargs)
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_a_momentum_schedule_of_one_value_is_that_momentum():
    w, gradients = data()
    schedule = PiecewiseLinear([0], [0.75])
    np.testing.assert_array_equal(
        run(LARS(1.0, schedule), w, gradients, RATES), run(LARS(1.0, 0.75), w, gradients, RATES)
    )


@pytest.mark.parametrize("nesterov", [False, True])
def test_with_no_variable_adapted_it_is_sgd_with_momentum_and_l2(nesterov, caplog):
    random = np.random.RandomState(0)
    x, y = random.randn(24, 3).astype("float32"), random.randn(24, 1).astype("float32")
    rate = PiecewiseLinear([0, 3, 6], [0.1, 0.4, 0.05])
    trained = []
    for optimizer, regularizer in (
        (keras.optimizers.SGD(rate, momentum=0.9, nesterov=nesterov), keras.regularizers.L2(0.02)),
        (LARS(rate, 0.9, 0.04, nesterov=nesterov, exclude_from_layer_adaptation=".*"), None),
    ):
        keras.utils.set_random_seed(1)
        layer = functools.partial(keras.layers.Dense, kernel_regularizer=regularizer)
        model = keras.Sequential([keras.Input([3]), layer(4, "tanh"), layer(1)])
        model.compile(optimizer, "mse")
        model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
        trained.append(model.get_weights())
    for got, want in zip(*trained, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)
    # It was asked for.
    assert "adapts the rate of none" not in caplog.text


# ---------------------------------------------------------------- against tf-models-official
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("adapt", [False, True])
def test_equals_tf_models_official_where_the_form_is_the_same(nesterov, adapt):
    """Its ratio is eta |w| / |g + wd w|: the same without decay, or without adaptation."""
    theirs = pytest.importorskip("official.modeling.optimization.lars").LARS
    w, gradients = data()
    weight_decay = 0.0 if adapt else 0.1
    variable = tf.Variable(w, name="kernel")
    other = theirs(
        0.5,
        weight_decay_rate=weight_decay,
        nesterov=nesterov,
        exclude_from_layer_adaptation=None if adapt else ["kernel"],
    )
    expected = []
    for g in gradients:
        other.apply_gradients([(tf.constant(g), variable)])
        expected.append(variable.numpy())
    optimizer = LARS(
        0.5,
        weight_decay=weight_decay,
        nesterov=nesterov,
        exclude_from_layer_adaptation=[] if adapt else ["kernel"],
    )
    np.testing.assert_allclose(run(optimizer, w, gradients), expected, rtol=1e-12)


def test_differs_from_tf_models_official_with_decay():
    theirs = pytest.importorskip("official.modeling.optimization.lars").LARS
    # g orthogonal to w and |g| = wd |w|: their ratio is sqrt(2) times ours.
    w, g = np.array([[1.0, 0.0]]), np.array([[0.0, 0.1]])
    variable = tf.Variable(w, name="kernel")
    theirs(1.0, weight_decay_rate=0.1).apply_gradients([(tf.constant(g), variable)])
    ours = run(LARS(1.0, weight_decay=0.1), w, [g])[0]
    np.testing.assert_allclose((variable.numpy() - w) / (ours - w), np.sqrt(2), rtol=1e-6)


# ---------------------------------------------------------------- the battery
@pytest.mark.parametrize("form", ["unscaled", "scaled"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_converges_and_traces_once(form, nesterov):
    decay = keras.optimizers.schedules.PolynomialDecay(20.0, 1500, 0.0)
    optimizer = LARS(decay, weight_decay=0.0, momentum_form=form, nesterov=nesterov)
    x = tf.Variable([[-1.0, 1.5]], name="kernel")
    optimizer.build([x])
    traces = []

    @tf.function
    def step():
        traces.append(1)
        with tf.GradientTape() as tape:
            a, b = x[0, 0], x[0, 1]
            loss = (1 - a) ** 2 + 100 * (b - a**2) ** 2
        optimizer.apply_gradients([(tape.gradient(loss, x), x)])
        return loss

    losses = [float(step()) for _ in range(1500)]
    assert len(traces) == 1
    assert losses[-1] < 0.02 < losses[0]
    assert optimizer.iterations.numpy() == 1500


# ---------------------------------------------------------------- arguments
DECAY = keras.optimizers.schedules.ExponentialDecay


@pytest.mark.parametrize(
    "kwargs,words",
    [
        (dict(learning_rate=-1), "learning_rate must be a number at least 0.0; got -1"),
        (dict(learning_rate=lambda: 0.1), "from tfscale import keras"),
        (dict(momentum=-0.1), "momentum must be a number at least 0.0 and below 1.0; got -0.1"),
        (dict(momentum=1.0), "got 1.0"),
        (dict(momentum=PiecewiseLinear([0, 9], [0.9, 1.0])), "a PiecewiseLinear, .* got 1.0"),
        (dict(momentum=LinearWarmup(2.0, 3)), "a LinearWarmup, .* got 2.0"),
        (dict(momentum=LinearWarmup(PiecewiseLinear([0, 2], [0.9, 3.0]), 3)), "got 3.0"),
        (dict(momentum=DECAY(3.0, 1, 0.5)), "ExponentialDecay, .* got 3.0"),
        (dict(momentum=lambda step: 0.9), "(?s)momentum must be.*from tfscale import keras"),
        (dict(weight_decay=-1e-4), "weight_decay must be a number at least 0.0; got -0.0001"),
        (dict(nesterov="False"), "nesterov must be one of False, True; got 'False'"),
        (dict(clipnorm=-1), "clipnorm must be a number above 0.0; got -1"),
        (dict(clipnorm=np.nan), "clipnorm must be a number above 0.0; got nan"),
        (dict(global_clipnorm=0.0), "global_clipnorm must be a number above 0.0; got 0.0"),
        (dict(clipvalue="1"), "clipvalue must be a number above 0.0; got '1'"),
        (dict(trust_coefficient=0), "trust_coefficient must be a number above 0.0; got 0"),
        (dict(epsilon=-1), "epsilon .* got -1"),
        (dict(momentum_form="paper"), "one of 'unscaled', 'scaled'; got 'paper'"),
        (dict(trust_clip=(1.0, 0.1)), r"got \(1.0, 0.1\): did you mean \(0.1, 1.0\)"),
        (dict(trust_clip=0.0), "trust_clip's upper bound must be a number above 0.0; got 0.0"),
        (dict(trust_clip=(1, 2, 3)), "a number or a pair"),
        (dict(trust_clip=True), "got True"),
        (dict(exclude_from_layer_adaptation="("), r"'\(' is not a regular expression"),
        (dict(exclude_from_weight_decay=[3]), "must hold regular expressions .* got 3"),
        (dict(exclude_from_weight_decay=3), "a regular expression or a list of them; got 3"),
        (dict(exclude_from_weight_decay=""), "would match every variable"),
    ],
)
def test_bad_arguments_are_named(kwargs, words):
    with pytest.raises(ValueError, match=words):
        LARS(**{"learning_rate": 1.0, **kwargs})


def test_no_weight_decay_may_be_written_none():
    assert LARS(1.0, weight_decay=None).weight_decay == 0.0


@pytest.mark.parametrize("module", [lars_module, trust_ratio_module])
def test_examples_run(module):
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0
