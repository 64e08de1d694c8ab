"""Batch norm of groups of replicas, on one device: each chunk of the batch by itself."""

import tensorflow as tf

from tfscale import keras


@keras.saving.register_keras_serializable("tfscale.experiments")
class ChunkedBatchNormalization(keras.layers.Layer):
    """Batch normalisation of each of `chunks` equal parts of the batch by itself.

    It is what `GroupedSyncBatchNormalization` of groups of g replicas computes over R replicas,
    with ``chunks = R / g``, on the joined batch of all replicas in their order. Afterwards each
    group has moving statistics of its own, which `merge_moving_statistics` makes one by their
    mean; a moving average is linear, so that is the moving average of the chunks' mean, kept
    here.

    Args:
        chunks: `int`; it has to divide the batch.
        momentum: `float`. Defaults to 0.9.
        epsilon: `float`. Defaults to 1e-5.
        gamma_initializer: Keras initializer. Defaults to ones.
        **kwargs: `name` and what else every Keras layer takes.
    """

    def __init__(self, chunks, momentum=0.9, epsilon=1e-5, gamma_initializer="ones", **kwargs):
        super().__init__(**kwargs)
        self.chunks, self.momentum, self.epsilon = chunks, momentum, epsilon
        self.gamma_initializer = keras.initializers.get(gamma_initializer)

    def build(self, input_shape):
        def add(name, initializer, trainable):
            return self.add_weight(
                name, [input_shape[-1]], initializer=initializer, trainable=trainable
            )

        self.gamma = add("gamma", self.gamma_initializer, True)
        self.beta = add("beta", "zeros", True)
        self.moving_mean = add("moving_mean", "zeros", False)
        self.moving_variance = add("moving_variance", "ones", False)
        super().build(input_shape)

    def call(self, inputs, training=None):
        if not training:
            return tf.nn.batch_normalization(
                inputs,
                self.moving_mean,
                self.moving_variance,
                self.beta,
                self.gamma,
                self.epsilon,
            )
        shape = tf.shape(inputs)
        parts = tf.reshape(inputs, [self.chunks, -1, shape[-1]])
        parts.set_shape([self.chunks, None, inputs.shape[-1]])
        mean, variance = tf.nn.moments(parts, 1, keepdims=True)
        for moving, now in ((self.moving_mean, mean), (self.moving_variance, variance)):
            now = tf.reduce_mean(now, (0, 1))
            moving.assign(moving - (moving - now) * (1.0 - self.momentum))
        outputs = tf.nn.batch_normalization(
            parts, mean, variance, self.beta, self.gamma, self.epsilon
        )
        outputs = tf.reshape(outputs, shape)
        outputs.set_shape(inputs.shape)
        return outputs

    def get_config(self):
        return super().get_config() | {
            "chunks": self.chunks,
            "momentum": self.momentum,
            "epsilon": self.epsilon,
            "gamma_initializer": keras.initializers.serialize(self.gamma_initializer),
        }
