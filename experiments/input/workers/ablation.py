"""A pipeline in plain tf.data of which each optimisation can be left out.

parallel   files are read and pictures decoded in several calls at a time
prefetch   batches are made while the last ones are used
fused      only the window is decoded (decode_and_crop_jpeg), in place of decode, then crop
uint8      pictures go out as bytes, in place of float32 normalised by a mean and a spread
sizes      height and width are known, in place of read from the JPEG's header
cache      serialised examples stay in memory after the first epoch
"""

import tensorflow as tf

from experiments.input import measuring
from experiments.input.workers import normalising, sampler

FIELDS = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}
SIZES = {
    "image/height": tf.io.FixedLenFeature([], tf.int64),
    "image/width": tf.io.FixedLenFeature([], tf.int64),
}


def batches(settings):
    """Yields batches of pictures, endlessly."""
    switched_on, size = set(settings["on"]), settings["image_size"]
    calls = settings["threads"] if "parallel" in switched_on else None
    records = _records(settings["paths"], calls)
    if "cache" in switched_on:
        records = records.cache()
    dataset = records.shuffle(1024).repeat()
    dataset = dataset.map(lambda example: picture(example, size, switched_on), calls)
    dataset = dataset.batch(settings["batch"], drop_remainder=True)
    if "prefetch" in switched_on:
        dataset = dataset.prefetch(2)
    for images, _ in dataset:
        yield images


def _records(paths, calls):
    if calls is None:
        return tf.data.TFRecordDataset(paths)
    files = tf.data.Dataset.from_tensor_slices(paths)
    return files.interleave(
        tf.data.TFRecordDataset, cycle_length=8, num_parallel_calls=calls, deterministic=False
    )


def picture(serialized, size, switched_on):
    """Returns `(image, label)` of a serialised example."""
    fields = tf.io.parse_single_example(
        serialized, {**FIELDS, **(SIZES if "sizes" in switched_on else {})}
    )
    encoded = fields["image/encoded"]
    if "sizes" in switched_on:
        shape = tf.cast(tf.stack([fields["image/height"], fields["image/width"], 3]), tf.int32)
    else:
        shape = tf.io.extract_jpeg_shape(encoded)
    window = sampler.window(shape)
    if "fused" in switched_on:
        image = tf.io.decode_and_crop_jpeg(encoded, window, 3, dct_method="INTEGER_ACCURATE")
    else:
        image = tf.io.decode_jpeg(encoded, 3, dct_method="INTEGER_ACCURATE")
        image = tf.image.crop_to_bounding_box(image, *tf.unstack(window))
    image = tf.image.resize(image, [size, size])
    if "uint8" in switched_on:
        image = tf.cast(image + 0.5, tf.uint8)
    else:
        image = (image - normalising.MEAN) / normalising.SPREAD
    image = tf.image.random_flip_left_right(tf.ensure_shape(image, [size, size, 3]))
    return image, tf.cast(fields["image/class/label"], tf.int32)


def main():
    settings = measuring.settings()
    measuring.serve(batches(settings), mean_area=sampler.mean_area(settings["listing"]))


if __name__ == "__main__":
    main()
