"""Augmentation after the crop, by layers of Keras 3: pure functions of a picture and its key.

Keras's layers draw from seeds that they keep in variables. Here those seeds are computed from the
picture's key instead, through `keras.Layer.stateless_call`: the same key gives the same pixels on
any thread or worker, nothing is updated, and the graph holds no variable.
"""

import concurrent.futures
import functools
import inspect
import random

import numpy as np
import tensorflow as tf

from tfscale.data import arguments

# Crops and flips draw with the key and a small number; this keeps the draws here apart from them.
SALT = 0x41756765
GREY = 128.0
# What has state in a graph, by the beginning of the operation's name.
STATEFUL = ("Assign", "Multinomial", "Parameterized", "Random", "StatefulUniform", "Truncated")


def rand_augment(num_ops=2, magnitude=9):
    """Returns a function that applies operations of RandAugment, chosen by a picture's key.

    Each of `num_ops` times one of 14 operations is drawn: identity, auto-contrast, equalise,
    rotate, solarise, colour, posterise, contrast, brightness, sharpness, shear x, shear y,
    translate x, translate y. With ``s = magnitude / 10`` their strengths are drawn uniformly:

    ```
    rotate      +-30 s degrees           shear         +-0.3 s
    translate   +-0.45 s of the side     solarise      above [255 (1 - s), 255]
    contrast    [1 - 0.9 s, 1 + 0.9 s]   brightness    +-0.4 s of the range
    sharpness   [1 - 0.9 s, 1 + 0.9 s]   colour        0 to 0.9 s of the way to grey
    posterise   8 - round(4 s) bits, not drawn
    ```

    What moves in from outside the picture is grey (128). Only the operations drawn are computed.
    At 224 pixels two of them cost 3 ms of CPU time a picture, twice what decoding it does: as
    much input needs three times the cores.

    Args:
        num_ops: `int`, at least 0. Defaults to 2.
        magnitude: number in [0, 10]; 0 leaves pictures as they are. Defaults to 9.

    Returns:
        A function (image uint8 [height, width, 3], key int64 scalar) -> uint8 [height, width, 3],
        for ``train_dataset(augment=...)``.

    Raises:
        TypeError, ValueError: if an argument is out of range, or Keras's backend is another than
            TensorFlow.

    Example:
        >>> augment = rand_augment(num_ops=2, magnitude=9)
        >>> augment(tf.zeros([8, 8, 3], tf.uint8), tf.constant(1, tf.int64)).shape
        TensorShape([8, 8, 3])

    Source: Cubuk et al., "RandAugment: practical automated data augmentation with a reduced
        search space", 2020. There strengths are fixed by the magnitude and only signs drawn.
        Their colour, contrast and brightness blend with a grey, a flat and a black picture;
        Keras's colour only removes, and its brightness adds.
    """
    num_ops = arguments.integer("num_ops", num_ops, 0)
    strength = arguments.number("magnitude", magnitude, "[0, 10]") / 10
    operations = ()
    if num_ops and strength:
        # In a thread of its own no strategy is in scope: in one, the variables that layers keep
        # their seeds in would be made by a collective of all workers, which could wait for ever.
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            operations = thread.submit(_operations, strength).result()

    @tf.autograph.experimental.do_not_convert
    def augment(image, key):
        if not operations:
            return image
        seeds = _draw(key, [num_ops, 2])
        chosen = tf.random.stateless_uniform(
            [num_ops], _seed(key, SALT + 1), maxval=len(operations), dtype=tf.int32
        )

        def step(number, image):
            branches = [functools.partial(f, image, seeds[number]) for f in operations]
            return number + 1, tf.switch_case(chosen[number], branches)

        # A loop, as tracing and starting 14 branches takes a second each time.
        _, image = tf.while_loop(lambda number, _: number < num_ops, step, (0, image))
        return image

    return augment


def keras_layers(*layers):
    """Returns a function that applies image layers of Keras 3 in turn, drawing by the key.

    Values are in [0, 255]: layers with a `value_range` need (0, 255), their default. The layers
    themselves are not changed. Results are rounded to uint8.

    Args:
        *layers: layers from `keras.layers` (Keras 3, not tf_keras), without weights, that keep
            the picture's shape, such as `RandomRotation(0.1)` or `RandAugment(factor=0.3)`.

    Returns:
        A function (image uint8 [height, width, 3], key int64 scalar) -> uint8 [height, width, 3],
        for ``train_dataset(augment=...)``.

    Raises:
        TypeError: if an argument is no layer of Keras 3, or has weights.
        ValueError: if a layer is not a function of its seeds (`AugMix` chooses its operations
            when it is traced, the same ones for all pictures), mixes pictures of a batch, changes
            the shape, or Keras's backend is another than TensorFlow.

    Example:
        >>> import keras
        >>> augment = keras_layers(keras.layers.RandomRotation(0.1))
        >>> augment(tf.zeros([8, 8, 3], tf.uint8), tf.constant(1, tf.int64)).shape
        TensorShape([8, 8, 3])
    """
    functions = [_pure(layer) for layer in layers]
    for layer, function in zip(layers, functions, strict=True):
        _check_pure(layer, function)

    @tf.autograph.experimental.do_not_convert
    def augment(image, key):
        if not functions:
            return image
        seeds = _draw(key, [len(functions), 2])
        images = tf.cast(image[None], tf.float32)
        for number, function in enumerate(functions):
            images = function(images, seeds[number])
        return _to_uint8(images, image.shape)

    return augment


def _operations(strength):
    """Returns RandAugment's 14 functions of (image uint8 [h, w, 3], seed [2])."""
    layers = _keras().layers
    plain = {"dtype": "float32", "data_format": "channels_last"}
    moved = {"fill_mode": "constant", "fill_value": GREY, **plain}
    bits = 8 - round(4 * strength)
    half = 0.45 * strength  # Keras counts sharpness from 0 to 1, with 0.5 the picture itself
    by_layers = (
        layers.AutoContrast(**plain),
        layers.Equalization(**plain),
        layers.RandomRotation(30 / 360 * strength, **moved),
        layers.RandomColorDegeneration((0.0, 0.9 * strength), **plain),
        layers.RandomPosterization((bits, bits), **plain),
        layers.RandomContrast((0.9 * strength, 0.9 * strength), **plain),
        layers.RandomBrightness(0.4 * strength, **plain),
        layers.RandomSharpness((0.5 - half, 0.5 + half), **plain),
        layers.RandomShear((0.0, 0.3 * strength), 0.0, **moved),
        layers.RandomShear(0.0, (0.0, 0.3 * strength), **moved),
        layers.RandomTranslation(0.0, 0.45 * strength, **moved),
        layers.RandomTranslation(0.45 * strength, 0.0, **moved),
    )

    def on_one_picture(layer):
        function = _pure(layer)
        return lambda image, seed: _to_uint8(
            function(tf.cast(image[None], tf.float32), seed), image.shape
        )

    def solarise(image, seed):
        # Keras's Solarization takes the two ends of its threshold's range in different units.
        low = round(255 * (1 - strength))
        threshold = tf.random.stateless_uniform([], seed, low, 256, tf.int32)
        return tf.where(image < tf.cast(threshold, tf.uint8), image, 255 - image)

    def identity(image, seed):
        return image

    return (identity, solarise, *map(on_one_picture, by_layers))


def _pure(layer):
    """Returns `layer` as a function (images [1, h, w, 3], seed int32 [2]) -> images."""
    keras = _keras()
    name = _name(layer)
    if not isinstance(layer, keras.layers.Layer):
        raise TypeError(
            f"{name} is no layer of Keras 3; wanted one of `import keras; keras.layers`, "
            "such as keras.layers.RandomRotation(0.1)"
        )
    if isinstance(layer, keras.layers.MixUp | keras.layers.CutMix):
        raise ValueError(f"{name} mixes the pictures of a batch; this works on one at a time")
    if not layer.built:
        with tf.device("CPU:0"):
            layer.build((1, None, None, 3))
    if layer.weights:
        raise TypeError(f"{name} has weights; wanted a layer whose only state is its seeds")
    training = "training" in inspect.signature(layer.call).parameters
    count = len(layer.non_trainable_variables)

    def function(images, seed):
        states = tf.cast(_draw(seed, [count, 2]), tf.int64)
        outputs, _ = layer.stateless_call(
            [],
            tf.unstack(states, count),
            tf.cast(images, layer.compute_dtype),
            **({"training": True} if training else {}),
        )
        if not images.shape.is_compatible_with(outputs.shape):
            raise ValueError(
                f"{name} makes {outputs.shape} of {images.shape}; wanted a layer that keeps the "
                "shape: crop and resize by train_dataset's own arguments"
            )
        return tf.cast(outputs, tf.float32)

    return function


def _check_pure(layer, function):
    """Raises if a layer's function draws other than by its seed, which a trace of it shows."""
    name = _name(layer)
    before = random.getstate(), np.random.get_state()[1:3]
    with tf.Graph().as_default() as graph:
        function(tf.zeros([1, 16, 16, 3]), tf.zeros([2], tf.int32))
    after = random.getstate(), np.random.get_state()[1:3]
    traced = graph.as_graph_def()
    nodes = [*traced.node, *(node for f in traced.library.function for node in f.node_def)]
    stateful = sorted({node.op for node in nodes if node.op.startswith(STATEFUL)})
    if stateful:
        raise ValueError(
            f"{name} has state besides its seeds ({', '.join(stateful)}): a picture would depend "
            "on those before it. Draw with keras.random and a keras.random.SeedGenerator kept "
            "in the layer."
        )
    if before[0] != after[0] or not all(map(np.array_equal, before[1], after[1])):
        raise ValueError(
            f"{name} draws random numbers when it is traced, not for each picture: all pictures "
            "would get the same ones"
        )


def _name(layer):
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


def _seed(key, number):
    key = tf.cast(key, tf.int64)
    return tf.stack([key, tf.constant(number, tf.int64)])


def _draw(key, shape):
    """Returns seeds, int32 in [0, 2^31 - 1), from a scalar key or a seed [2]."""
    seed = key if key.shape.rank == 1 else _seed(key, SALT)
    return tf.random.stateless_uniform(shape, seed, maxval=2**31 - 1, dtype=tf.int32)


def _to_uint8(images, shape):
    return tf.ensure_shape(tf.saturate_cast(tf.round(images[0]), tf.uint8), shape)


def _keras():
    """Returns Keras 3, if it computes with TensorFlow."""
    import keras  # its backend is chosen when it is first imported, and the import is slow

    backend = keras.config.backend()
    if backend != "tensorflow":
        raise ValueError(
            f"Keras's backend is {backend!r}; augmentation runs in tf.data and needs TensorFlow's: "
            "set KERAS_BACKEND=tensorflow before Keras is imported"
        )
    return keras
