"""tfscale's own input, as a user calls it."""

import tensorflow as tf

import tfscale
from experiments.input import measuring
from experiments.input.workers import normalising
from tfscale.data import native

CACHES = {"tfscale_memory": "memory", "tfscale_decoded": "decoded"}


def batches(settings):
    """Yields batches of pictures, endlessly."""
    dataset = tfscale.data.train_dataset(
        settings["records"],
        settings["batch"],
        settings["image_size"],
        cache=settings.get("cache") or CACHES.get(settings["pipeline"]),
        threads=settings["threads"],
    )
    if settings.get("as_float") or settings["pipeline"] == "tfscale_float":
        dataset = dataset.map(
            lambda image, label: (normalising.normalise(image), label),
            num_parallel_calls=settings["threads"],
        ).prefetch(2)
    for images, _ in dataset:
        yield images


def main():
    tf.get_logger().setLevel("ERROR")
    settings = measuring.settings()
    measuring.serve(batches(settings), mean_area=settings["mean_area"], native=native.available())


if __name__ == "__main__":
    main()
