"""The layer that turns uint8 pixels into normalised floats, on the device."""

import numpy as np
import tensorflow as tf

from tfscale._keras import keras

# Over ImageNet's training images, red, green, blue, in units of the 8-bit pixel.
IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)


@keras.saving.register_keras_serializable(package="tfscale")
class ImageNormalization(keras.layers.Layer):
    """Normalises images channel by channel: `(image - mean) / std`, in float32.

    The host then sends one byte a value instead of four. The result has the compute dtype of
    the layer's policy; the arithmetic before that is float32 under every policy, as bfloat16
    cannot hold the difference of two neighbouring bright pixels.

    Args:
        mean: sequence of `float`, one per channel, in units of the pixel (0 to 255).
            Defaults to ImageNet's.
        std: likewise, all above 0. Defaults to ImageNet's.
        **kwargs: `name`, `dtype`, for `keras.layers.Layer`.

    Call arguments:
        inputs: `[..., channels]`, uint8 or any other numeric dtype, from 0 to 255.

    Raises:
        ValueError: if `mean` and `std` differ in length from each other or from the channels.

    Example:

    >>> layer = ImageNormalization(mean=[100.0], std=[50.0])
    >>> layer(tf.constant([[0], [150]], tf.uint8)).numpy()
    array([[-2.],
           [ 1.]], dtype=float32)
    """

    def __init__(self, mean=IMAGENET_MEAN, std=IMAGENET_STD, **kwargs):
        # Keras would cast float inputs to the compute dtype before call().
        super().__init__(autocast=False, **kwargs)
        self.mean = [float(value) for value in mean]
        self.std = [float(value) for value in std]
        if len(self.mean) != len(self.std) or not all(value > 0 for value in self.std):
            raise ValueError(
                "mean and std must have one value per channel, and those of std must be above 0; "
                f"got mean={self.mean}, std={self.std}."
            )

    def build(self, input_shape):
        """Checks that there is a mean for each channel."""
        if input_shape[-1] != len(self.mean):
            raise ValueError(
                f"Images of shape {tuple(input_shape)} have {input_shape[-1]} channels, but mean "
                f"and std have {len(self.mean)} values. Repeat grey images to 3 channels, or pass "
                "mean and std with one value per channel."
            )
        super().build(input_shape)

    def call(self, inputs):
        """Returns the normalised images in the compute dtype."""
        normalized = (tf.cast(inputs, tf.float32) - np.float32(self.mean)) / np.float32(self.std)
        return tf.cast(normalized, self.compute_dtype)

    def compute_output_shape(self, input_shape):
        """Returns the input's shape."""
        return input_shape

    def get_config(self):
        """Returns the arguments."""
        return {**super().get_config(), "mean": self.mean, "std": self.std}
