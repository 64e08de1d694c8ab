"""LARS is saved, loaded and resumed without loss: config, slots and schedule."""

import numpy as np
import pytest
import tensorflow as tf

from tfscale import keras
from tfscale.optimizers.lars import LARS
from tfscale.optimizers.schedules import LinearWarmup, PiecewiseLinear

RANDOM = np.random.RandomState(0)
INPUTS = RANDOM.randn(24, 3).astype("float32")
TARGETS = RANDOM.randn(24, 1).astype("float32")


def build(schedule=True, **kwargs):
    keras.utils.set_random_seed(1)
    rate = 0.5
    if schedule:
        rate = LinearWarmup(keras.optimizers.schedules.PolynomialDecay(2.0, 20, 0.0), 4)
    model = keras.Sequential(
        [
            keras.layers.Dense(4, activation="relu", input_shape=(3,), name="hidden"),
            keras.layers.Dense(1, name="head"),
        ]
    )
    optimizer = LARS(
        rate,
        momentum=0.8,
        weight_decay=0.01,
        trust_coefficient=0.02,
        nesterov=True,
        epsilon=1e-6,
        trust_clip=(1e-5, 0.5),
        momentum_form="scaled",
        exclude_from_layer_adaptation=["norm_and_bias", "head"],
        exclude_from_weight_decay="bias",
        clipnorm=10.0,
        **kwargs,
    )
    model.compile(optimizer, "mse")
    return model


def train(model, first, last):
    # Not model.fit, which puts the moving average in the weights' place when it ends.
    for step in range(first, last):
        batch = slice(4 * step, 4 * step + 4)
        model.train_on_batch(INPUTS[batch], TARGETS[batch])
    return model


def assert_same(actual, expected):
    for model in (actual, expected):
        assert model.optimizer.iterations.numpy() == 6
    pairs = [
        *zip(actual.weights, expected.weights, strict=True),
        *zip(actual.optimizer.variables, expected.optimizer.variables, strict=True),
    ]
    for a, e in pairs:
        np.testing.assert_array_equal(a.numpy(), e.numpy())


def test_config_round_trip():
    for schedule in (True, False):
        config = build(schedule).optimizer.get_config()
        again = keras.optimizers.deserialize(keras.optimizers.serialize(build(schedule).optimizer))
        assert type(again) is LARS
        assert again.get_config() == config
    assert config["trust_clip"] == [1e-5, 0.5]
    assert config["exclude_from_layer_adaptation"] == ["norm_and_bias", "head"]
    assert config["exclude_from_weight_decay"] == ["bias"]
    assert config["weight_decay"] == 0.01
    defaults = LARS(1.0).get_config()
    assert defaults["exclude_from_weight_decay"] == ["norm_and_bias"]
    assert LARS.from_config(defaults).get_config() == defaults


@pytest.mark.parametrize("schedule", [True, False])
@pytest.mark.parametrize("extension", [".keras", ".h5"])
@pytest.mark.slow
def test_model_file(tmp_path, extension, schedule):
    path = str(tmp_path / f"model{extension}")
    train(build(schedule), 0, 3).save(path)
    loaded = keras.models.load_model(path)
    assert loaded.optimizer.get_config() == build(schedule).optimizer.get_config()
    assert_same(train(loaded, 3, 6), train(build(schedule), 0, 6))


def test_saved_model_keeps_the_config(tmp_path):
    # tf_keras does not restore any optimizer's variables from a SavedModel.
    train(build(), 0, 3).save(str(tmp_path / "model"))
    loaded = keras.models.load_model(str(tmp_path / "model"))
    assert loaded.optimizer.get_config() == build().optimizer.get_config()


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("kwargs", [{}, dict(use_ema=True)], ids=str)
@pytest.mark.slow
def test_checkpoint_before_and_after_the_slots_exist(tmp_path, built, kwargs):
    model = train(build(**kwargs), 0, 3)
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(tmp_path / "c"))
    resumed = build(**kwargs)
    if built:
        resumed.optimizer.build(resumed.trainable_variables)
    status = tf.train.Checkpoint(model=resumed, optimizer=resumed.optimizer).restore(path)
    train(resumed, 3, 6)
    status.assert_consumed()
    assert_same(resumed, train(build(**kwargs), 0, 6))


def cycled():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(1, input_shape=(3,), name="head")])
    cycle = PiecewiseLinear([0, 4, 8], [0.98, 0.9, 0.98])
    model.compile(LARS(PiecewiseLinear([0, 4, 8], [0.1, 1.0, 0.0]), cycle), "mse")
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.keras", "model.h5", "saved_model", "checkpoint"])
def test_a_momentum_schedule_survives(tmp_path, name):
    model = train(cycled(), 0, 3)
    if name == "checkpoint":
        path = tf.train.Checkpoint(model).save(str(tmp_path / name))
        loaded = cycled()
        tf.train.Checkpoint(loaded).restore(path)
    else:
        model.save(str(tmp_path / name))
        loaded = keras.models.load_model(str(tmp_path / name))
    assert type(loaded.optimizer.momentum) is PiecewiseLinear
    assert loaded.optimizer.get_config() == cycled().optimizer.get_config()
    if name != "saved_model":  # which restores no optimizer's variables
        assert_same(train(loaded, 3, 6), train(cycled(), 0, 6))


def test_a_rate_set_by_hand_survives(tmp_path):
    model = train(build(schedule=False), 0, 1)
    model.optimizer.learning_rate = 0.125
    model.save(str(tmp_path / "model.keras"))
    path = tf.train.Checkpoint(model).save(str(tmp_path / "c"))
    assert keras.models.load_model(str(tmp_path / "model.keras")).optimizer.lr.numpy() == 0.125
    resumed = build(schedule=False)
    tf.train.Checkpoint(resumed).restore(path)
    assert resumed.optimizer.learning_rate.numpy() == 0.125


@pytest.mark.slow
def test_loss_scaling_survives(tmp_path):
    def wrapped():
        model = build()
        scaled = keras.mixed_precision.LossScaleOptimizer(model.optimizer, initial_scale=16.0)
        model.compile(scaled, "mse")
        return model

    model = train(wrapped(), 0, 3)
    model.save(str(tmp_path / "model.keras"))
    path = tf.train.Checkpoint(model).save(str(tmp_path / "c"))
    loaded = keras.models.load_model(str(tmp_path / "model.keras"))
    resumed = wrapped()
    tf.train.Checkpoint(resumed).restore(path)
    whole = train(wrapped(), 0, 6)
    for each in (loaded, resumed):
        assert type(each.optimizer.inner_optimizer) is LARS
        assert_same(train(each, 3, 6), whole)


def test_a_schedule_of_the_users_own(tmp_path):
    @keras.saving.register_keras_serializable(package="tests")
    class Halving(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.5 ** tf.cast(step, tf.float32)

        def get_config(self):
            return {}

    model = keras.Sequential([keras.layers.Dense(1, input_shape=(3,))])
    model.compile(LARS(LinearWarmup(Halving(), 2)), "mse")
    model.save(str(tmp_path / "model.keras"))
    loaded = keras.models.load_model(str(tmp_path / "model.keras"))
    assert type(loaded.optimizer.get_config()["learning_rate"]) is dict
    assert loaded.optimizer.get_config() == model.optimizer.get_config()


def test_another_optimizer_takes_the_warmup_through_every_format(tmp_path):
    for name in ("model.keras", "model.h5", "saved_model"):
        model = keras.Sequential([keras.layers.Dense(1, input_shape=(3,))])
        model.compile(keras.optimizers.SGD(LinearWarmup(1.0, 4)), "mse")
        model.save(str(tmp_path / name))
        loaded = keras.models.load_model(str(tmp_path / name))
        assert loaded.optimizer.get_config() == model.optimizer.get_config()
