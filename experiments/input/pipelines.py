"""The pipelines that can be compared, and what each of them runs in.

bound                C on libjpeg-turbo: decodes the window alone, resizes by SSE; one core, no
                     files, no framework
bound_parallel       the same on --threads cores, which may slow each other down
tfscale              tfscale.data.train_dataset as it is installed, uint8
tfscale_tensorflow   the same without its native ops (TFSCALE_NATIVE=0)
tfscale_memory       tfscale with cache="memory", second epoch and later
tfscale_decoded      tfscale with cache="decoded", second epoch and later
tfscale_float        tfscale, then normalised to float32 in the pipeline
by_hand              the ops of tfscale_tensorflow in plain tf.data, files read in sequence
by_hand_random       the same, each record read at its offset, as tfscale does
by_hand_native       the same with tfscale's C ops, windows drawn beforehand
official             tf-models-official's ImageNet input, float32 normalised
dali                 NVIDIA DALI on the CPU, fused random-crop decoder, uint8
dali_float           the same, float32 normalised
torchvision          ImageFolder, RandomResizedCrop on PIL, DataLoader, uint8
torchvision_float    the same, float32 normalised
grain                grain with OpenCV in worker processes, uint8
ffcv                 FFCV on a .beton file of the same JPEGs, uint8
simplejpeg           a bare loop on one thread: simplejpeg's fast mode and OpenCV's resize, no
                     files, the windows of the bound, uint8
"""

import dataclasses
import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "experiments/input/install.sh"


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """How a pipeline is run.

    Attributes:
        worker: `str`, a module of ``experiments.input.workers``; None for the C program.
        environment: `str`, which install.sh makes; None for the Python of the benchmark.
        package: `str`, what that Python must have besides, or None.
        variables: environment variables of the process.
        epochs: `int`, epochs that are run before anything is measured.
    """

    worker: str | None
    environment: str | None = None
    package: str | None = None
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    epochs: int = 0


PIPELINES = {
    "bound": Pipeline(None),
    "bound_parallel": Pipeline(None),
    "tfscale": Pipeline("ours"),
    "tfscale_tensorflow": Pipeline("ours", variables={"TFSCALE_NATIVE": "0"}),
    "tfscale_memory": Pipeline("ours", epochs=1),
    "tfscale_decoded": Pipeline("ours", epochs=1),
    "tfscale_float": Pipeline("ours"),
    "by_hand": Pipeline("by_hand"),
    "by_hand_random": Pipeline("by_hand"),
    "by_hand_native": Pipeline("by_hand_native"),
    "official": Pipeline("official", package="official"),
    "dali": Pipeline("dali", "dali"),
    "dali_float": Pipeline("dali", "dali"),
    "torchvision": Pipeline("torchvision", "torchvision"),
    "torchvision_float": Pipeline("torchvision", "torchvision"),
    "grain": Pipeline("grain", "grain"),
    "ffcv": Pipeline("ffcv", "ffcv"),
    "simplejpeg": Pipeline("simplejpeg", "simplejpeg"),
}


def parse(text):
    """Returns the names in a list with commas; "all" is every one.

    Raises:
        ValueError: for an unknown name, with those that are known, or one that comes twice.
    """
    if text == "all":
        return list(PIPELINES)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in PIPELINES:
            raise ValueError(f"unknown pipeline {name!r}; choose from {', '.join(PIPELINES)}, all")
        if names.count(name) > 1:
            raise ValueError(f"pipeline {name!r} is named twice")
    return names


def python_of(name, folder=None):
    """Returns the interpreter that runs a pipeline, or None if it is not installed.

    Args:
        name: `str`, one of `PIPELINES`.
        folder: where ``install.sh`` made the environments. None takes ``TFSCALE_PEERS``, else
            ``.peers/`` of the clone.
    """
    pipeline = PIPELINES[name]
    if pipeline.environment is None:
        there = pipeline.package is None or importlib.util.find_spec(pipeline.package)
        return Path(sys.executable) if there else None
    folder = Path(folder or os.environ.get("TFSCALE_PEERS") or ROOT / ".peers")
    environment = folder / pipeline.environment
    python = environment / "bin" / "python"
    return python if python.exists() and (environment / "complete").exists() else None


def how_to_install(name):
    """The line for people whose benchmark lacks a pipeline."""
    pipeline = PIPELINES[name]
    if pipeline.environment is None:
        return f"{name} needs tf-models-official: pip install 'tfscale[official]'"
    return f"{name} needs an environment of its own: sh {SCRIPT} {pipeline.environment}"
