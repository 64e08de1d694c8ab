"""Small models, data and a NumPy oracle for the tests of exact evaluation."""

import numpy as np
import tensorflow as tf

from tfscale._keras import keras

FEATURES, CLASSES = 6, 7
EXACT = dict(rel=1e-6, abs=1e-6)


def examples(count, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, FEATURES)).astype(np.float32)
    return x, rng.integers(0, CLASSES, count)


def softmax_model(
    strategy,
    loss="sparse_categorical_crossentropy",
    activation="softmax",
    classes=CLASSES,
    **compiled,
):
    with strategy.scope():
        keras.utils.set_random_seed(3)
        dense = keras.layers.Dense(
            classes, activation, kernel_regularizer=keras.regularizers.L2(1.0)
        )
        model = keras.Sequential([keras.Input([FEATURES]), dense])
        model.compile(compiled.pop("optimizer", "sgd"), loss, **compiled)
    return model


def batches(x, y, size=8):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(size)


def by_replica(strategy, elements):
    """Each element is the batch of one replica, in turn."""
    parts = [tuple(np.asarray(part) for part in element) for element in elements]
    spec = tuple(tf.TensorSpec([None, *p.shape[1:]], p.dtype) for p in parts[0])
    dataset = tf.data.Dataset.from_generator(lambda: iter(parts), output_signature=spec)
    return strategy.distribute_datasets_from_function(lambda context: dataset)


def probabilities_of(model, x):
    kernel, bias = (w.astype(np.float64) for w in model.get_weights())
    logits = x.astype(np.float64) @ kernel + bias
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def oracle(probabilities, y, smoothing=0.0):
    classes = probabilities.shape[1]
    targets = np.eye(classes)[y] * (1 - smoothing) + smoothing / classes
    order = np.argsort(-probabilities, axis=1, kind="stable")
    rank = np.argmax(order == y[:, np.newaxis], axis=1)
    return {
        "loss": -(targets * np.log(probabilities)).sum(1).mean(),
        "top_1": (rank < 1).mean(),
        "top_5": (rank < 5).mean(),
        "examples": len(y),
    }


class Shift(keras.layers.Layer):
    """Has a variable of which each replica has its own value."""

    def build(self, shape):
        self.shift = self.add_weight(
            "shift",
            shape[1:],
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.MEAN,
        )

    def call(self, inputs):
        return inputs + self.shift


def model_with_statistics(strategy):
    with strategy.scope():
        keras.utils.set_random_seed(4)
        layers = [keras.Input([FEATURES]), Shift(), keras.layers.BatchNormalization()]
        model = keras.Sequential([*layers, keras.layers.Dense(CLASSES, "softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy")
    return model
