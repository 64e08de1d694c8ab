"""Calibration files: the model's constants, and how well they explain what they came from."""

import dataclasses
import json
from pathlib import Path

from experiments.simulate.measurements import read_runs
from experiments.simulate.validation import compare, describe
from tfscale.distribute.cost_model import Costs, calibrate


def write_calibration(path, runs, cores=None):
    """Fits the constants to benchmark files and writes them.

    Returns:
        ``(lines, list of Compared)``: how well the constants explain what they were fitted to.
    """
    measurements, lines = read_runs(runs, cores)
    fitted = calibrate(measurements)
    rows = compare(measurements, fitted.costs)
    lines += ["fit (the constants were chosen for these rows, so this is no proof):"]
    lines += describe(rows)
    if fitted.undetermined:
        lines.append(
            f"not determined by these runs, left near their defaults: "
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
    return lines, rows


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
