"""What one process of `experiments.input.epochs` does: some epochs with one tier."""

import os
import time

from experiments.input import slow_source, tiers
from tfscale import data

LEAST_BATCHES = 10


def measure(settings):
    """Takes the epochs and returns one `dict` for each, and before them one for the opening.

    Args:
        settings: `dict` with `tier`, `source` ("slow" or "local"), `process` (1, or 2 for the
            restart on the same folder), `data_dir`, `split`, `rate` (bytes per second or None),
            `latency` (seconds), `epochs`, `image_size`, `batch`, `folder` (of the disk cache).
    """
    name, batch = settings["tier"], settings["batch"]
    data_dir = os.path.abspath(settings["data_dir"])
    index = data.describe(data_dir, settings["split"], batch).index
    tiers.read_once(index)
    record_bytes = int(index.locations()[2].sum())
    if settings["source"] == "slow":
        data_dir = slow_source.register(settings["rate"], settings["latency"]) + data_dir
    cache = tiers.cache(name, record_bytes // 2, settings["image_size"], settings["folder"])
    # A whole number of batches that holds every record, so that a second epoch finds all of them.
    batches = -(-index.num_records // batch)
    if batches < LEAST_BATCHES:
        _say(settings, f"only {batches} batches an epoch: what is prefetched at an epoch's end "
             "counts for much; take more pictures or a smaller --batch")  # fmt: skip

    def row(epoch, start, images, first_batch_seconds=0.0):
        seconds = time.perf_counter() - start["time"]
        return {
            **{key: settings[key] for key in ("tier", "source", "process")},
            "epoch": epoch,
            "seconds": seconds,
            "images": images,
            "images_per_second": images / seconds,
            "first_batch_seconds": first_batch_seconds,
            "cpu_seconds": time.process_time() - start["cpu"],
            "source_bytes": _bytes_read(settings) - start["bytes"],
            "records": index.num_records,
            "record_bytes": record_bytes,
        }

    def now():
        return {
            "time": time.perf_counter(),
            "cpu": time.process_time(),
            "bytes": _bytes_read(settings),
        }

    start = now()
    iterator = iter(
        data.train_dataset(
            data_dir, batch, settings["image_size"], split=settings["split"], cache=cache
        )
    )
    rows = [row(0, start, 0)]
    said = time.perf_counter()
    for epoch in range(1, settings["epochs"] + 1):
        start = now()
        for number in range(batches):
            next(iterator)
            if number == 0:
                first = time.perf_counter() - start["time"]
            if time.perf_counter() - said > 10:
                said = time.perf_counter()
                _say(settings, f"epoch {epoch}: batch {number + 1} of {batches}")
        rows.append(row(epoch, start, batches * batch, first))
        said = time.perf_counter()
        _say(settings, describe(rows[-1]))
    return rows


def describe(row):
    """One line of what an epoch took."""
    return (
        f"epoch {row['epoch']}: {row['seconds']:.2f} s, {row['images_per_second']:.0f} images/s, "
        f"{row['source_bytes'] / 1e6:.1f} MB from the source"
    )


def _bytes_read(settings):
    return slow_source.bytes_read() if settings["source"] == "slow" else 0


def _say(settings, text):
    again = ", restarted" if settings["process"] > 1 else ""
    print(f"{settings['source']}, {settings['tier']}{again}: {text}", flush=True)
