"""What each setting of a run may be, by itself; `run_checks` looks at how they fit together."""

import math

_LARGE = 1e30  # Times a batch it is still a number of float32.
# What a field may be, both ends included; of a tuple, each of its values.
RANGES = {
    "image_size": (1, math.inf),
    "eval_image_size": (1, math.inf),
    "min_crop_area": (0.001, 1),
    "eval_crop_fraction": (0.001, 1),
    "width": (0.001, 100),
    "norm_group_size": (1, math.inf),
    "norm_span": (1, math.inf),
    "global_batch_size": (1, math.inf),
    "per_replica_batch_size": (1, math.inf),
    "reference_batch_size": (1, math.inf),
    "reference_replicas": (1, math.inf),
    "micro_batches": (1, math.inf),
    "epochs": (1, math.inf),
    "base_learning_rate": (0, _LARGE),
    "peak_learning_rate": (0, _LARGE),
    "end_learning_rate": (0, _LARGE),
    "warmup_epochs": (0, math.inf),
    "learning_rate_epochs": (0, math.inf),
    "learning_rate_values": (0, _LARGE),
    "momentum": (0, 0.9999),
    "momentum_epochs": (0, math.inf),
    "momentum_values": (0, 0.9999),
    "weight_decay": (0, _LARGE),
    "lars_trust_coefficient": (1e-9, _LARGE),
    "lars_trust_clip": (0, _LARGE),
    "label_smoothing": (0, 0.9999),
    "ema": (0, 0.999999),
    "phase_epochs": (1, math.inf),
    "phase_image_sizes": (1, math.inf),
    "phase_batch_sizes": (1, math.inf),
    "phase_min_crop_areas": (0.001, 1),
    "phase_magnitudes": (0, 10),
    "compression_ratio": (1e-6, 1),
    "compression_warmup_epochs": (0, math.inf),
    "compression_momentum": (0, 0.9999),
    "bucket_bytes": (1, math.inf),
    "streams": (1, 64),
    "start_timeout": (0.001, math.inf),
    "threads": (1, 1024),
    "seed": (0, 2**32 - 1),  # what NumPy's generators take
    "save_every": (1, math.inf),
    "train_images": (1, math.inf),
    "num_classes": (1, 2**31 - 1),
    "assumed_workers": (1, math.inf),
    "assumed_devices_per_worker": (1, math.inf),
    "assumed_images_per_second": (1e-3, math.inf),
}


def check(run):
    """Raises ValueError, naming the flag, for a field of a `RunConfig` that is out of range."""
    for name, (low, high) in RANGES.items():
        value = getattr(run, name)
        for each in value if isinstance(value, tuple) else (value,):
            number = isinstance(each, int | float)
            if number and not (low <= each <= high and math.isfinite(each)):
                bounds = f"from {low:g} to {high:g}" if high < math.inf else f"at least {low:g}"
                of = f", of which {each}" if isinstance(value, tuple) else ""
                raise ValueError(
                    f"--{name}={shown(value)}{of} is out of range: it must be {bounds}"
                )


def shown(value):
    """Returns a field's value as it is written on the command line."""
    if isinstance(value, tuple):
        return ",".join(f"{v:g}" if isinstance(v, float) else str(v) for v in value)
    return value
