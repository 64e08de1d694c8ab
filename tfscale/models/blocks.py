"""Residual blocks, as functions of Keras tensors."""

from tfscale._keras import keras

_layers = keras.layers


class BlockBuilder:
    """Applies convolutions, norm layers and blocks, all with one norm and one regularizer.

    Args:
        norm: callable with keywords `name` and `gamma_initializer` that returns a layer.
        kernel_regularizer: Keras regularizer or `None`.
        blur_pool: `bool`, whether a block's strided convolutions see a blurred input.
    """

    def __init__(self, norm, kernel_regularizer, blur_pool=False):
        self.norm = norm
        self.kernel_regularizer = kernel_regularizer
        self.blur_pool = blur_pool

    def conv(self, x, filters, size, stride, name):
        """Returns a padded convolution of `x`, without bias: a norm layer follows."""
        # One initializer object per layer: a shared one would give equal shapes equal values.
        initializer = keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
        return _layers.Conv2D(
            filters,
            size,
            strides=stride,
            padding="same",
            use_bias=False,
            kernel_initializer=initializer,
            kernel_regularizer=self.kernel_regularizer,
            name=name,
        )(x)

    def norm_relu(self, x, name):
        """Returns `relu(norm(x))`."""
        x = self.norm(name=name, gamma_initializer="ones")(x)
        return _layers.ReLU(name=f"{name}_relu")(x)

    def max_pool(self, x, name):
        """Returns the maxima of 3 x 3 pixels, with `blur_pool` blurred, at every other place."""
        if not self.blur_pool:
            return _layers.MaxPooling2D(3, 2, padding="same", name=name)(x)
        x = _layers.MaxPooling2D(3, 1, padding="same", name=name)(x)
        return blur(x, stride=2, name=f"{name}_blur")

    def block(self, x, kind, width, stride, name):
        """Returns a residual block of `x`, of `kind` "basic" or "bottleneck"."""
        # Filters, kernel size and stride of each convolution.
        convolutions = {
            "basic": [(width, 3, stride), (width, 3, 1)],
            "bottleneck": [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)],
        }[kind]
        *inner, last = convolutions
        shortcut = x
        if stride > 1 or x.shape[-1] != last[0]:
            shortcut = self._block_conv(x, last[0], 1, stride, f"{name}_shortcut_conv")
            shortcut = self.norm(name=f"{name}_shortcut_bn", gamma_initializer="ones")(shortcut)
        for number, (filters, size, s) in enumerate(inner, start=1):
            x = self._block_conv(x, filters, size, s, f"{name}_conv{number}")
            x = self.norm_relu(x, f"{name}_bn{number}")
        number = len(convolutions)
        x = self.conv(x, *last, f"{name}_conv{number}")
        x = self.norm(name=f"{name}_bn{number}", gamma_initializer="zeros")(x)
        x = _layers.Add(name=f"{name}_add")([shortcut, x])
        return _layers.ReLU(name=f"{name}_relu")(x)

    def _block_conv(self, x, filters, size, stride, name):
        if self.blur_pool and stride > 1:
            x = blur(x, stride=1, name=f"{name}_blur")
        return self.conv(x, filters, size, stride, name)


def blur(x, stride, name):
    """Returns `x` filtered in each channel by [1, 2, 1] x [1, 2, 1] / 16, at every `stride` places.

    The border is padded with zeros, so that the size is that of a padded convolution. The filter
    is the product of two means over 2 x 2 pixels, and is computed as these: they have no weights
    that a checkpoint would hold or an optimizer could see.

    Reference: Zhang 2019, "Making Convolutional Networks Shift-Invariant Again",
    https://arxiv.org/abs/1904.11486 (the filter "Tri-3").
    """
    x = _layers.ZeroPadding2D(1, name=f"{name}_pad")(x)
    x = _layers.AveragePooling2D(2, 1, name=f"{name}_mean1")(x)
    return _layers.AveragePooling2D(2, stride, name=f"{name}_mean2")(x)
