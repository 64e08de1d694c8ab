"""The same records read by tfscale and by tf-models-official, and augmented by the addons."""

import functools
import math

import tensorflow as tf

from tfscale import data
from tfscale.models.resnet import IMAGENET_MEAN, IMAGENET_STD

# Both mirror every other picture and cut nothing off: clothes and digits fill theirs.
WHOLE = {"area_range": (1.0, 1.0), "aspect_range": (1.0, 1.0)}


def training(arm, settings, task, seed):
    """Returns a function of the input context, for ``distribute_datasets_from_function``.

    Args:
        arm: `Arm`.
        settings: `Settings`.
        task: of `networks.task`, which has their reader.
        seed: `int`, of order and augmentation.
    """
    if arm.data == "official":
        return functools.partial(task.build_inputs, task.task_config.train_data)
    augment = addons_augment() if arm.data == "addons" else None

    def dataset(context):
        dataset = data.train_dataset(
            settings.records, settings.batch, settings.image_size, context, seed=seed,
            cache="memory", augment=augment, **WHOLE,
        )  # fmt: skip
        return dataset.map(normalize) if takes_normalized(arm) else dataset

    return dataset


def evaluation(arm, settings):
    """Likewise, the held-out pictures, each once."""

    def dataset(context):
        dataset = data.eval_dataset(
            settings.records, settings.batch, settings.image_size, context, crop_fraction=1.0
        )
        return dataset.map(normalize) if takes_normalized(arm) else dataset

    return dataset


def takes_normalized(arm):
    """Whether the arm's model is fed by their reader, which normalises on the CPU."""
    return arm.data == "official"


def normalize(images, labels):
    """As their reader does it."""
    return (tf.cast(images, tf.float32) - IMAGENET_MEAN) / IMAGENET_STD, labels


def addons_augment(degrees=10.0, hole=8):
    """Returns a function that turns a picture and cuts a square out of it.

    The ops are tensorflow-addons' `rotate` and `cutout`. Their random relatives keep a state of
    their own; these are given what is drawn from the picture's key, so that a picture's pixels
    depend on neither worker nor thread.

    Args:
        degrees: `float`, to either side at most. Defaults to 10.
        hole: `int`, side of the square in pixels; even.

    Returns:
        A function (image uint8 [height, width, 3], key int64) -> uint8 [height, width, 3], for
        ``train_dataset(augment=...)``.
    """
    from tfscale.interop import import_addons

    image_ops = import_addons().image
    most = math.radians(degrees)

    def augment(image, key):
        height, width = image.shape[0], image.shape[1]
        turn, place = (tf.stack([key, tf.constant(n, tf.int64)]) for n in (1, 2))
        angle = tf.random.stateless_uniform([], turn, -most, most)
        centre = tf.random.stateless_uniform([2], place) * tf.constant([height, width], tf.float32)
        image = image_ops.rotate(image, angle)
        cut = image_ops.cutout(image[None], hole, offset=tf.cast(centre, tf.int32)[None])
        return tf.ensure_shape(cut[0], image.shape)

    return augment
