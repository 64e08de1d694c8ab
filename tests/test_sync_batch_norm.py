"""Batch norm over groups of replicas against float64 NumPy on the groups' joined batches.

On logical devices of one process; several workers: multiprocess/test_sync_batch_norm.py. In `fit`
and on disk: test_sync_batch_norm_in_keras.py.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.references_batch_norm import (
    EPSILON,
    build,
    check,
    mirrored,
    oracle,
    random_batches,
    train_step,
)
from tfscale._keras import keras
from tfscale.distribute import replica_groups as replica_groups_module
from tfscale.layers.sync_batch_norm import GroupedSyncBatchNormalization

GROUPS = [(4, 1), (4, 2), (4, 4), (4, None), (3, 3), (3, 1), (2, 2)]
SHAPES = [
    (-1, (5,)),
    ([1], (5,)),
    (1, (3, 4)),
    (-1, (3, 4)),
    (2, (3, 4)),
    (-1, (2, 3, 4)),
    (1, (3, 2, 4)),
    ([-3], (3, 2, 4)),
    (2, (3, 4, 2)),
    (-1, (2, 2, 2, 3)),
    (1, (3, 2, 2, 2)),
]


@pytest.mark.parametrize("sizes", [(5, 5, 5, 5), (3, 1, 4, 2), (2, 0, 0, 3)], ids=str)
@pytest.mark.parametrize("replicas, size", GROUPS)
def test_equals_batch_norm_on_the_groups_joined_batch(replicas, size, sizes):
    xs, dys = random_batches(sizes[:replicas], (3, 4))
    gamma, beta = np.linspace(0.5, 2, 4), np.linspace(-1, 1, 4)
    strategy = mirrored(replicas)
    layer = build(strategy, size, xs[0].shape, gamma=gamma, beta=beta)
    before = [v.numpy() for v in strategy.experimental_local_results(layer.moving_variance)]
    results = train_step(strategy, layer, xs, dys)
    expected = oracle(xs, dys, gamma, beta, size or replicas)
    for right, old in zip(expected, before, strict=True):
        if right["count"] == 0:
            right["variance"] = old  # an empty group keeps what it has
    check(results, expected)


@pytest.mark.parametrize("axis, shape", SHAPES, ids=str)
@pytest.mark.slow
def test_any_axis_and_rank(axis, shape):
    xs, dys = random_batches((2, 3, 1, 2), shape)
    channels = shape[np.arange(len(shape) + 1)[axis if isinstance(axis, int) else axis[0]] - 1]
    gamma, beta = np.linspace(0.5, 2, channels), np.linspace(-1, 1, channels)
    strategy = mirrored(4)
    layer = build(strategy, 2, xs[0].shape, gamma=gamma, beta=beta, axis=axis)
    position = axis if isinstance(axis, int) else axis[0]
    check(
        train_step(strategy, layer, xs, dys),
        oracle(xs, dys, gamma, beta, 2, axis=position),
    )


@pytest.mark.parametrize(
    "size, means, merged",
    [(1, [0, 1, 2, 3], 1.5), (2, [0.5, 0.5, 2.5, 2.5], 1.5), (4, [1.5] * 4, 1.5)],
)
def test_group_means_and_what_is_saved_of_them(size, means, merged):
    xs = [np.full((2, 3), i, np.float32) + [[-1], [1]] for i in range(4)]
    xs = [x.astype(np.float32) for x in xs]
    strategy = mirrored(4)
    layer = build(strategy, size, xs[0].shape)
    for result, mean in zip(train_step(strategy, layer, xs, xs), means, strict=True):
        np.testing.assert_allclose(result["mean"], [mean] * 3)
    np.testing.assert_allclose(layer.moving_mean.numpy(), [merged] * 3)


@pytest.mark.parametrize("in_function", [True, False], ids=["tf.function", "eager"])
def test_eager_steps_equal_traced_ones(in_function):
    xs, dys = random_batches((2, 3, 0, 2), (4,))
    strategy = mirrored(4)
    layer = build(strategy, 2, xs[0].shape)
    results = train_step(strategy, layer, xs, dys, dynamic=False, in_function=in_function)
    check(results, oracle(xs, dys, 1.0, 0.0, 2))


def test_large_mean_and_small_spread():
    xs, dys = random_batches((64, 50, 1, 64), (3, 4), loc=1000.0, spread=0.01)
    xs = [x - np.float32(0.3 * i) for i, x in enumerate(xs)]
    strategy = mirrored(4)
    layer = build(strategy, 4, xs[0].shape)
    expected = oracle(xs, dys, 1.0, 0.0, 4)
    assert 1e-4 < expected[0]["variance"].max() < 2e-4  # rounding the inputs adds a little
    check(train_step(strategy, layer, xs, dys), expected, rtol=1e-5, atol=2e-6, scale=10)


def test_far_means_of_the_replicas():
    xs, dys = random_batches((8, 8), (4,), spread=0.01)
    xs[1] += 5000
    strategy = mirrored(2)
    layer = build(strategy, 2, xs[0].shape)
    check(train_step(strategy, layer, xs, dys), oracle(xs, dys, 1.0, 0.0, 2), rtol=1e-5)


def test_a_step_without_examples_changes_nothing():
    xs, dys = random_batches((0, 0), (3, 4))
    strategy = mirrored(2)
    layer = build(strategy, 2, xs[0].shape, momentum=0.9)
    for value in (0.25, 7.0):
        layer.moving_mean.assign(tf.fill([4], value))
        for result in train_step(strategy, layer, xs, dys):
            np.testing.assert_array_equal(result["mean"], np.full(4, value, np.float32))
            np.testing.assert_array_equal(result["variance"], np.ones(4))
            assert result["y"].shape == result["dx"].shape == (0, 3, 4)
            for name in ("dgamma", "dbeta"):
                np.testing.assert_array_equal(result[name], np.zeros(4))


def test_moving_statistics_over_several_steps():
    strategy = mirrored(2)
    layer = build(strategy, 2, (None, 4), momentum=0.9)
    mean, variance = np.zeros(4), np.ones(4)
    for seed in range(5):
        xs, dys = random_batches((3, 4), (4,), seed=seed)
        results = train_step(strategy, layer, xs, dys)
        right = oracle(xs, dys, 1.0, 0.0, 2)[0]
        mean = 0.9 * mean + 0.1 * right["mean"]
        variance = 0.9 * variance + 0.1 * right["variance"]
    for result in results:
        np.testing.assert_allclose(result["mean"], mean, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(result["variance"], variance, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("center, scale", [(False, True), (True, False), (False, False)])
def test_without_gamma_or_beta(center, scale):
    xs, dys = random_batches((2, 3), (4,))
    strategy = mirrored(2)
    layer = build(strategy, 2, xs[0].shape, center=center, scale=scale)
    assert len(layer.trainable_weights) == center + scale
    check(train_step(strategy, layer, xs, dys), oracle(xs, dys, 1.0, 0.0, 2))


@pytest.mark.parametrize("value", [300.0, 1000.0])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float16", "bfloat16"])
def test_half_precision_keeps_its_statistics_in_float32(policy, value):
    half = tf.float16 if "bf" not in policy else tf.bfloat16
    xs, dys = random_batches((4, 4), (112, 112, 2), loc=value, spread=value / 20)
    xs = [tf.cast(x, half).numpy() for x in xs]
    dys = [tf.cast(dy, half).numpy() for dy in dys]
    strategy = mirrored(2)
    layer = build(strategy, 2, xs[0].shape, dtype=policy)
    assert {w.dtype for w in layer.weights} == {tf.float32}
    results = train_step(strategy, layer, xs, dys)
    expected = oracle(xs, dys, 1.0, 0.0, 2)
    assert results[0]["y"].dtype == results[0]["dx"].dtype == half.as_numpy_dtype
    # One rounding of a result: half a unit of 11 or 8 bits. dx is small (1 / spread); a float16
    # below 6e-5 loses bits.
    rounding = 2.0**-11 if half == tf.float16 else 2.0**-8
    for result, right in zip(results, expected, strict=True):
        for name in ("y", "dx"):
            assert np.isfinite(np.float32(result[name])).all()
            np.testing.assert_allclose(
                np.float64(result[name]), right[name], rtol=rounding * 1.01, atol=4e-6
            )
        for name in ("mean", "variance", "dgamma", "dbeta"):
            assert result[name].dtype == np.float32
            # Sums of up to 1e5 products; dgamma and dbeta cancel: their terms add up to 1e5.
            np.testing.assert_allclose(result[name], right[name], rtol=2e-6, atol=2e-2)


def test_float64_policy_keeps_its_statistics_in_float64():
    xs, dys = random_batches((3, 2), (4,), dtype=np.float64, loc=1e6, spread=1e-3)
    strategy = mirrored(2)
    layer = build(strategy, 2, xs[0].shape, dtype="float64")
    check(train_step(strategy, layer, xs, dys), oracle(xs, dys, 1.0, 0.0, 2), 1e-7, 1e-7)


def masks_of(sizes, steps, seed=3):
    rng = np.random.default_rng(seed)
    return [rng.random((n, steps)) < 0.6 for n in sizes]


def test_masked_positions_do_not_count():
    sizes = (3, 2, 0, 4)
    xs, dys = random_batches(sizes, (5, 4))
    masks = masks_of(sizes, 5)
    strategy = mirrored(4)
    layer = build(strategy, 2, xs[0].shape)
    check(train_step(strategy, layer, xs, dys, masks), oracle(xs, dys, 1.0, 0.0, 2, masks=masks))


def test_what_lies_under_the_mask_does_not_reach_the_statistics():
    xs, dys = random_batches((3, 2), (5, 4))
    masks = masks_of((3, 2), 5)
    spoilt = [np.where(m[..., None], x, np.nan) for x, m in zip(xs, masks, strict=True)]
    dys = [dy * m[..., None] for dy, m in zip(dys, masks, strict=True)]
    strategy = mirrored(2)
    layer = build(strategy, 2, xs[0].shape)
    expected = oracle(xs, dys, 1.0, 0.0, 2, masks=masks)
    results = train_step(strategy, layer, spoilt, dys, masks)
    for result, right in zip(results, expected, strict=True):
        for name in ("mean", "variance"):
            np.testing.assert_allclose(result[name], right[name], rtol=2e-6, atol=2e-6)


def test_a_mask_over_images_covers_the_leading_dimensions():
    layer = GroupedSyncBatchNormalization(momentum=0.0)
    x = np.random.default_rng(0).normal(size=(4, 2, 3, 5)).astype(np.float32)
    mask = np.array([True, False, True, True])
    layer(x, training=True, mask=tf.constant(mask))
    np.testing.assert_allclose(layer.moving_mean, x[mask].mean((0, 1, 2)), atol=1e-6)


def test_keras_hands_on_its_masks():
    x = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
    x[0, 1:] = x[2, 2:] = 0
    layer = GroupedSyncBatchNormalization(momentum=0.0)
    y = keras.Sequential([keras.layers.Masking(), layer])(x, training=True)
    kept = (x != 0).any(axis=-1)
    np.testing.assert_allclose(layer.moving_mean, x[kept].mean(axis=0), atol=1e-6)
    np.testing.assert_array_equal(y._keras_mask, kept)


def test_masks_that_fit_no_position_are_refused():
    x = tf.zeros([2, 3, 4])
    with pytest.raises(ValueError, match="channels on the last axis, but axis is 1"):
        GroupedSyncBatchNormalization(axis=1)(x, training=True, mask=tf.ones([2, 3], tf.bool))
    with pytest.raises(ValueError, match="at most 2 of"):
        GroupedSyncBatchNormalization()(x, training=True, mask=tf.ones([2, 3, 4], tf.bool))


# --- messages


def test_one_message_per_pass_and_layer(monkeypatch):
    sent = []
    stock = replica_groups_module._MergedGroups._by_group

    def counted(self, rows, exchange):
        sent.append((exchange.__name__, self.group_size))
        return stock(self, rows, exchange)

    monkeypatch.setattr(replica_groups_module._MergedGroups, "_by_group", counted)
    strategy = mirrored(4)
    with strategy.scope():
        layers = [GroupedSyncBatchNormalization(size) for size in (2, 4, 1, 2)]
        for layer in layers:
            layer.build([None, 3])

    @tf.function
    def step():
        def replica_fn():
            x = tf.ones([2, 3])
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = x
                for layer in layers:
                    y = layer(y, training=True)
            return tape.gradient(y, x)

        return strategy.run(replica_fn)

    step.get_concrete_function()
    gathers, sums = "_gather_rows", "_sum_rows"
    assert sent == [(gathers, 2), (gathers, 4), (gathers, 2), (sums, 2), (sums, 4), (sums, 2)]


# --- training, inference, contexts


def test_without_a_strategy_it_is_plain_batch_norm():
    x = np.random.default_rng(0).normal(2, 3, (6, 5, 4)).astype(np.float32)
    ours = GroupedSyncBatchNormalization(group_size=4, momentum=0.7)
    keras_layer = keras.layers.BatchNormalization(momentum=0.7)  # rank 3: not the fused kernel
    results = []
    for layer in (ours, keras_layer):
        for training in (True, 1, np.bool_(True), tf.constant(True)):
            with tf.GradientTape() as tape:
                tape.watch(v := tf.constant(x))
                y = layer(v, training=training)
                loss = tf.reduce_sum(y**3)
        gradients = tape.gradient(loss, [v, layer.gamma, layer.beta])
        results.append([y, layer(x), layer(x, training=0), *gradients, *layer.get_weights()])
    for mine, right in zip(*results, strict=True):
        np.testing.assert_allclose(mine, right, rtol=2e-5, atol=2e-5)


def test_compiled_by_xla():
    xs, dys = random_batches((8,), (3, 4))
    layer = GroupedSyncBatchNormalization(momentum=0.0, epsilon=EPSILON)
    layer.build([None, 3, 4])

    @tf.function(jit_compile=True)
    def step(x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
        return y, tape.gradient(y, x, output_gradients=dy)

    y, dx = step(tf.constant(xs[0]), tf.constant(dys[0]))
    statistics = {"mean": layer.moving_mean.numpy(), "variance": layer.moving_variance.numpy()}
    check([{"y": y, "dx": dx, **statistics}], oracle(xs, dys, 1.0, 0.0, 1))


def test_synchronized_keras_agrees_on_even_batches():
    # Keras's own synchronisation puts the population's variance into the moving values, as we do.
    xs, dys = random_batches((4, 4), (4,))
    strategy = mirrored(2)
    with strategy.scope():
        theirs = keras.layers.BatchNormalization(momentum=0.0, epsilon=EPSILON, synchronized=True)
        theirs.build([None, 4])
    ours = build(strategy, None, xs[0].shape)
    right = train_step(strategy, theirs, xs, dys)
    for mine, other in zip(train_step(strategy, ours, xs, dys), right, strict=True):
        for name in ("y", "mean", "variance", "dbeta", "dgamma", "dx"):
            np.testing.assert_allclose(mine[name], other[name], rtol=1e-5, atol=1e-5)


def test_a_replica_alone_under_a_strategy():
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    xs, dys = random_batches((4,), (4,))
    layer = build(strategy, None, xs[0].shape)
    check(train_step(strategy, layer, xs, dys), oracle(xs, dys, 1.0, 0.0, 1))
    with pytest.raises(ValueError, match="group_size=2 does not divide 1 replica"):
        build(strategy, 2, xs[0].shape)


def test_training_outside_a_replica_is_refused():
    strategy = mirrored(2)
    layer = build(strategy, None, (None, 4))
    x = np.ones((3, 4), np.float32)
    with strategy.scope():
        for call in (layer, tf.function(layer)):
            with pytest.raises(RuntimeError, match="outside a replica, under a strategy of 2"):
                call(x, training=True)
            np.testing.assert_allclose(call(x), x / np.sqrt(1 + EPSILON), rtol=1e-6)


def test_a_layer_built_outside_the_scope_is_refused():
    strategy = mirrored(2)
    layer = GroupedSyncBatchNormalization()
    layer.build([None, 4])
    with pytest.raises(ValueError, match="was built outside strategy.scope()"):
        strategy.run(lambda: layer(tf.ones([2, 4]), training=True))


def test_a_tensor_for_training_is_refused():
    layer = GroupedSyncBatchNormalization()
    step = tf.function(lambda training: layer(tf.ones([2, 4]), training=training))
    with pytest.raises(TypeError, match="pass a Python bool"):
        step(tf.constant(True))
    with pytest.raises(TypeError, match="pass a Python bool"):
        layer(tf.ones([2, 4]), training=tf.Variable(True))


def test_second_derivatives_are_refused():
    layer = GroupedSyncBatchNormalization()
    x = tf.random.normal([4, 3])

    def second(training):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(layer(x, training=training) ** 2)
            penalty = tf.reduce_sum(inner.gradient(y, x) ** 2)
        return outer.gradient(penalty, x)

    for function in (second, tf.function(second)):
        with pytest.raises(NotImplementedError, match="no second derivative"):
            function(True)
        assert function(False).shape == x.shape


def test_frozen_layer_infers_and_keeps_its_statistics():
    strategy = mirrored(2)
    layer = build(strategy, None, (None, 4), momentum=0.5)
    layer.trainable = False
    xs, dys = random_batches((3, 2), (4,), loc=5)
    for result, x, dy in zip(train_step(strategy, layer, xs, dys), xs, dys, strict=True):
        np.testing.assert_allclose(result["y"], x / np.sqrt(1 + EPSILON), rtol=1e-6)
        np.testing.assert_allclose(result["dx"], dy / np.sqrt(1 + EPSILON), rtol=1e-6)
        np.testing.assert_array_equal(result["mean"], np.zeros(4))
    assert layer.trainable_weights == []


# --- arguments


@pytest.mark.parametrize(
    "error, message, kwargs",
    [
        (ValueError, "group_size=0: expected 1", dict(group_size=0)),
        (TypeError, "not a list of replicas", dict(group_size=[0, 1])),
        (TypeError, "group_size=True", dict(group_size=True)),
        (TypeError, "group_size=2.0", dict(group_size=2.0)),
        (ValueError, r"axis=\[1, 2\]: expected one axis", dict(axis=[1, 2])),
        (TypeError, "Expected an int or a list", dict(axis="channels")),
        (ValueError, "momentum=1.5: expected", dict(momentum=1.5)),
        (ValueError, "epsilon=0.0: expected", dict(epsilon=0.0)),
        (TypeError, "has no synchronized=True", dict(synchronized=True)),
        (TypeError, "has no fused=True", dict(fused=True)),
        (TypeError, "has no renorm=True", dict(renorm=True)),
    ],
)
def test_bad_arguments(error, message, kwargs):
    with pytest.raises(error, match=message):
        GroupedSyncBatchNormalization(**kwargs)


@pytest.mark.parametrize("size", [3, 8])
def test_a_group_size_that_does_not_divide_shows_the_arithmetic(size):
    with mirrored(4).scope():
        with pytest.raises(ValueError, match=f"group_size={size} does not divide 4 replicas"):
            GroupedSyncBatchNormalization(size)


def test_unknown_channels_are_refused():
    with pytest.raises(ValueError, match="undefined `axis` dimension"):
        GroupedSyncBatchNormalization().build([None, None])
