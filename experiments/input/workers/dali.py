"""NVIDIA DALI on the CPU: files, fused random-crop decoder, resize with two taps, mirror."""

import json
import os

import numpy as np
from nvidia.dali import fn, pipeline_def, types

from experiments.input import measuring

MEAN = (123.675, 116.28, 103.53)
SPREAD = (58.395, 57.12, 57.375)


@pipeline_def(device_id=None, seed=1)
def pipeline(files, labels, folder, size, as_float):
    encoded, label = fn.readers.file(
        file_root=folder, files=files, labels=labels, random_shuffle=True, initial_fill=1024
    )
    image = fn.decoders.image_random_crop(
        encoded,
        device="cpu",
        output_type=types.RGB,
        random_area=[0.08, 1.0],
        random_aspect_ratio=[3 / 4, 4 / 3],
        num_attempts=10,
        adjust_orientation=False,
    )
    cut = fn.shapes(image)
    image = fn.resize(image, size=[size, size], interp_type=types.INTERP_LINEAR, antialias=False)
    heads = fn.random.coin_flip()
    if as_float:
        image = fn.crop_mirror_normalize(
            image, mirror=heads, mean=MEAN, std=SPREAD, dtype=types.FLOAT, output_layout="HWC"
        )
    else:
        image = fn.flip(image, horizontal=heads)
    return image, label, cut


def build(settings):
    with open(settings["listing"]) as file:
        listing = json.load(file)
    graph = pipeline(
        [name for name, *_ in listing],
        list(range(len(listing))),  # of which the sizes are found again
        settings["files"],
        settings["image_size"],
        settings["pipeline"] == "dali_float",
        batch_size=settings["batch"],
        num_threads=settings["threads"],
        prefetch_queue_depth=2,
    )
    graph.build()
    return graph, np.array([entry[2:] for entry in listing])


def batches(graph):
    """Yields batches of pictures, endlessly."""
    while True:
        images, *_ = graph.run()
        yield Batch(images)


class Batch:
    """What `measuring` asks of a batch, without a copy of DALI's."""

    def __init__(self, images):
        self._images = images.as_tensor()
        self.shape = self._images.shape()
        self.dtype = {types.UINT8: "uint8", types.FLOAT: "float32"}[images.dtype]

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, number):
        return np.array(self._images)[number]


def mean_area(graph, shapes, rounds):
    """The mean share of a picture's area that was decoded, in some first batches."""
    shares = []
    for _ in range(rounds):
        _, numbers, cuts = graph.run()
        whole = shapes[np.array(numbers.as_tensor())[:, 0]]
        cuts = np.array(cuts.as_tensor())[:, :2]
        shares.append(np.mean(cuts.prod(1) / whole.prod(1)))
    return float(np.mean(shares))


def main():
    os.environ.setdefault("DALI_DISABLE_NVML", "1")  # there may be no GPU to ask about
    settings = measuring.settings()
    graph, shapes = build(settings)
    rounds = max(1, min(2 * settings["count"], 4000) // settings["batch"])
    measuring.serve(batches(graph), mean_area=mean_area(graph, shapes, rounds))


if __name__ == "__main__":
    main()
