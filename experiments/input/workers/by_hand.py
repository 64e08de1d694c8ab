"""The ops of tfscale's TensorFlow path in plain tf.data, as one writes them for one machine."""

import numpy as np
import tensorflow as tf

from experiments.input import measuring
from experiments.input.workers import sampler

FIELDS = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}
FRAME = 16  # bytes around the payload of a record in a TFRecord file


def batches(settings):
    """Yields batches of pictures, endlessly."""
    size, threads = settings["image_size"], settings["threads"]

    def load(serialized):
        return picture(serialized, size)

    if settings["pipeline"] == "by_hand_random":
        read = reader(settings["paths"])
        source = at_random(settings["paths"])
        examples = source.map(lambda *place: load(read(*place)), num_parallel_calls=threads)
    else:
        examples = sequential(settings["paths"], threads).map(load, num_parallel_calls=threads)
    for images, _ in examples.batch(settings["batch"], drop_remainder=True).prefetch(2):
        yield images


def sequential(paths, threads):
    """Serialised examples, file by file, through a shuffle buffer."""
    files = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths)).repeat()
    records = files.interleave(
        tf.data.TFRecordDataset, cycle_length=8, num_parallel_calls=threads, deterministic=False
    )
    return records.shuffle(1024)


def at_random(paths):
    """The places (file, offset) of all records in a random order."""
    files, offsets, _ = places(paths)
    return tf.data.Dataset.from_tensor_slices((files, offsets)).shuffle(len(files)).repeat()


def places(paths):
    """Returns files, offsets and lengths of all records, int64, by the files' own frames."""
    files, offsets, lengths = [], [], []
    for number, path in enumerate(paths):
        content, offset = np.memmap(path, np.uint8, "r"), 0
        while offset < len(content):
            length = int(content[offset : offset + 8].view("<i8")[0])
            files.append(number)
            offsets.append(offset)
            lengths.append(length)
            offset += length + FRAME
    return [np.array(column, np.int64) for column in (files, offsets, lengths)]


def reader(paths):
    """Returns the function that reads one record at its place."""
    paths = tf.constant(paths)

    def read(file, offset):
        variant = tf.raw_ops.TFRecordDatasetV2(
            filenames=[paths[file]],
            compression_type="",
            buffer_size=tf.constant(0, tf.int64),
            byte_offsets=[offset],
        )
        records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
        return records.take(1).get_single_element()

    return read


def picture(serialized, size):
    """Returns `(image, label)` of a serialised example: uint8 [size, size, 3]."""
    fields = tf.io.parse_single_example(serialized, FIELDS)
    encoded = fields["image/encoded"]
    window = sampler.window(tf.io.extract_jpeg_shape(encoded))
    image = tf.io.decode_and_crop_jpeg(encoded, window, 3, dct_method="INTEGER_ACCURATE")
    image = tf.cast(tf.image.resize(image, [size, size]) + 0.5, tf.uint8)
    image = tf.image.random_flip_left_right(tf.ensure_shape(image, [size, size, 3]))
    return image, tf.cast(fields["image/class/label"], tf.int32)


def main():
    settings = measuring.settings()
    area = sampler.mean_area(settings["listing"])
    measuring.serve(batches(settings), mean_area=area)


if __name__ == "__main__":
    main()
