"""FFCV: the same JPEGs in a .beton file, RandomResizedCrop decoder, mirror, threads of its own."""

import json
import os

import numpy as np
import torch
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, ToTensor
from ffcv.writer import DatasetWriter

from experiments.input import measuring

EPOCHS = 200


class EncodedField(RGBImageField):
    """Takes (bytes, height, width) of a JPEG as it is, where FFCV would encode it again."""

    def encode(self, destination, image, malloc):
        encoded, destination["height"], destination["width"] = image
        destination["mode"] = 0  # a JPEG
        destination["data_ptr"], storage = malloc(len(encoded))
        storage[:] = np.frombuffer(encoded, np.uint8)


class Files:
    """A random-access source of ((bytes, height, width), label)."""

    def __init__(self, folder, listing):
        with open(listing) as file:
            self._entries = json.load(file)
        self._folder = folder

    def __len__(self):
        return len(self._entries)

    def __getitem__(self, number):
        name, label, height, width = self._entries[number]
        with open(os.path.join(self._folder, name), "rb") as file:
            return (file.read(), height, width), label


def written(settings):
    """Returns the path of the .beton file, made beside the JPEGs if it is not there."""
    path = f"{settings['files']}.beton"
    if not os.path.exists(path):
        fields = {"image": EncodedField(), "label": IntField()}
        partial = f"{path}.partial"
        writer = DatasetWriter(partial, fields, num_workers=1)
        writer.from_indexed_dataset(Files(settings["files"], settings["listing"]))
        os.rename(partial, path)
    return path


def batches(settings):
    """Yields batches of pictures, endlessly."""
    size = settings["image_size"]
    image = [RandomResizedCropRGBImageDecoder((size, size)), RandomHorizontalFlip(), ToTensor()]
    loader = Loader(
        written(settings),
        batch_size=settings["batch"],
        num_workers=settings["threads"],
        order=OrderOption.RANDOM,
        # One long epoch: at the end of each its threads and buffers are made anew.
        indices=np.tile(np.arange(settings["count"]), EPOCHS),
        os_cache=True,
        drop_last=True,
        pipelines={"image": image, "label": [IntDecoder(), ToTensor()]},
        custom_fields={"image": EncodedField},
    )
    while True:
        for images, _ in loader:
            yield images


def main():
    torch.set_num_threads(1)
    measuring.serve(batches(measuring.settings()))


if __name__ == "__main__":
    main()
