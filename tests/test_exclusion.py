"""Which variables LARS leaves out, by default and by expressions over their names."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from tfscale import keras
from tfscale.optimizers.lars import LARS


@pytest.fixture(scope="module")
def resnet50_variables():
    """It has biases beside its norm layers."""
    model = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=10)
    return model.trainable_variables


def excluded(variables, **kwargs):
    names = LARS(1.0, **kwargs).excluded_variables(variables)
    return names["layer_adaptation"], names["weight_decay"]


@pytest.mark.slow
def test_norm_layers_and_biases_are_excluded_by_default(resnet50_variables):
    adaptation, decay = excluded(resnet50_variables)
    assert len(resnet50_variables) == 214
    assert len(adaptation) == 106 + 54
    assert adaptation == decay
    assert not any("kernel" in name for name in adaptation)
    assert excluded(resnet50_variables, exclude_from_layer_adaptation=None)[0] == adaptation


@pytest.mark.parametrize(
    "expressions,count",
    [
        ("bias", 54),
        (["bias"], 54),
        (("bn", "bias"), 160),
        ("bias$", 54),
        ("bias:0$", 54),
        (r"^conv1_conv/kernel$", 1),
        (["norm_and_bias", "predictions/kernel"], 161),
        ([], 0),
        (".*", 214),
    ],
)
def test_expressions_are_searched_for_in_the_names(resnet50_variables, expressions, count):
    adaptation, decay = excluded(resnet50_variables, exclude_from_layer_adaptation=expressions)
    assert len(adaptation) == count
    assert len(decay) == 160


def test_an_expression_that_matches_nothing_raises(resnet50_variables):
    words = (
        "exclude_from_weight_decay: 'batch_normalization' matches none of the 214 .*"
        "conv1_conv/kernel:0, .* and 206 more"
    )
    with pytest.raises(ValueError, match=words):
        excluded(resnet50_variables, exclude_from_weight_decay=["batch_normalization", "bn"])


def test_it_raises_at_the_first_step_of_fit():
    model = keras.Sequential([keras.layers.Dense(1, input_shape=(2,))])
    model.compile(LARS(1.0, exclude_from_layer_adaptation="batch_norm"), "mse")
    with pytest.raises(ValueError, match="'batch_norm' matches none of the 2 trainable variables"):
        model.fit(np.ones([2, 2]), np.ones([2, 1]), verbose=0)


def test_ranks_and_names_of_the_default():
    variables = [
        tf.Variable(np.ones(shape), name=name)
        for name, shape in [
            ("embeddings", [3, 2]),
            ("scale", [3]),
            ("temperature", []),
            ("layer_norm/gamma", [4, 5]),
            ("gru/bias", [2, 9]),
            ("debiased/kernel", [2, 2]),
            ("alphabeta", [2, 2]),
        ]
    ]
    names = ["scale:0", "temperature:0", "layer_norm/gamma:0", "gru/bias:0"]
    assert excluded(variables) == (names, names)


def test_known_after_the_first_step_without_naming_variables():
    optimizer = LARS(1.0)
    with pytest.raises(ValueError, match="pass model.trainable_variables"):
        optimizer.excluded_variables()
    optimizer.build([tf.Variable([[1.0]], name="kernel"), tf.Variable([1.0], name="bias")])
    assert optimizer.excluded_variables()["layer_adaptation"] == ["bias:0"]


def test_says_so_where_nothing_is_adapted(caplog):
    with caplog.at_level(logging.WARNING, "tfscale"):
        LARS(1.0).build([tf.Variable([3.0, 4.0], name="w")])
    assert "adapts the rate of none of its 1 variables" in caplog.text
    assert "(w:0). Pass [] to exclude none" in caplog.text


def test_keras_own_method_adds_to_the_list():
    kernel = tf.Variable([[1.0]], name="embedding")
    other = tf.Variable([[1.0]], name="dense/kernel")
    bias = tf.Variable([1.0], name="dense/bias")
    optimizer = LARS(1.0)
    optimizer.exclude_from_weight_decay(var_list=[kernel])
    again = LARS.from_config(optimizer.get_config())
    for each in (optimizer, again):
        each.build([kernel, other, bias])
        assert each.excluded_variables() == {
            "layer_adaptation": ["dense/bias:0"],
            "weight_decay": ["embedding:0", "dense/bias:0"],
        }
    with pytest.raises(ValueError, match="must come before the first step"):
        optimizer.exclude_from_weight_decay(var_names=["dense"])
    named = LARS(1.0)
    named.exclude_from_weight_decay(var_names=["dense"])
    names = ["dense/kernel:0", "dense/bias:0"]
    assert named.excluded_variables([kernel, other, bias])["weight_decay"] == names


def test_keras_own_method_refuses_a_name_that_others_share():
    variables = [tf.Variable([[1.0]]), tf.Variable([[1.0]])]
    optimizer = LARS(1.0)
    optimizer.exclude_from_weight_decay(var_list=variables[:1])
    with pytest.raises(ValueError, match="2 have that name. Give them different names"):
        optimizer.build(variables)
