"""ResNets against tf-models-official's and Keras's, layer by layer and as a whole."""

import doctest
import functools

import numpy as np
import pytest
import tensorflow as tf

from tfscale import keras
from tfscale.layers.sync_batch_norm import GroupedSyncBatchNormalization
from tfscale.models import blocks, resnet
from tfscale.models.resnet import IMAGENET_MEAN, IMAGENET_STD

RANDOM = np.random.RandomState(0)


@pytest.fixture(autouse=True)
def global_policy():
    yield
    keras.mixed_precision.set_global_policy("float32")


@pytest.fixture(scope="module")
def resnet50():
    return resnet.resnet50(input_shape=(64, 64, 3))


def pixels(*shape):
    return RANDOM.randint(0, 256, shape).astype("uint8")


def trainable_parameters(model):
    return sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)


# ---------------------------------------------------------------- ResNet-50
@pytest.mark.slow
def test_resnet50_has_the_known_number_of_parameters(resnet50):
    assert trainable_parameters(resnet50) == 25_557_032
    assert len(resnet50.trainable_variables) == 161
    # 53 norm layers with 26,560 channels: their moving means and variances.
    assert resnet50.count_params() == 25_557_032 + 2 * 26_560


def randomize(model):
    """Gives all weights values that a mistake in their use would show up with."""
    for variable in model.weights:
        low, high = (0.5, 1.5) if "variance" in variable.name else (-1.0, 1.0)
        scale = 1.0
        if "kernel" in variable.name:
            scale = np.sqrt(3.0 / np.prod(variable.shape[:-1]))
        elif "gamma" in variable.name:
            low, high = 0.5, 1.0
        variable.assign(scale * RANDOM.uniform(low, high, variable.shape))


@pytest.mark.slow
def test_resnet50_equals_tf_models_official(resnet50):
    backbones = pytest.importorskip("official.vision.modeling.backbones.resnet")
    theirs = backbones.ResNet(50, norm_momentum=0.9, norm_epsilon=1e-5)
    randomize(theirs)
    stem = {type(layer).__name__: layer for layer in reversed(theirs.layers)}

    def copy(name, layer):
        resnet50.get_layer(name).set_weights(layer.get_weights())

    copy("stem_conv", stem["Conv2D"])
    copy("stem_bn", stem["BatchNormalization"])
    blocks = [layer for layer in theirs.layers if type(layer).__name__ == "BottleneckBlock"]
    names = [
        f"stage{s}_block{b}" for s, depth in enumerate((3, 4, 6, 3), 1) for b in range(1, depth + 1)
    ]
    copied = 2
    for name, block in zip(names, blocks, strict=True):
        for number in (1, 2, 3):
            copy(f"{name}_conv{number}", getattr(block, f"_conv{number}"))
            copy(f"{name}_bn{number}", getattr(block, f"_norm{number}"))
            copied += 2
        if name.endswith("block1"):
            copy(f"{name}_shortcut_conv", block._shortcut)
            copy(f"{name}_shortcut_bn", block._norm0)
            copied += 2
    assert copied == 53 + 53

    images = pixels(2, 64, 64, 3)
    normalized = ((images - np.float32(IMAGENET_MEAN)) / np.float32(IMAGENET_STD)).astype("float32")
    features = tf.reduce_mean(theirs(normalized)["5"], [1, 2])
    pooled = keras.Model(resnet50.input, resnet50.get_layer("pool").output)
    assert np.std(features) > 0.01
    np.testing.assert_allclose(pooled(images), features, rtol=1e-4, atol=1e-4)
    kernel, bias = resnet50.get_layer("head").get_weights()
    expected = tf.nn.softmax(tf.matmul(features, kernel) + bias)
    np.testing.assert_allclose(resnet50(images), expected, rtol=1e-4, atol=1e-6)


def test_differs_from_keras_applications_by_biases_and_strides(resnet50):
    v1 = keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=1000)
    biases = sum(
        int(np.prod(v.shape))
        for v in v1.trainable_variables
        if "conv" in v.name and "bias" in v.name
    )
    assert trainable_parameters(v1) - biases == trainable_parameters(resnet50)
    assert resnet50.get_layer("stage2_block1_conv1").strides == (1, 1)
    assert resnet50.get_layer("stage2_block1_conv2").strides == (2, 2)
    assert v1.get_layer("conv3_block1_1_conv").strides == (2, 2)


# ---------------------------------------------------------------- the small ones
def test_small_network_equals_the_same_made_of_plain_functions():
    model = resnet.resnet_small((8, 8, 3), 4, depths=(1, 2), widths=(4, 6), activation=None)
    randomize(model)

    def conv(x, name, stride):
        kernel = model.get_layer(f"{name}").get_weights()[0]
        return tf.nn.conv2d(x, kernel, stride, "SAME")

    def norm(x, name):
        gamma, beta, mean, variance = model.get_layer(name).get_weights()
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-5)

    images = pixels(3, 8, 8, 3)
    x = (images - np.float32(IMAGENET_MEAN)) / np.float32(IMAGENET_STD)
    x = tf.nn.relu(norm(conv(x, "stem_conv", 1), "stem_bn"))
    for block, stride, projected in (
        ("stage1_block1", 1, False),
        ("stage2_block1", 2, True),
        ("stage2_block2", 1, False),
    ):
        shortcut = x
        if projected:
            shortcut = conv(x, f"{block}_shortcut_conv", stride)
            shortcut = norm(shortcut, f"{block}_shortcut_bn")
        x = tf.nn.relu(norm(conv(x, f"{block}_conv1", stride), f"{block}_bn1"))
        x = norm(conv(x, f"{block}_conv2", 1), f"{block}_bn2")
        x = tf.nn.relu(x + shortcut)
    kernel, bias = model.get_layer("head").get_weights()
    expected = tf.matmul(tf.reduce_mean(x, [1, 2]), kernel) + bias
    np.testing.assert_allclose(model(images), expected, rtol=1e-5, atol=1e-5)


def test_small_network_has_the_documented_size_and_layers():
    assert trainable_parameters(resnet.resnet_small()) == 78_042
    deep = resnet.resnet_small(depths=(3, 3, 3))
    convolutions = [
        layer
        for layer in deep.layers
        if isinstance(layer, keras.layers.Conv2D) and "shortcut" not in layer.name
    ]
    assert len(convolutions) + 1 == 6 * 3 + 2


def test_initial_values():
    keras.utils.set_random_seed(0)
    model = resnet.resnet_small(depths=(2, 2, 2), num_classes=1000)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            last = layer.name.endswith("block1_bn2") or layer.name.endswith("block2_bn2")
            assert (layer.gamma.numpy() == (0.0 if last else 1.0)).all(), layer.name
            assert (layer.momentum, layer.epsilon) == (0.9, 1e-5)
    kernel = model.get_layer("stage3_block2_conv2").get_weights()[0]
    assert np.std(kernel) == pytest.approx(np.sqrt(2 / (9 * 64)), rel=0.02)
    other = model.get_layer("stage3_block2_conv1").get_weights()[0]
    assert not np.array_equal(kernel, other)
    assert np.std(model.get_layer("head").get_weights()[0]) == pytest.approx(0.01, rel=0.02)


def test_blocks_start_as_their_shortcuts():
    model = resnet.resnet_small()
    images = pixels(2, 32, 32, 3)
    outputs = [model.get_layer(name).output for name in ("stem_bn_relu", "stage1_block1_relu")]
    before, after = keras.Model(model.input, outputs)(images, training=True)
    np.testing.assert_array_equal(before, after)


def test_trains_on_grey_images_repeated_to_three_channels():
    keras.utils.set_random_seed(0)
    # Stripes lie in class 0 and stand in class 1.
    labels = np.arange(32) % 2
    images = pixels(32, 16, 16, 1) // 4
    images[labels == 0, ::2] += 128
    images[labels == 1, :, ::2] += 128
    model = resnet.resnet_small((16, 16, 3), 2, depths=(1, 1), widths=(8, 16))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy")
    history = model.fit(images.repeat(3, -1), labels, batch_size=16, epochs=8, verbose=0)
    assert history.history["loss"][-1] < 0.1


# ---------------------------------------------------------------- precision
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_keeps_float32_at_both_ends(policy):
    keras.mixed_precision.set_global_policy(policy)
    model = resnet.resnet_small((16, 16, 3))
    assert model.output.dtype == tf.float32
    assert {layer.output.dtype for layer in model.layers if "conv" in layer.name} == {
        tf.as_dtype(policy.removeprefix("mixed_"))
    }
    assert {variable.dtype for variable in model.weights} == {tf.float32}
    images = pixels(4, 16, 16, 3)
    np.testing.assert_allclose(tf.reduce_sum(model(images), -1), np.ones(4), rtol=1e-6)
    # 254 and 255 are one number in bfloat16, but not after a normalisation in float32.
    normalize = keras.Model(model.input, model.get_layer("normalize").output)
    for dtype in ("uint8", "float32"):
        bright = normalize(np.full([1, 16, 16, 3], 254.0, dtype))[0, 0, 0]
        expected = (254.0 - np.float32(IMAGENET_MEAN)) / np.float32(IMAGENET_STD)
        np.testing.assert_allclose(bright, expected, rtol=1e-6)


def test_integers_and_floats_of_the_same_value_give_the_same_output():
    model = resnet.resnet_small((16, 16, 3))
    images = pixels(2, 16, 16, 3)
    np.testing.assert_array_equal(model(images), model(images.astype("float32")))
    # A mixture of two images is not an integer, and must not be rounded.
    assert not np.array_equal(model(images), model(images.astype("float32") + 0.5))


# ---------------------------------------------------------------- options
def test_injected_norm_layer():
    norm = functools.partial(GroupedSyncBatchNormalization, group_size=1, momentum=0.8)
    model = resnet.resnet_small((16, 16, 3), norm=norm)
    norms = [layer for layer in model.layers if "bn" in layer.name and "relu" not in layer.name]
    assert {type(layer) for layer in norms} == {GroupedSyncBatchNormalization}
    assert (model.get_layer("stage1_block1_bn2").gamma.numpy() == 0).all()
    assert len(norms) == 1 + 2 * 3 + 2


def test_norm_may_be_a_function_of_ones_own():
    names = []

    def norm(name, gamma_initializer):
        names.append((name, gamma_initializer))
        return keras.layers.LayerNormalization(name=name, gamma_initializer=gamma_initializer)

    resnet.resnet_small((16, 16, 3), depths=(1,), widths=(4,), norm=norm)
    assert names == [
        ("stem_bn", "ones"),
        ("stage1_block1_bn1", "ones"),
        ("stage1_block1_bn2", "zeros"),
    ]


def test_logits_and_kernel_regularizer():
    model = resnet.resnet_small(
        (16, 16, 3), activation=None, kernel_regularizer=keras.regularizers.L2(0.5)
    )
    images = pixels(2, 16, 16, 3)
    plain = keras.Sequential([model, keras.layers.Softmax(dtype="float32")])
    np.testing.assert_allclose(tf.reduce_sum(plain(images), -1), np.ones(2), rtol=1e-6)
    kernels = [variable for variable in model.trainable_variables if "kernel" in variable.name]
    expected = sum(0.5 * float(tf.reduce_sum(kernel**2)) for kernel in kernels)
    assert float(sum(model.losses)) == pytest.approx(expected, rel=1e-5)
    assert len(model.losses) == len(kernels)


# ---------------------------------------------------------------- width and blur
def test_width_multiplies_filters():
    narrow = resnet.resnet_small((16, 16, 3), width=0.5)
    plain = resnet.resnet_small((16, 16, 3), widths=(8, 16, 32))
    assert [tuple(v.shape) for v in narrow.weights] == [tuple(v.shape) for v in plain.weights]
    thin = resnet.resnet_small((16, 16, 3), widths=(16, 16, 16), width=0.001)
    assert thin.get_layer("stage3_block1_relu").output.shape[-1] == 1


def blurred(images):
    """[1, 2, 1] x [1, 2, 1] / 16 of [batch, height, width, channels], zeros around."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    height, width = images.shape[1:3]
    total = np.zeros_like(images, dtype="float64")
    for i, a in enumerate((1, 2, 1)):
        for j, b in enumerate((1, 2, 1)):
            total += a * b * padded[:, i : i + height, j : j + width]
    return total / 16


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shape", [(2, 7, 6, 3), (1, 1, 2, 4)])
def test_blur_is_the_binomial_filter(stride, shape):
    images = RANDOM.normal(size=shape).astype("float32")
    found = blocks.blur(tf.constant(images), stride, "blur")
    expected = blurred(images.astype("float64"))[:, ::stride, ::stride]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_blur_pool_comes_before_each_stride_but_the_stems():
    build = functools.partial(resnet.resnet, (1, 1), (4, 8), input_shape=(32, 32, 3), num_classes=2)
    plain, blurring = build(), build(blur_pool=True)
    assert [v.name for v in plain.weights] == [v.name for v in blurring.weights]
    assert {layer.name for layer in blurring.layers} - {layer.name for layer in plain.layers} == {
        f"{place}_blur_{part}"
        for place in ("stem_pool", "stage2_block1_conv2", "stage2_block1_shortcut_conv")
        for part in ("pad", "mean1", "mean2")
    }
    for name in ("stem_pool_blur_mean2", "stage2_block1_relu", "stage1_block1_relu"):
        assert (
            blurring.get_layer(name).output.shape[1:3]
            == plain.get_layer(name.removesuffix("_blur_mean2")).output.shape[1:3]
        )
    randomize(plain)
    blurring.set_weights(plain.get_weights())
    images = pixels(2, 32, 32, 3)
    taken = ["stem_bn_relu", "stem_pool_blur_mean2", "stage1_block1_relu"]
    stem, pooled, block = keras.Model(
        blurring.input, [blurring.get_layer(name).output for name in taken]
    )(images)
    maxima = tf.nn.max_pool2d(stem, 3, 1, "SAME").numpy().astype("float64")
    np.testing.assert_allclose(pooled, blurred(maxima)[:, ::2, ::2], rtol=1e-5, atol=1e-5)
    kernel = plain.get_layer("stage2_block1_shortcut_conv").get_weights()[0].astype("float64")
    expected = blurred(block.numpy().astype("float64"))[:, ::2, ::2] @ kernel[0, 0]
    shortcut = keras.Model(
        blurring.input, blurring.get_layer("stage2_block1_shortcut_conv").output
    )(images)
    np.testing.assert_allclose(shortcut, expected, rtol=1e-4, atol=1e-4)
    assert not np.allclose(plain(images), blurring(images), atol=1e-3)


def test_blur_pool_trains_in_half_precision_and_is_keras_alone():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    model = resnet.resnet_small((16, 16, 3), 2, depths=(1, 1), widths=(4, 8), blur_pool=True)
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(pixels(4, 16, 16, 3), np.array([0, 1, 0, 1]), verbose=0)
    modules = {type(layer).__module__.partition(".")[0] for layer in model.layers}
    assert modules == {keras.__name__}


@pytest.mark.parametrize("size", [32, 45, 64])
def test_any_size_from_32_pixels(size):
    model = resnet.resnet((1, 1, 1, 1), (4, 4, 8, 8), input_shape=(None, None, 3), num_classes=7)
    assert model(pixels(2, size, size + 3, 3)).shape == (2, 7)


@pytest.mark.parametrize("extension", [".keras", ".h5", ""])
@pytest.mark.slow
def test_save_and_load(tmp_path, extension):
    model = resnet.resnet_small((16, 16, 3), depths=(1, 1), widths=(4, 8))
    randomize(model)
    images = pixels(2, 16, 16, 3)
    path = str(tmp_path / f"model{extension}")
    model.save(path)
    loaded = keras.models.load_model(path)
    np.testing.assert_array_equal(loaded(images), model(images))
    # All its layers are Keras's own: a process without tfscale can load it.
    modules = {type(layer).__module__.partition(".")[0] for layer in loaded.layers}
    assert modules == {keras.__name__}


@pytest.mark.parametrize(
    "kwargs,words",
    [
        (dict(depths=(1, 2), widths=(8,)), "got 2 depths .* and 1 widths"),
        (dict(depths=()), "depths must hold a positive integer for each stage"),
        (dict(widths=(8, 0)), r"got \(8, 0\)"),
        (dict(block="wide"), "one of 'basic', 'bottleneck'; got 'wide'"),
        (dict(width=0), "width must be a number above 0"),
        (dict(stem="tiny"), "one of 'imagenet', 'small'; got 'tiny'"),
        (dict(num_classes=0), "num_classes must be a positive integer; got 0"),
        (dict(input_shape=(32, 32)), "channels last and without the batch"),
        (dict(input_shape=(32, 32, 1)), "Repeat grey images to 3"),
        (dict(input_shape=(7, 32, 3)), "reduce an image by 8"),
        (dict(norm=3), "got 3"),
        (dict(norm=lambda name: None), r"norm\(name=..., gamma_initializer=...\)"),
        (dict(mean=(0.0,)), "one value for each of the 3 channels"),
        (dict(std=(0.0, 1.0, 1.0)), "above 0"),
    ],
)
def test_bad_arguments_are_named(kwargs, words):
    arguments = dict(depths=(1, 1), widths=(4, 4), input_shape=(32, 32, 3), num_classes=2)
    with pytest.raises(ValueError, match=words):
        resnet.resnet(**{**arguments, **kwargs})


@pytest.mark.slow
def test_examples_run():
    results = doctest.testmod(resnet)
    assert results.attempted > 0
    assert results.failed == 0
