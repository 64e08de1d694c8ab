"""TensorFlow's sampler of crop windows, which tf-models-official and hand-written pipelines use."""

import json

import tensorflow as tf

ROUNDS = 8  # windows of each picture in `mean_area`


def window(shape):
    """Returns int32 [top, left, height, width] for a picture of int32 [height, width, 3]."""
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        shape,
        bounding_boxes=[[[0.0, 0.0, 1.0, 1.0]]],
        min_object_covered=0.0,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], size[:2]], 0)


def mean_area(listing):
    """Returns the mean share of a picture's area in such windows, over the pictures of a list."""
    with open(listing) as file:
        shapes = [[height, width, 3] for *_, height, width in json.load(file)]
    shapes = tf.constant(shapes * ROUNDS, tf.int32)

    @tf.function
    def share(shape):
        _, _, height, width = tf.unstack(window(shape))
        return tf.cast(height * width, tf.float32) / tf.cast(shape[0] * shape[1], tf.float32)

    return float(tf.reduce_mean(tf.map_fn(share, shapes, tf.float32)))
