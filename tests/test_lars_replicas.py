"""LARS under distribution and mixed precision: one device's weights, the same on each replica."""

import numpy as np
import pytest
import tensorflow as tf

from tests import references_lars as reference
from tfscale import keras
from tfscale.optimizers.lars import LARS
from tfscale.optimizers.trust_ratio import trust_ratio

STEPS, BATCH = 5, 16
RANDOM = np.random.RandomState(0)
IMAGES = RANDOM.randn(STEPS * BATCH, 6).astype("float32")
# The halves of a batch differ, so that a ratio of local gradients would differ by replica.
IMAGES[::2] *= 3.0
LABELS = RANDOM.randn(STEPS * BATCH, 2).astype("float32")


@pytest.fixture(autouse=True)
def global_policy():
    yield
    keras.mixed_precision.set_global_policy("float32")


def mirrored(replicas):
    return tf.distribute.MirroredStrategy(
        [f"CPU:{index}" for index in range(replicas)],
        # Stock collectives on logical CPUs clash when two tensors have equal sizes.
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def build_model(policy):
    keras.mixed_precision.set_global_policy(policy)
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.layers.Dense(8, activation="tanh", input_shape=(6,), name="hidden"),
            keras.layers.Dense(2, name="head"),
            keras.layers.Activation("linear", dtype="float32"),
        ]
    )


def optimizer_of(**kwargs):
    decay = keras.optimizers.schedules.PolynomialDecay(0.25, 10, 0.05)
    return LARS(decay, weight_decay=0.01, trust_coefficient=0.1, nesterov=True, **kwargs)


def fit(strategy, model):
    model.fit(IMAGES, LABELS, batch_size=BATCH, shuffle=False, verbose=0)
    return model.optimizer


def own_loop(strategy, model):
    optimizer = model.optimizer
    scaled = isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer)

    def step(images, labels):
        with tf.GradientTape() as tape:
            error = tf.reduce_mean((model(images, training=True) - labels) ** 2, axis=1)
            loss = tf.reduce_sum(error) / BATCH
            if scaled:
                loss = optimizer.get_scaled_loss(loss)
        gradients = tape.gradient(loss, model.trainable_variables)
        if scaled:
            gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @tf.function
    def distributed_step(batch):
        strategy.run(step, args=batch)

    dataset = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(BATCH)
    for batch in strategy.experimental_distribute_dataset(dataset):
        distributed_step(batch)
    return optimizer


def train(replicas, loop=fit, policy="float32", **kwargs):
    """Returns weights and optimizer variables, after checking that all copies are equal."""
    strategy = mirrored(replicas)
    with strategy.scope():
        model = build_model(policy)
        model.compile(optimizer_of(**kwargs), "mse")
    optimizer = loop(strategy, model)
    variables = model.trainable_variables + list(optimizer.variables)
    for variable in variables:
        copies = [copy.numpy() for copy in strategy.experimental_local_results(variable)]
        assert len(copies) == replicas
        for copy in copies:
            np.testing.assert_array_equal(copy, copies[0])
    assert optimizer.iterations.numpy() == STEPS
    return [variable.numpy() for variable in variables], optimizer


def assert_all_close(actual, expected, **tolerance):
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, **tolerance)


@pytest.mark.parametrize("loop", [fit, own_loop])
@pytest.mark.parametrize("kwargs", [{}, dict(clipnorm=0.05), dict(momentum_form="scaled")], ids=str)
@pytest.mark.slow
def test_weights_do_not_depend_on_the_replicas(loop, kwargs):
    expected, _ = train(1, loop, **kwargs)
    for replicas in (2, 4):
        weights, _ = train(replicas, loop, **kwargs)
        # Sums of a batch in another order: a few units in the last place of float32.
        assert_all_close(weights, expected, rtol=1e-5, atol=1e-6)


def test_one_replica_equals_numpy():
    model = build_model("float32")
    weights = [variable.numpy().astype("float64") for variable in model.trainable_variables]
    momenta = [np.zeros_like(w) for w in weights]
    actual, _ = train(1)
    for step in range(STEPS):
        batch = slice(step * BATCH, (step + 1) * BATCH)
        x, y = IMAGES[batch].astype("float64"), LABELS[batch]
        w1, b1, w2, b2 = weights
        h = np.tanh(x @ w1 + b1)
        d_out = 2 * (h @ w2 + b2 - y) / y.size
        d_h = (d_out @ w2.T) * (1 - h * h)
        gradients = [x.T @ d_h, d_h.sum(0), h.T @ d_out, d_out.sum(0)]
        rate = 0.25 - 0.02 * step
        for i, g in enumerate(gradients):
            kernel = g.ndim == 2
            weights[i], momenta[i] = reference.lars_step(
                weights[i],
                momenta[i],
                g,
                rate,
                weight_decay=0.01 if kernel else 0.0,
                trust_coefficient=0.1,
                nesterov=True,
                adapted=kernel,
            )
    assert_all_close(actual[:4], weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loop", [fit, own_loop])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.slow
def test_mixed_precision_equals_float32_within_rounding(loop, policy):
    expected, _ = train(1, loop)
    # Half precision keeps 11 (float16) or 8 (bfloat16) bits of each activation.
    rounding = {"mixed_float16": 1e-2, "mixed_bfloat16": 8e-2}[policy]
    for replicas in (1, 2):
        weights, optimizer = train(replicas, loop, policy)
        assert_all_close(weights[:4], expected[:4], rtol=rounding, atol=rounding)
        assert all(w.dtype == np.float32 for w in weights[:4])
        inner = optimizer
        if policy == "mixed_float16":
            assert type(optimizer).__name__.startswith("LossScaleOptimizer")
            inner = optimizer.inner_optimizer
            np.testing.assert_allclose(optimizer.learning_rate.numpy(), 0.25 - 0.02 * (STEPS - 1))
        assert type(inner) is LARS
        assert {slot.dtype for slot in inner.momentums} == {tf.float32}


def test_an_optimizer_that_is_wrapped_already_is_not_wrapped_again():
    model = build_model("mixed_float16")
    wrapped = keras.mixed_precision.LossScaleOptimizer(optimizer_of(), initial_scale=8.0)
    model.compile(wrapped, "mse")
    assert model.optimizer is wrapped
    assert float(fit(None, model).loss_scale) == 8.0
    assert type(model.optimizer.inner_optimizer) is LARS


def test_an_overflow_of_one_replica_skips_the_step_on_all():
    strategy = mirrored(2)
    with strategy.scope():
        model = build_model("mixed_float16")
        inner = optimizer_of()
        model.compile(keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=128.0), "mse")
    before = [w.copy() for w in model.get_weights()]
    images = IMAGES[:BATCH].copy()
    images[0] = 1e5  # the first replica's half; beyond float16
    model.fit(images, LABELS[:BATCH], batch_size=BATCH, verbose=0)
    assert float(model.optimizer.loss_scale) == 64.0
    for variable, old in zip(model.trainable_variables, before, strict=True):
        for copy in strategy.experimental_local_results(variable):
            np.testing.assert_array_equal(copy.numpy(), old)
    assert all((slot.numpy() == 0).all() for slot in inner.momentums)


def test_the_ratio_is_that_of_the_global_batch():
    strategy = mirrored(2)
    w = RANDOM.randn(4, 3).astype("float32")
    halves = RANDOM.randn(2, 4, 3).astype("float32")
    with strategy.scope():
        variable = tf.Variable(w, name="kernel", aggregation=tf.VariableAggregation.MEAN)
        # One step, no momentum: the step's length gives the ratio away.
        optimizer = LARS(1.0, momentum=0.0, weight_decay=0.0)
    g = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(halves[context.replica_id_in_sync_group])
    )
    strategy.run(lambda g: optimizer.apply_gradients([(g, variable)]), args=(g,))
    total = halves.sum(axis=0)
    ratio = float(trust_ratio(tf.constant(w), tf.constant(total)))
    for copy in strategy.experimental_local_results(variable):
        np.testing.assert_allclose(copy.numpy(), w - ratio * total, rtol=1e-6)


def test_sparse_gradients_of_embeddings_do_not_depend_on_the_replicas():
    words = RANDOM.randint(0, 5, [STEPS * BATCH, 3])  # of 7: two rows never get a gradient

    def run(replicas):
        strategy = mirrored(replicas)
        with strategy.scope():
            keras.utils.set_random_seed(3)
            model = keras.Sequential(
                [
                    keras.layers.Embedding(7, 4, input_length=3),
                    keras.layers.Flatten(),
                    keras.layers.Dense(2),
                ]
            )
            model.compile(optimizer_of(), "mse")
        model.fit(words, LABELS, batch_size=BATCH, shuffle=False, verbose=0)
        table = model.layers[0].embeddings
        copies = [copy.numpy() for copy in strategy.experimental_local_results(table)]
        for copy in copies:
            np.testing.assert_array_equal(copy, copies[0])
        return model.get_weights()

    assert_all_close(run(2), run(1), rtol=1e-5, atol=1e-6)
