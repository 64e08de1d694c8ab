"""What one process of `experiments.input.memory` does: epochs, and its memory after each."""

import gc
import os
import time
from pathlib import Path

from experiments.input import tiers
from tfscale import data


def measure(settings):
    """Takes the epochs; returns `dict` with `budget` (bytes or None) and `samples`.

    Args:
        settings: `dict` with `tier`, `iterators` ("one" endless one, or "new" in each epoch),
            `data_dir`, `split`, `epochs`, `budget` (bytes; None: half of the records),
            `image_size`, `batch`, `folder` (of the disk cache).

    Each sample is a `dict` of `epoch` (0: before the first one), `rss` and `pss` (bytes: pages of
    the process, and with those that it shares with others counted in part), `seconds`.
    """
    batch = settings["batch"]
    data_dir = os.path.abspath(settings["data_dir"])
    index = data.describe(data_dir, settings["split"], batch).index
    tiers.read_once(index)
    record_bytes = int(index.locations()[2].sum())
    budget = settings["budget"] or record_bytes // 2
    cache = tiers.cache(settings["tier"], budget, settings["image_size"], settings["folder"])
    dataset = data.train_dataset(
        data_dir, batch, settings["image_size"], split=settings["split"], cache=cache
    )
    batches = -(-index.num_records // batch)
    endless = iter(dataset) if settings["iterators"] == "one" else None
    samples = [{"epoch": 0, "seconds": 0.0, **resident()}]
    said = time.perf_counter()
    for epoch in range(1, settings["epochs"] + 1):
        start = time.perf_counter()
        iterator = iter(dataset) if endless is None else endless
        for number in range(batches):
            next(iterator)
            if time.perf_counter() - said > 10:
                said = time.perf_counter()
                _say(settings, f"epoch {epoch}: batch {number + 1} of {batches}")
        del iterator
        gc.collect()
        seconds = time.perf_counter() - start
        samples.append({"epoch": epoch, "seconds": seconds, **resident()})
        if epoch in (1, settings["epochs"]) or time.perf_counter() - said > 5:
            said = time.perf_counter()
            _say(settings, f"epoch {epoch}: {samples[-1]['rss'] / 2**20:.0f} MiB resident")
    return {"budget": budget, "record_bytes": record_bytes, "samples": samples}


def resident():
    """Returns `dict` of `rss` and `pss`, bytes of this process."""
    fields = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("Rss", "Pss"):
            fields[name.lower()] = int(value.split()[0]) * 1024
    return fields


def _say(settings, text):
    print(f"{settings['tier']}, {settings['iterators']} iterator(s): {text}", flush=True)
