"""A run's input settings as arguments of `tfscale.data`."""


def cache(run):
    """Returns the `cache` argument that --cache, --cache_budget and --cache_dir stand for."""
    from tfscale.data import Cache

    if run.cache == "none":
        return None
    if run.cache_budget is None and run.cache_dir is None:
        return run.cache
    budget = run.cache_budget or "auto"
    if run.cache == "disk":
        return Cache(disk=budget, folder=run.cache_dir)
    decoded = round(run.image_size / 0.875) if run.cache == "decoded" else None
    return Cache(memory=budget, decoded=decoded)


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
