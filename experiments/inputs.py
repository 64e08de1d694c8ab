"""A run's input settings as arguments of `tfscale.data`."""

import os


def check(run):
    """Raises ValueError for settings that exclude each other, before anything is loaded."""
    address = run.data_service or os.environ.get("TFSCALE_DATA_SERVICE")
    if address and run.cache != "none":
        raise ValueError(
            f"--cache={run.cache} keeps records in this process, and with the data service at "
            f"{address} other processes read them: add --cache=none"
        )


def cache(run):
    """Returns the `cache` argument that --cache, --cache_budget and --cache_dir stand for."""
    from tfscale.data import Cache

    if run.cache == "none":
        return None
    if run.cache_budget is None and run.cache_dir is None:
        return run.cache
    budget = run.cache_budget or "auto"
    decoded = round(run.image_size / 0.875) if run.cache == "decoded" else None
    try:
        if run.cache == "disk":
            return Cache(disk=budget, folder=run.cache_dir)
        return Cache(memory=budget, decoded=decoded)
    except ValueError as error:
        raise ValueError(f"--cache_budget={run.cache_budget}: {error}") from None


def train_options(run):
    """Returns the keyword arguments of `train_dataset` that make its pictures."""
    from tfscale.data import augment

    return {
        "area_range": (run.min_crop_area, 1.0),
        "flip": run.flip,
        "scaled_decode": run.scaled_decode,
        "augment": augment.rand_augment(*run.rand_augment) if run.rand_augment else None,
        "cache": cache(run),
        "threads": run.threads,
        "data_service": run.data_service,
    }
