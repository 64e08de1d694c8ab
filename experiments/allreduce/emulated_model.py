"""A Keras model with the parameters of a real one, whose layers take a given time.

It is trained by ``fit`` as any other: what follows the backward pass (all-reduce, optimizer) is
real. Only the layers' computation is emulated, by waiting without using the CPU, since the cores
of one machine cannot stand in for the accelerators of many.
"""

import time

import numpy as np
import tensorflow as tf

from tfscale import keras

WIDTH = 8


class Recorder:
    """When each layer's backward pass began and ended, on every local device.

    Attributes:
        spans: list of ``(seconds since 1970, seconds since 1970)``.
        on: `bool`, whether spans are kept.
    """

    def __init__(self):
        self.spans, self.on = [], False


def emulated_model(shapes, compute_seconds, forward_share=0.0, compute="sleep", recorder=None):
    """Returns a `keras.Model` with one trainable variable for each of `shapes`.

    Tensors of one layer (a kernel and the vectors that follow it) become ready together; every
    layer takes the same time::

        forward   forward_share * compute_seconds / layers
        backward  (1 - forward_share) * compute_seconds / layers

    Args:
        shapes: shapes of the variables, in model order.
        compute_seconds: `float`, one step without its exchange.
        forward_share: `float` in [0, 1). Defaults to 0.
        compute: ``"sleep"`` (default), or ``"cpu"`` to keep a core busy for that long.
        recorder: `Recorder`, or None.
    """
    layers = _layers(shapes)
    forward = forward_share * compute_seconds / len(layers)
    backward = (1 - forward_share) * compute_seconds / len(layers)
    inputs = x = keras.layers.Input((WIDTH,))
    for number, tensors in enumerate(layers):
        work = _Work(forward, backward, compute, recorder)
        x = EmulatedLayer(tensors, work, name=f"layer_{number}")(x)
    return keras.Model(inputs, x)


class EmulatedLayer(keras.layers.Layer):
    """Hands its input through; its variables' gradients are there after the layer's time.

    The gradient of a variable is the variable times the mean of the incoming gradient: it costs
    one pass over memory, depends on the layers above as a real one does, and has no two equal
    values, which would make it easy for a compressor.
    """

    def __init__(self, shapes, work, **kwargs):
        super().__init__(**kwargs)
        self._shapes, self._work = shapes, work

    def build(self, input_shape):
        self.tensors = [
            self.add_weight(
                name=f"tensor_{number}",
                shape=shape,
                initializer=keras.initializers.RandomNormal(stddev=0.05, seed=number),
            )
            for number, shape in enumerate(self._shapes)
        ]
        super().build(input_shape)

    def call(self, x):
        work = self._work

        @tf.custom_gradient
        def layer(x, *tensors):
            def gradient(dy):
                dy = work.backward(dy)
                mean = tf.reduce_mean(tf.abs(dy))
                return dy, *(tensor * mean for tensor in tensors)

            return work.forward(x), gradient

        return layer(x, *(tf.convert_to_tensor(tensor) for tensor in self.tensors))


class _Work:
    """The emulated computation of one layer."""

    def __init__(self, forward_seconds, backward_seconds, compute, recorder):
        self._seconds = forward_seconds, backward_seconds
        self._wait = {"sleep": time.sleep, "cpu": _keep_busy}[compute]
        self._recorder = recorder

    def forward(self, x):
        return self._take(x, self._seconds[0], None)

    def backward(self, dy):
        return self._take(dy, self._seconds[1], self._recorder)

    def _take(self, x, seconds, recorder):
        if not seconds:
            return tf.identity(x)

        def wait(value):
            start = time.time()
            self._wait(seconds)
            if recorder is not None and recorder.on:
                recorder.spans.append((start, time.time()))
            return value

        # A stateful op would wait for those of the other devices.
        return tf.ensure_shape(tf.numpy_function(wait, [x], x.dtype, stateful=False), x.shape)


def _layers(shapes):
    """Groups tensors: a kernel, of rank 2 and up, and the vectors after it."""
    layers = []
    for shape in shapes:
        if len(shape) > 1 or not layers:
            layers.append([])
        layers[-1].append(shape)
    return layers


def _keep_busy(seconds):
    until = time.monotonic() + seconds
    x = np.ones((128, 128), np.float32)
    while time.monotonic() < until:
        x @ x
