"""The moving average of the weights, put in their place and taken out again."""

import numpy as np
import pytest

from tests.references_batch_norm import mirrored
from tests.references_evaluation import CLASSES, FEATURES, batches, examples, softmax_model
from tfscale._keras import keras
from tfscale._keras.averages import averaged_weights
from tfscale.evaluation import evaluate
from tfscale.precision import scale_loss_optimizer


@pytest.mark.slow
@pytest.mark.parametrize(
    "replicas, policy",
    [(1, "mixed_float16"), (2, "mixed_bfloat16")],
)
def test_averaged_weights_are_evaluated_and_the_own_ones_put_back(replicas, policy):
    keras.mixed_precision.set_global_policy(policy)
    try:
        strategy = mirrored(replicas)
        with strategy.scope():
            keras.utils.set_random_seed(7)
            layers = [keras.Input([FEATURES]), keras.layers.Dense(CLASSES)]
            model = keras.Sequential([*layers, keras.layers.Softmax(dtype="float32")])
            optimizer = keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.75)
            model.compile(scale_loss_optimizer(optimizer), "sparse_categorical_crossentropy")
        x, y = examples(16)
        average = model.get_weights()
        for _ in range(3):
            model.train_on_batch(x, y)
            average = [
                0.75 * a + 0.25 * w for a, w in zip(average, model.get_weights(), strict=True)
            ]
        own = model.get_weights()
        found = evaluate(model, batches(x, y), averaged=True)
        for after, before in zip(model.get_weights(), own, strict=True):
            np.testing.assert_array_equal(after, before)
        assert found != evaluate(model, batches(x, y))
        with averaged_weights(model):
            inside = model.get_weights()
        for value, expected in zip(inside, average, strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
        model.set_weights(inside)
        assert found == evaluate(model, batches(x, y))
    finally:
        keras.mixed_precision.set_global_policy("float32")


def test_averages_that_are_not_there():
    model = softmax_model(mirrored(2), optimizer=keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="SGD, keeps no moving average .* use_ema=True"):
        evaluate(model, batches(*examples(4)), averaged=True)
    model = softmax_model(mirrored(1), optimizer=keras.optimizers.SGD(0.1, use_ema=True))
    with pytest.raises(ValueError, match="no moving average of the weights yet"):
        evaluate(model, batches(*examples(4)), averaged=True)
    model.layers[0].use_bias = True
    bias = model.layers[0].bias
    model.optimizer.build([v for v in model.trainable_variables if v is not bias])
    with pytest.raises(ValueError, match="no moving average of dense.*/bias"):
        evaluate(model, batches(*examples(4)), averaged=True)
