"""Small record files and pictures for tests."""

import io

import numpy as np
import tensorflow as tf
from PIL import Image

from tfscale.data import reading, resync


def picture(number=0, height=48, width=64):
    """A smooth uint8 picture [height, width, 3]; another one for each number."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (5 + c + number % 7) + number) + np.cos(y / (7 + c)) for c in range(3)]
    return (127.5 + 60 * np.stack(waves, -1)).astype(np.uint8)


def encode(image, form="JPEG", **options):
    """The bytes of a picture in any of Pillow's formats."""
    buffer = io.BytesIO()
    if form == "JPEG":
        options = {"quality": 95, **options}
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(
        buffer, form, **options
    )
    return buffer.getvalue()


def serialised(number, encoded=None, label=None, size=(48, 64)):
    encoded = encode(picture(number)) if encoded is None else encoded
    label = number % 4 if label is None else label
    return reading.example(
        encoded, label, height=size[0], width=size[1], filename=f"{number}.jpg"
    ).SerializeToString()


def write(folder, counts, split="train", labels=None, encoded=None, size=(48, 64)):
    """Writes one file for each of `counts`, without an index; `encoded` replaces some pictures."""
    number = 0
    for file, count in enumerate(counts):
        path = folder / f"{split}-{file:05d}-of-{len(counts):05d}.tfrecord"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for _ in range(count):
                label = None if labels is None else labels[number]
                other = (encoded or {}).get(number)
                sides = (0, 0) if other is not None else size
                writer.write(serialised(number, other, label, sides))
                number += 1
    return folder


def flip_byte(path, offset):
    """Inverts one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(bytes(data))


def frames(path):
    """Byte at which each record of an intact file begins."""
    return [offset for offset, _, _ in resync.walk(str(path))]


def context(worker=0, workers=1, replicas=None):
    return tf.distribute.InputContext(workers, worker, replicas or workers)


def take(dataset, count):
    return [tuple(np.asarray(part) for part in element) for element in dataset.take(count)]
