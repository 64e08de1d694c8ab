"""What all workers of a run must agree on before they start: versions, devices and flags."""

import dataclasses
import importlib.metadata
import os
import sys

# Fields that may differ between workers: paths are local matters.
LOCAL_FIELDS = ("data_dir", "model_dir", "cache_dir", "threads")


def of(run):
    """Returns it for a `RunConfig` as a `dict` of `str`, for `tfscale.preflight.meet`."""
    declared = {name: installed_version(name) for name in ("tensorflow", "tf_keras")}
    declared["python"] = sys.version.split()[0]
    declared["devices_per_worker"] = os.environ.get("TFSCALE_DEVICES_PER_WORKER", "all")
    fields = dataclasses.asdict(run).items()
    return declared | {f"--{k}": str(v) for k, v in fields if k not in LOCAL_FIELDS}


def installed_version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed under this name"  # As tensorflow-cpu, or built from source.
