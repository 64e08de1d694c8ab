"""Precision: the policy by device, and loss scaling for float16 only and exactly once."""

import numpy as np
import pytest
import tensorflow as tf

from tfscale._keras import install, keras
from tfscale.precision import policy_for, scale_loss_optimizer, set_global_policy


@pytest.fixture(autouse=True)
def default_policy():
    yield
    keras.mixed_precision.set_global_policy("float32")


def mirrored(count):
    if count == 1:
        return tf.distribute.get_strategy()
    strategy = tf.distribute.MirroredStrategy(
        [f"/cpu:{i}" for i in range(count)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
    install(strategy)
    return strategy


def replicas_of(strategy, variable):
    return [np.asarray(v) for v in strategy.experimental_local_results(variable)]


@pytest.mark.parametrize(
    "kind, capability, policy",
    [
        ("TPU", None, "mixed_bfloat16"),
        ("GPU", (9, 0), "mixed_bfloat16"),
        ("GPU", (8, 0), "mixed_bfloat16"),
        ("GPU", (7, 5), "mixed_float16"),
        ("GPU", (7, 0), "mixed_float16"),
        ("GPU", (6, 1), "float32"),
        ("GPU", None, "float32"),
        ("CPU", None, "float32"),
    ],
)
def test_policy_for_a_device(kind, capability, policy):
    assert policy_for(kind, capability) == policy


def test_set_global_policy():
    assert set_global_policy("auto") == "float32"  # the tests run on CPUs
    assert set_global_policy("mixed_bfloat16") == "mixed_bfloat16"
    assert keras.mixed_precision.global_policy().name == "mixed_bfloat16"
    with pytest.raises(ValueError, match="'float16'.*mixed_float16"):
        set_global_policy("float16")


def test_wrapped_for_float16_only_and_once():
    optimizer = keras.optimizers.SGD(0.1)
    for policy in ("float32", "mixed_bfloat16"):
        set_global_policy(policy)
        assert scale_loss_optimizer(optimizer) is optimizer
    set_global_policy("mixed_float16")
    wrapped = scale_loss_optimizer(optimizer)
    assert wrapped.inner_optimizer is optimizer
    assert scale_loss_optimizer(wrapped) is wrapped
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile(wrapped, "mse")
    assert model.optimizer is wrapped
    legacy = scale_loss_optimizer(keras.optimizers.legacy.SGD(0.1))
    assert isinstance(legacy, keras.mixed_precision.LossScaleOptimizer)


def net():
    return keras.Sequential(
        [
            keras.Input([4]),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )


def train(policy, replicas, steps=10, loop="fit", **options):
    set_global_policy(policy)
    x = np.random.RandomState(0).randn(16 * steps, 4).astype("float32")
    y = np.tanh(x @ [1.0, 2, 3, 4]).astype("float32")[:, None]
    strategy = mirrored(replicas)
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = net()
        inner = keras.optimizers.SGD(0.05, momentum=0.9)
        optimizer = scale_loss_optimizer(inner, **options)
        model.compile(optimizer, "mse")
    if loop == "fit":
        model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
    else:
        batches = strategy.experimental_distribute_dataset(
            tf.data.Dataset.from_tensor_slices((x, y)).batch(16, drop_remainder=True)
        )

        @tf.function
        def step(iterator):
            strategy.run(lambda x, y: model.train_step((x, y)), args=next(iterator))

        iterator = iter(batches)
        for _ in range(steps):
            step(iterator)
    return model, optimizer


@pytest.mark.parametrize("replicas, loop", [(1, "fit"), (2, "fit"), (2, "own")])
@pytest.mark.slow
def test_float16_trains_as_float32_within_rounding(replicas, loop):
    model, optimizer = train("mixed_float16", replicas, loop=loop)
    plain, _ = train("float32", replicas, loop=loop)
    for got, want in zip(model.weights, plain.weights, strict=True):
        assert got.dtype == tf.float32
        # float16 has 11 significant bits: 5e-4 relative for each of 10 steps of rate 0.05.
        np.testing.assert_allclose(got.numpy(), want.numpy(), atol=5e-3, err_msg=got.name)
    assert optimizer.iterations.numpy() == 10
    assert float(optimizer.loss_scale) == 2**15
    assert float(tf.convert_to_tensor(optimizer.learning_rate)) == pytest.approx(0.05)
    assert optimizer.dynamic_counter.numpy() == 10


def overflowing(replicas, **options):
    """A model whose weight is 1, and a loss whose scaled gradient overflows for x = 200."""
    set_global_policy("mixed_float16")
    strategy = mirrored(replicas)
    with strategy.scope():
        inputs = keras.Input([1])
        outputs = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(inputs)
        model = keras.Model(inputs, outputs)
        optimizer = scale_loss_optimizer(
            keras.optimizers.SGD(0.01, momentum=0.9), initial_scale=128, **options
        )
        model.compile(optimizer, "mse")
    return strategy, model, optimizer


def test_overflow_on_one_replica_skips_the_step_on_all():
    strategy, model, optimizer = overflowing(2)
    x = np.array([[200.0], [1], [1], [1]], "float32")  # the first replica's half overflows
    y = np.zeros([4, 1], "float32")
    before = model.get_weights()
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    assert float(optimizer.loss_scale) == 64
    assert optimizer.iterations.numpy() == 0
    assert optimizer.skipped_in_a_row.numpy() == 1
    for variable, old in zip(model.weights, before, strict=True):
        for copy in replicas_of(strategy, variable):
            np.testing.assert_array_equal(copy, old)
    model.fit(x / 200, y, batch_size=4, shuffle=False, verbose=0)
    assert optimizer.iterations.numpy() == 1
    assert optimizer.skipped_in_a_row.numpy() == 0
    copies = [replicas_of(strategy, v) for v in model.weights]
    assert all((a == b).all() for a, b in copies)
    assert (copies[0][0] != before[0]).any()


def test_scale_has_a_floor_and_endless_skipping_an_error():
    _, model, optimizer = overflowing(2, max_skipped_steps=12)
    x, y = np.full([4, 1], np.inf, "float32"), np.zeros([4, 1], "float32")
    model.fit(x, y, batch_size=4, epochs=11, verbose=0)
    assert float(optimizer.loss_scale) == 1.0  # 128 / 2**11 would be below the floor
    with pytest.raises(tf.errors.InvalidArgumentError, match="last 12 steps overflowed float16"):
        model.fit(x, y, batch_size=4, epochs=1, verbose=0)


def test_recovers_and_grows():
    _, model, optimizer = overflowing(1, growth_steps=4)
    x, y = np.ones([4, 1], "float32"), np.zeros([4, 1], "float32")
    model.fit(x, y, batch_size=4, epochs=4, verbose=0)
    assert float(optimizer.loss_scale) == 256
    model.fit(x * np.inf, y, batch_size=4, epochs=3, verbose=0)
    assert float(optimizer.loss_scale) == 32
    model.fit(x, y, batch_size=4, epochs=5, verbose=0)
    assert float(optimizer.loss_scale) == 64
    assert optimizer.iterations.numpy() == 9


def test_scale_and_counters_are_checkpointed(tmp_path):
    _, model, optimizer = overflowing(2)
    x, y = np.full([4, 1], np.inf, "float32"), np.zeros([4, 1], "float32")
    model.fit(x, y, batch_size=4, epochs=2, verbose=0)
    model.fit(np.ones_like(x), y, batch_size=4, epochs=3, verbose=0)
    model.fit(x, y, batch_size=4, epochs=1, verbose=0)
    path = tf.train.Checkpoint(model=model).write(str(tmp_path / "c"))
    _, other, restored = overflowing(2)
    tf.train.Checkpoint(model=other).read(path).expect_partial()
    assert float(restored.loss_scale) == float(optimizer.loss_scale) == 16
    assert restored.skipped_in_a_row.numpy() == 1
    assert restored.dynamic_counter.numpy() == 0
    config = keras.optimizers.serialize(optimizer)
    again = keras.optimizers.deserialize(config)
    assert type(again) is type(optimizer)
    assert again.max_skipped_steps == 50
