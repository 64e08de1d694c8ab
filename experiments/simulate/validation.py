"""Predicted against measured, on runs that the constants have not seen."""

from experiments.simulate.calibration_files import comparison
from experiments.simulate.measurements import read_runs

TOLERANCE = 0.10


def validate(runs, costs, cores=None):
    """Returns ``(lines, whether every row is within the tolerance, rows for JSON)``."""
    measurements, lines = read_runs(runs, cores)
    ratios = [m.predicted(costs)[0] / m.seconds for m in measurements]
    lines += comparison(measurements, ratios)
    within = sum(abs(ratio - 1) <= TOLERANCE for ratio in ratios)
    worst = max(ratios, key=lambda ratio: abs(ratio - 1)) - 1
    lines.append(
        f"{within} of {len(ratios)} exchanges within {TOLERANCE:.0%}; the worst is off by "
        f"{worst:+.1%}"
    )
    rows = [
        {
            "exchange": m.name,
            "measured_seconds": m.seconds,
            "predicted_seconds": m.seconds * ratio,
            "error": ratio - 1,
        }
        for m, ratio in zip(measurements, ratios, strict=True)
    ]
    return lines, within == len(ratios), rows
