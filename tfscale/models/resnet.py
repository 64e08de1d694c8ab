"""Residual networks: ResNet-50 (v1.5) and small relatives, with the norm layer injected."""

import functools
import inspect
import math
import numbers

from tfscale._keras import keras
from tfscale.models.blocks import BlockBuilder

# Over ImageNet's training images, red, green, blue, in units of the 8-bit pixel.
IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)

_layers = keras.layers
_BLOCKS = ("basic", "bottleneck")
_STEM_STRIDE = {"imagenet": 4, "small": 1}


def resnet50(input_shape=(224, 224, 3), num_classes=1000, norm=None, name="resnet50", **kwargs):
    """Returns ResNet-50 v1.5: 25,557,032 trainable parameters in 161 variables.

    "v1.5" has the stride of a block in its 3x3 convolution; `keras.applications.ResNet50` is
    v1, with the stride in the first 1x1 one and biases beside its norm layers. The
    architecture is that of tf-models-official's `ResNet(50)`, and so is the output for equal
    weights.

    Args:
        input_shape: see `resnet`. Defaults to `(224, 224, 3)`.
        num_classes: `int`. Defaults to 1000.
        norm: see `resnet`.
        name: `str`. Defaults to `"resnet50"`.
        **kwargs: other arguments of `resnet`.

    Returns:
        A `keras.Model`.

    Example:

    >>> import tensorflow as tf
    >>> model = resnet50(num_classes=10)
    >>> model(tf.zeros([1, 224, 224, 3], tf.uint8)).shape
    TensorShape([1, 10])

    Reference: He et al. 2015, https://arxiv.org/abs/1512.03385.
    """
    return resnet(
        (3, 4, 6, 3),
        (64, 128, 256, 512),
        block="bottleneck",
        stem="imagenet",
        input_shape=input_shape,
        num_classes=num_classes,
        norm=norm,
        name=name,
        **kwargs,
    )


def resnet_small(
    input_shape=(32, 32, 3),
    num_classes=10,
    norm=None,
    depths=(1, 1, 1),
    widths=(16, 32, 64),
    name="resnet_small",
    **kwargs,
):
    """Returns a residual network of basic blocks for images of 16 to 64 pixels.

    `depths=(n, n, n)` is the CIFAR network of 6 n + 2 layers of He et al., with
    projections where they pad with zeros: 78,042 parameters for n = 1.

    Args:
        input_shape: see `resnet`. Defaults to `(32, 32, 3)`.
        num_classes: `int`. Defaults to 10.
        norm: see `resnet`.
        depths: see `resnet`. Defaults to `(1, 1, 1)`.
        widths: see `resnet`. Defaults to `(16, 32, 64)`.
        name: `str`. Defaults to `"resnet_small"`.
        **kwargs: other arguments of `resnet`.

    Returns:
        A `keras.Model`.

    Example:

    >>> resnet_small(num_classes=100, depths=(3, 3, 3)).output_shape
    (None, 100)

    Reference: He et al. 2015, section 4.2, https://arxiv.org/abs/1512.03385.
    """
    return resnet(
        depths,
        widths,
        block="basic",
        stem="small",
        input_shape=input_shape,
        num_classes=num_classes,
        norm=norm,
        name=name,
        **kwargs,
    )


def resnet(
    depths,
    widths,
    *,
    block="bottleneck",
    stem="imagenet",
    input_shape=(224, 224, 3),
    num_classes=1000,
    norm=None,
    activation="softmax",
    kernel_regularizer=None,
    mean=IMAGENET_MEAN,
    std=IMAGENET_STD,
    width=1.0,
    blur_pool=False,
    name="resnet",
):
    """Returns a residual network that takes images of 0 to 255 and gives class probabilities.

    ```
    basic block         f(x) = norm(conv3x3(relu(norm(conv3x3_s(x)))))
    bottleneck block    f(x) = norm(conv1x1(relu(norm(conv3x3_s(relu(norm(conv1x1(x))))))))
    both                relu(shortcut(x) + f(x))
    ```

    The stride `s` is 2 in the first block of every stage but the first, else 1. Where the shape
    changes, the shortcut is a 1x1 convolution of stride `s` with a norm layer. The last norm
    layer of a block starts with gamma 0, so that the block starts as its shortcut (Goyal et al.
    2017, section 5.1). Convolutions start as He et al. have it (normal, fan-out), the classifier
    as N(0, 0.01). The first layer normalises the pixels, in float32, so batches can be uint8.
    Pooling and classifier are float32 under every policy.

    Args:
        depths: sequence of `int`, the number of blocks of each stage.
        widths: sequence of `int`, filters of each stage's 3x3 convolutions; a bottleneck block
            gives out four times as many.
        block: `"basic"` or `"bottleneck"`.
        stem: `"imagenet"`, a 7x7 convolution and a pooling, each of stride 2, or `"small"`, a
            3x3 convolution.
        input_shape: `(height, width, channels)`; height and width may be `None`.
        num_classes: `int`.
        norm: callable that makes one norm layer, with keywords `name` (`str`) and
            `gamma_initializer` (`"ones"` or `"zeros"`), such as
            `functools.partial(GroupedSyncBatchNormalization, momentum=0.9, epsilon=1e-5)`.
            `None` means Keras's `BatchNormalization` with momentum 0.9 and epsilon 1e-5.
        activation: of the output: `"softmax"`, or `None` for logits. Defaults to `"softmax"`.
        kernel_regularizer: Keras regularizer of all kernels, such as
            `keras.regularizers.L2(5e-5)`. `None`, the default, leaves weight decay to
            the optimizer.
        mean: per channel, in units of the pixel. Defaults to ImageNet's.
        std: likewise.
        width: `float`, multiplies `widths`; rounded, at least 1. Defaults to 1.0.
        blur_pool: `bool`, whether what is strided is blurred first, against aliasing: the input
            of a block's strided convolutions, the shortcut's included, and the maxima of the
            stem's pooling, but not the images before the stem. No weights more. Defaults to False.
        name: `str`. Defaults to `"resnet"`.

    Returns:
        A `keras.Model` from `[batch, height, width, channels]` to float32
        `[batch, num_classes]`.

    Raises:
        ValueError: if an argument is out of its range or the image is too small.

    Example:

    >>> from tfscale.models import resnet
    >>> model = resnet.resnet((2, 2, 2, 2), (64, 128, 256, 512), block="basic")  # ResNet-18
    >>> model.output_shape
    (None, 1000)

    Reference, of `blur_pool`: Zhang 2019, https://arxiv.org/abs/1904.11486; blurred before the
    strided convolution in place of after it, which costs less, as in MosaicML's Composer.
    """
    _check_arguments(depths, widths, block, stem, input_shape, num_classes, mean, std)
    widths = [max(1, round(_checked_width(width) * each)) for each in widths]
    build = BlockBuilder(_checked_norm(norm), keras.regularizers.get(kernel_regularizer), blur_pool)

    images = keras.Input(input_shape, name="images")
    x = _normalized(images, mean, std)
    if stem == "imagenet":
        x = build.conv(x, widths[0], 7, 2, "stem_conv")
        x = build.norm_relu(x, "stem_bn")
        x = build.max_pool(x, "stem_pool")
    else:
        x = build.conv(x, widths[0], 3, 1, "stem_conv")
        x = build.norm_relu(x, "stem_bn")
    for stage, (depth, filters) in enumerate(zip(depths, widths, strict=True), start=1):
        for index in range(1, depth + 1):
            stride = 2 if stage > 1 and index == 1 else 1
            x = build.block(x, block, filters, stride, f"stage{stage}_block{index}")
    # Means over many pixels and sums over many features: bfloat16 would keep 8 bits of them.
    x = _layers.GlobalAveragePooling2D(dtype="float32", name="pool")(x)
    x = _layers.Dense(
        num_classes,
        activation=activation,
        kernel_initializer=keras.initializers.RandomNormal(stddev=0.01),
        kernel_regularizer=build.kernel_regularizer,
        dtype="float32",
        name="head",
    )(x)
    return keras.Model(images, x, name=name)


def _normalized(images, mean, std):
    # A layer of Keras's own, so that a process without tfscale can load the model.
    return _layers.Rescaling(
        scale=[1.0 / float(s) for s in std],
        offset=[-float(m) / float(s) for m, s in zip(mean, std, strict=True)],
        # bfloat16 cannot tell bright neighbours such as 254 and 255 apart.
        dtype="float32",
        name="normalize",
    )(images)


def _checked_width(width):
    if not isinstance(width, numbers.Real) or isinstance(width, bool) or not 0 < width < math.inf:
        raise ValueError(
            f"width must be a number above 0, of which 1 changes nothing; got {width!r}."
        )
    return width


def _checked_norm(norm):
    if norm is None:
        return functools.partial(_layers.BatchNormalization, momentum=0.9, epsilon=1e-5)
    wanted = "norm must be callable as norm(name=..., gamma_initializer=...) and return a layer"
    if not callable(norm):
        raise ValueError(f"{wanted}; got {norm!r}.")
    try:
        inspect.signature(norm).bind(name="stem_bn", gamma_initializer="ones")
    except TypeError as error:
        raise ValueError(f"{wanted}; {norm!r} is not: {error}.") from None
    return norm


def _check_arguments(depths, widths, block, stem, input_shape, num_classes, mean, std):
    for argument, value, allowed in (("block", block, _BLOCKS), ("stem", stem, _STEM_STRIDE)):
        if value not in allowed:
            raise ValueError(
                f"{argument} must be one of {', '.join(map(repr, allowed))}; got {value!r}."
            )
    for argument, values in (("depths", depths), ("widths", widths)):
        if not values or not all(_is_positive_integer(value) for value in values):
            raise ValueError(
                f"{argument} must hold a positive integer for each stage; got {values!r}."
            )
    if len(depths) != len(widths):
        raise ValueError(
            f"depths and widths must have one entry per stage each; got {len(depths)} depths "
            f"{depths!r} and {len(widths)} widths {widths!r}."
        )
    if not _is_positive_integer(num_classes):
        raise ValueError(f"num_classes must be a positive integer; got {num_classes!r}.")
    if len(input_shape) != 3 or input_shape[2] is None:
        raise ValueError(
            "input_shape must be (height, width, channels), channels last and without the batch; "
            f"got {input_shape!r}."
        )
    if not len(mean) == len(std) == input_shape[2] or not all(value > 0 for value in std):
        raise ValueError(
            f"mean and std must have one value for each of the {input_shape[2]} channels, those of "
            f"std above 0; got mean={mean!r}, std={std!r}. Repeat grey images to 3 channels, or "
            "pass a mean and std of one value."
        )
    stride = _STEM_STRIDE[stem] * 2 ** (len(depths) - 1)
    if any(size is not None and size < stride for size in input_shape[:2]):
        raise ValueError(
            f"input_shape {tuple(input_shape)} is too small: the {stem!r} stem and "
            f"{len(depths)} stages reduce an image by {stride}, so it must be at least "
            f"{stride} x {stride} pixels. Use stem='small' or fewer stages for small images."
        )


def _is_positive_integer(value):
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and value > 0
