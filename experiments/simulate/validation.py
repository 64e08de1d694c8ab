"""Predicted against measured, on runs that the constants have seen or not."""

import dataclasses

from experiments.simulate.measurements import read_runs
from experiments.tables import aligned

TOLERANCE = 0.10


@dataclasses.dataclass(frozen=True)
class Compared:
    """One exchange or training step.

    Attributes:
        exchange: `str`, its configuration and method as they are written.
        kind: `str`, algorithm and compression.
        predicted_seconds: `float`.
        measured_seconds: `float`.
        error: `float`, predicted / measured - 1.
        bound_by: ``"link"``, ``"latency"`` or ``"cpu"``, as the model sees it.
    """

    exchange: str
    kind: str
    predicted_seconds: float
    measured_seconds: float
    error: float
    bound_by: str

    @property
    def within(self):
        """Whether the error is within the tolerance."""
        return abs(self.error) <= TOLERANCE


def validate(runs, costs, cores=None):
    """Returns ``(lines, list of Compared)`` for benchmark files."""
    measurements, lines = read_runs(runs, cores)
    rows = compare(measurements, costs)
    return [*lines, *describe(rows)], rows


def compare(measurements, costs):
    """Returns the `Compared` of each measurement."""
    rows = []
    for m in measurements:
        seconds, prediction = m.predicted(costs)
        error = seconds / m.seconds - 1
        kind = "+".join(filter(None, (m.method.algorithm, m.method.compression)))
        rows.append(Compared(m.name, kind, seconds, m.seconds, error, prediction.bound_by))
    return rows


def describe(rows):
    """Returns the table, the worst error and how many are within the tolerance, as lines."""
    cells = [("exchange", "predicted", "measured", "error", "bound by")]
    cells += [
        (
            row.exchange,
            f"{row.predicted_seconds:.3f}",
            f"{row.measured_seconds:.3f}",
            f"{row.error:+.1%}",
            row.bound_by,
        )
        for row in rows
    ]
    worst = max(rows, key=lambda row: abs(row.error))
    within = sum(row.within for row in rows)
    return [
        *aligned(cells).splitlines(),
        f"{within} of {len(rows)} exchanges ({within / len(rows):.0%}) within {TOLERANCE:.0%}; "
        f"the worst is off by {worst.error:+.1%}: {worst.exchange}",
    ]
