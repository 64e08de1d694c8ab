"""Calibration files: the model's constants, and how well they explain what they came from."""

import dataclasses
import json
from pathlib import Path

from experiments.simulate.measurements import read_runs
from tfscale.distribute.cost_model import Costs, calibrate


def write_calibration(path, runs, cores=None):
    """Fits the constants to benchmark files and writes them; returns the report's lines."""
    measurements, report = read_runs(runs, cores)
    fitted = calibrate(measurements)
    lines = comparison(measurements, [1 + error for error in fitted.errors])
    report += ["fit (the constants were chosen for these rows, so this is no proof):", *lines]
    report.append(
        f"typical error {fitted.typical_error:.1%}, worst {fitted.worst_error:+.1%}, "
        f"{len(measurements)} exchanges"
    )
    if fitted.undetermined:
        report.append(
            f"not determined by these runs, left at their defaults: "
            f"{', '.join(fitted.undetermined)}. Measure a method or rate that depends on them."
        )
    content = {
        "costs": dataclasses.asdict(fitted.costs),
        "typical_error": fitted.typical_error,
        "worst_error": fitted.worst_error,
        "undetermined": list(fitted.undetermined),
        "runs": [Path(run).name for run in runs],
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(content, indent=1) + "\n")
    return report


def read_costs(path):
    """Returns the `Costs` of a calibration file.

    Raises:
        ValueError: if it is no calibration file.
        OSError: if it can't be read.
    """
    try:
        return Costs(**json.loads(Path(path).read_text())["costs"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a calibration file; write one with --calibrate=RUN1.json,RUN2.json "
            f"--calibration={path} ({error})"
        ) from error


def comparison(measurements, ratios):
    """Returns lines that set predicted against measured seconds."""
    width = max(len(m.name) for m in measurements)
    lines = [f"{'exchange':{width}}  measured  predicted   error"]
    lines += [
        f"{m.name:{width}}  {m.seconds:8.3f}  {m.seconds * ratio:9.3f}  {ratio - 1:+6.1%}"
        for m, ratio in zip(measurements, ratios, strict=True)
    ]
    return lines
