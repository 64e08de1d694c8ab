"""grain with OpenCV: worker processes read files, decode, crop, resize, mirror and batch."""

import json
import os

import cv2
import grain
import numpy as np

from experiments.input import measuring
from experiments.input.workers import windows

cv2.setNumThreads(0)  # here, so that it holds in the worker processes too


class Files:
    """A random-access source of (encoded, label)."""

    def __init__(self, folder, listing):
        with open(listing) as file:
            self._entries = json.load(file)
        self._folder = folder

    def __len__(self):
        return len(self._entries)

    def __getitem__(self, number):
        name, label, *_ = self._entries[number]
        with open(os.path.join(self._folder, name), "rb") as file:
            return file.read(), label


class Load(grain.transforms.RandomMap):
    """Decodes, crops, resizes and mirrors."""

    def __init__(self, size):
        self._size = size

    def random_map(self, element, generator):
        encoded, label = element
        flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flags)
        top, left, height, width = windows.sample(*image.shape[:2], generator)
        image = image[top : top + height, left : left + width]
        image = cv2.resize(image, (self._size, self._size), interpolation=cv2.INTER_LINEAR)
        return (cv2.flip(image, 1) if generator.random() < 0.5 else image), label


def batches(settings):
    """Yields batches of pictures, endlessly."""
    dataset = (
        grain.MapDataset.source(Files(settings["files"], settings["listing"]))
        .seed(1)
        .shuffle()
        .repeat()
        .random_map(Load(settings["image_size"]))
        # Each of the workers has one core.
        .to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=16))
        .batch(settings["batch"], drop_remainder=True)
        .mp_prefetch(grain.MultiprocessingOptions(settings["threads"], per_worker_buffer_size=1))
    )
    for images, _ in dataset:
        yield images


def main():
    settings = measuring.settings()
    measuring.serve(batches(settings), mean_area=windows.mean_area(settings["listing"]))


if __name__ == "__main__":
    main()
