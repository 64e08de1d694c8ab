"""Step times of a training run by several methods of exchange."""

import dataclasses
import math

from experiments.simulate.methods import method_of
from experiments.tables import aligned, megabytes
from tfscale.distribute.cost_model import predict

# Below this a grid saves too few steps to be worth its extra round.
_GRID_FROM = 16
METHODS = (
    "stock",
    "stock:pack=4mib",
    "2d",
    "2d:bucket=adaptive",
    "2d+bfloat16",
    "2d+int8",
    "2d+topk",
    "2d+bfloat16:bucket=adaptive",
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One method's row.

    Attributes:
        method: `str`, as it was written.
        compression: `str` or None.
        exchange_seconds: the exchange by itself.
        exposed_seconds: what of it the backward pass does not hide.
        step_seconds: computation plus that.
        samples_per_second: of all replicas.
        efficiency: samples/s over those of as many replicas that need no exchange.
        bytes_per_link: payload that one worker sends in a step.
        buckets: messages of a step.
        bound_by: ``"link"``, ``"latency"`` or ``"cpu"``.
    """

    method: str
    compression: str | None
    exchange_seconds: float
    exposed_seconds: float
    step_seconds: float
    samples_per_second: float
    efficiency: float
    bytes_per_link: float
    buckets: int
    bound_by: str


def usual_methods(workers):
    """Returns the names of the methods that are compared unless others are asked for.

    With many workers that is also a grid of them, as square as it gets.
    """
    rows = next(r for r in range(math.isqrt(workers), 0, -1) if workers % r == 0)
    if rows < 2 or workers < _GRID_FROM:
        return METHODS
    return (*METHODS, f"2d:grid={rows}x{workers // rows}:bucket=adaptive")


def outcomes(cluster, network, names, step_seconds, batch_per_device, costs):
    """Returns the `Outcome` of each method, in the order of `names`."""
    sizes, ready = network.gradient_bytes(), network.ready_seconds(step_seconds)
    rows = []
    for name in names:
        method = method_of(name)
        predicted = predict(cluster, method, sizes, ready, costs)
        step = step_seconds + predicted.exposed_seconds
        rows.append(
            Outcome(
                method=name,
                compression=method.compression,
                exchange_seconds=predicted.seconds,
                exposed_seconds=predicted.exposed_seconds,
                step_seconds=step,
                samples_per_second=cluster.replicas * batch_per_device / step,
                efficiency=step_seconds / step,
                bytes_per_link=predicted.bytes_per_link,
                buckets=predicted.buckets,
                bound_by=predicted.bound_by,
            )
        )
    return rows


def table(rows):
    """Returns the outcomes as text."""
    head = ("method", "exchange", "exposed", "step", "samples/s", "scaling", "MB per link", "bound")
    cells = [head]
    for row in rows:
        cells.append(
            (
                row.method,
                _seconds(row.exchange_seconds),
                _seconds(row.exposed_seconds),
                _seconds(row.step_seconds),
                f"{row.samples_per_second:,.0f}",
                f"{row.efficiency:.1%}",
                megabytes(row.bytes_per_link),
                row.bound_by,
            )
        )
    return aligned(cells)


def _seconds(value):
    return f"{value:.3f} s" if value >= 1 else f"{value * 1e3:.1f} ms"
