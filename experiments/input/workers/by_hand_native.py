"""The ops of tfscale's native path in plain tf.data, by hand: a whole batch in one call."""

import numpy as np
import tensorflow as tf

from experiments.input import measuring
from experiments.input.workers import by_hand, sampler
from tfscale.data import native

# Drawn of each picture beforehand, of which one is taken at random. With 8 their mean area, and so
# the work, differed by 1 % from run to run.
WINDOWS = 32


def batches(settings):
    """Yields batches of pictures, endlessly."""
    size, threads = settings["image_size"], settings["threads"]
    paths = tf.constant(settings["paths"])

    def load(file, offset, length, windows):
        rows = tf.shape(file)[0]
        chosen = tf.random.uniform([rows], 0, WINDOWS, tf.int32)
        flip = tf.random.uniform([rows]) < 0.5
        payloads = native.read_records(paths, file, offset, length)
        windows = tf.gather(windows, chosen, batch_dims=1)
        images, labels, _ = native.decode_examples(payloads, windows, flip, (size, size))
        return images, tf.cast(labels, tf.int32)

    places = by_hand.places(settings["paths"])
    windows = drawn(settings["paths"], *places)
    records = tf.data.Dataset.from_tensor_slices((*places, windows))
    shuffled = records.shuffle(len(windows)).repeat().batch(settings["batch"])
    for images, _ in shuffled.map(load, num_parallel_calls=threads).prefetch(2):
        yield images


def drawn(paths, files, offsets, lengths):
    """Returns int32 [records, WINDOWS, 4], by the sizes in the JPEGs' headers."""
    found = []
    payloads = native.read_records(paths, files, offsets, lengths)
    for payload in payloads.numpy():
        fields = tf.io.parse_single_example(payload, by_hand.FIELDS)
        shape = tf.io.extract_jpeg_shape(fields["image/encoded"])
        found.append([sampler.window(shape).numpy() for _ in range(WINDOWS)])
    return np.array(found, np.int32)


def main():
    settings = measuring.settings()
    area = sampler.mean_area(settings["listing"])
    measuring.serve(batches(settings), mean_area=area, native=native.available())


if __name__ == "__main__":
    main()
