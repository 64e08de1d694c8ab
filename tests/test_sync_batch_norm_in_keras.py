"""GroupedSyncBatchNormalization in `fit`, and saved and loaded in every format."""

import contextlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.references_batch_norm import (
    mirrored,
    oracle,
)
from tfscale._keras import keras
from tfscale.layers.moving_statistics import merge_moving_statistics
from tfscale.layers.sync_batch_norm import GroupedSyncBatchNormalization


@pytest.mark.parametrize(
    "examples, mean, variance", [(19, 0.13651, 0.699), (17, 0.17743, 0.0)], ids=["2+1", "1+0"]
)
@pytest.mark.slow
def test_fit_with_an_uneven_last_batch(examples, mean, variance):
    x = np.random.RandomState(0).randn(32, 4).astype(np.float32)[:examples]
    strategy = mirrored(2)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), GroupedSyncBatchNormalization(momentum=0.0), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    model.fit(x, x[:, :1], batch_size=16, shuffle=False, verbose=0)
    layer = model.layers[0]
    for values, right in (
        (layer.moving_mean, x[16:].mean(axis=0)),
        (layer.moving_variance, x[16:].var(axis=0)),
    ):
        for value in strategy.experimental_local_results(values):
            np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer.moving_mean[0], mean, atol=1e-5)
    np.testing.assert_allclose(layer.moving_variance[0], variance, atol=1e-5)


def convolutional(sizes=(2, None), regularizer=None):
    model = [keras.Input((8, 8, 3))]
    for size in sizes:
        model += [
            keras.layers.Conv2D(4, 3, use_bias=False),
            GroupedSyncBatchNormalization(size, gamma_regularizer=regularizer),
            keras.layers.ReLU(),
        ]
    model = keras.Sequential([*model, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


@pytest.fixture(scope="module")
def trained():
    """A model with two group sizes after an epoch whose last batch leaves two replicas empty."""
    strategy = mirrored(4)
    x = np.random.default_rng(0).normal(size=(10, 8, 8, 3)).astype(np.float32)
    with strategy.scope():
        model = convolutional()
    model.fit(x, x[:, 0, 0, :2], batch_size=8, epochs=2, shuffle=False, verbose=0)
    return strategy, model, x


@pytest.mark.slow
def test_convolutions_over_an_empty_replica(trained):
    _, model, x = trained
    assert all(np.isfinite(w).all() for w in model.get_weights())
    assert np.isfinite(model.evaluate(x, x[:, 0, 0, :2], batch_size=8, verbose=0))
    assert model.predict(x, batch_size=8, verbose=0).shape == (10, 2)


@pytest.mark.slow
def test_steps_per_execution():
    x = np.random.default_rng(0).normal(size=(16, 8, 8, 3)).astype(np.float32)
    weights = []
    for steps in (1, 2):
        keras.utils.set_random_seed(1)
        with mirrored(2).scope():
            model = convolutional((None,))
            model.compile("sgd", "mse", steps_per_execution=steps)
        model.fit(x, x[:, 0, 0, :2], batch_size=4, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    for one, two in zip(*weights, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


def test_a_functional_model_may_fix_training():
    strategy = mirrored(2)
    with strategy.scope():
        inputs = keras.Input((4,))
        model = keras.Model(inputs, GroupedSyncBatchNormalization()(inputs, training=True))
    x = np.random.default_rng(0).normal(3, 1, (8, 4)).astype(np.float32)
    y = model.predict(x, batch_size=8, verbose=0)
    np.testing.assert_allclose(y, oracle([x], [x], 1.0, 0.0, 1)[0]["y"], atol=1e-5)


# --- configuration and saving


def test_config_round_trip():
    layer = GroupedSyncBatchNormalization(
        2, axis=[1], momentum=0.5, epsilon=1e-5, scale=False, gamma_regularizer="l2", name="norm"
    )
    config = layer.get_config()
    assert config["group_size"] == 2
    layer.build([None, 3, 4])
    again = GroupedSyncBatchNormalization.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert keras.layers.deserialize(keras.layers.serialize(layer)).group_size == 2
    assert GroupedSyncBatchNormalization.from_config(config).get_config() == config


def test_clone_keeps_the_group_size(trained):
    strategy, model, _ = trained
    with strategy.scope():
        assert group_sizes(keras.models.clone_model(model)) == [2, None]


def group_sizes(model):
    layers = model.layers
    return [m.group_size for m in layers if isinstance(m, GroupedSyncBatchNormalization)]


@pytest.mark.parametrize(
    "form, in_scope",
    [(".keras", True), (".h5", False), ("", True), ("", False)],
    ids=["keras", "h5", "SavedModel, in scope", "SavedModel"],
)
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
@pytest.mark.slow
def test_saved_models_keep_the_group_size(trained, tmp_path, form, in_scope):
    strategy, model, x = trained
    merge_moving_statistics(model)
    path = str(tmp_path / f"model{form}")
    with strategy.scope() if in_scope else contextlib.nullcontext():
        model.save(path)
    right = model(x)
    # Three replicas have no place for groups of two, but inference has no groups.
    place = mirrored(3)
    with place.scope():
        loaded = keras.models.load_model(path)
        loaded.compile("sgd", "mse")
    assert group_sizes(loaded) == [2, None]
    np.testing.assert_allclose(loaded(x), right, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loaded.predict(x, verbose=0), right, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="group_size=2 does not divide 3 replicas"):
        loaded.fit(x, x[:, 0, 0, :2], verbose=0)


def test_a_layer_revived_without_its_class_refuses_to_train(trained, tmp_path):
    _, model, x = trained
    model.save(str(tmp_path / "model"))
    revived = tf.saved_model.load(str(tmp_path / "model"))
    np.testing.assert_allclose(revived(x, training=False), model(x), rtol=1e-5, atol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="before load_model"):
        revived(x, training=True)


LOAD_WITHOUT_IMPORTING_TFSCALE = """
import sys
import numpy as np, tf_keras
folder = sys.argv[1]
x = np.ones((2, 8, 8, 3), np.float32)
revived = tf_keras.models.load_model(folder + "/model")
revived(x, training=False)
try:
    revived.fit(x, x[:, 0, 0, :2], verbose=0)
except Exception as error:
    assert "before load_model" in str(error), error
else:
    raise SystemExit("trained without groups")
for name in ("/model.h5", "/model.keras"):
    try:
        tf_keras.models.load_model(folder + name)
    except (TypeError, ValueError) as error:
        print(error)
    else:
        raise SystemExit(name + " loaded without its class")
assert not any(name.startswith("tfscale") for name in sys.modules)
import tfscale.layers.sync_batch_norm
for name in ("/model", "/model.h5", "/model.keras"):
    assert tf_keras.models.load_model(folder + name).layers[1].group_size == 2, name
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
def test_loading_in_a_process_that_did_not_import_the_layer(trained, tmp_path):
    _, model, _ = trained
    for name in ("model", "model.h5", "model.keras"):
        model.save(str(tmp_path / name))
    process = subprocess.run(
        [sys.executable, "-c", LOAD_WITHOUT_IMPORTING_TFSCALE, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-2000:]
