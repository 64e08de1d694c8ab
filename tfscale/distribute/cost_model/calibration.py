"""`calibrate`: the model's constants from measured exchanges."""

import dataclasses

import numpy as np

from tfscale.distribute.cost_model.cluster import Cluster
from tfscale.distribute.cost_model.costs import Costs
from tfscale.distribute.cost_model.method import Method
from tfscale.distribute.cost_model.prediction import predict

# How far a time may be off, and how far a constant may lie from where the search starts, as
# factors e^x: constants that no measurement depends on stay where they are.
_TIME_SPREAD = 0.03
_CPU_SPREAD = 0.15
_CONSTANT_SPREAD = 1.5
_ROUNDS = 60


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One exchange that was timed.

    Attributes:
        cluster: `Cluster`.
        method: `Method`.
        sizes: tuple of `int`, float32 bytes of the tensors, the last layer first.
        seconds: `float`, wall time of the exchange.
        cpu_seconds: `float`, CPU time of one worker, or None if it was not measured.
        name: `str`, for tables.
    """

    cluster: Cluster
    method: Method
    sizes: tuple
    seconds: float
    cpu_seconds: float | None = None
    name: str = ""

    def __post_init__(self):
        if not self.seconds > 0:
            raise ValueError(f"{self.name or 'measurement'}: seconds must be positive")


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Fitted constants, and how well they explain what they were fitted to.

    Attributes:
        costs: `Costs`.
        errors: tuple of `float`, predicted / measured - 1 of each measurement.
        undetermined: tuple of `str`, the constants on which the measurements hardly depend; they
            stayed where the search started.
    """

    costs: Costs
    errors: tuple
    undetermined: tuple

    @property
    def typical_error(self):
        """Root of the mean square of the relative errors."""
        return float(np.sqrt(np.mean(np.square(self.errors))))

    @property
    def worst_error(self):
        """The largest relative error, with its sign."""
        return max(self.errors, key=abs)


def calibrate(measurements, start=None):
    """Fits the constants to measurements by least squares; none becomes negative.

    Minimises, over the logarithms of the constants, ::

        sum (log(predicted / measured) / spread)^2 + sum (log(constant / start) / 1.5)^2

    by Levenberg and Marquardt's method. Times spread by 3 %, CPU seconds (where they were
    measured) by 15 %; the second sum keeps constants in place that no measurement speaks of.

    Args:
        measurements: sequence of `Measurement`, of at least two methods. For constants that hold
            on other clusters take two runs that differ in rate, one of them bound by the link
            and one by the CPU.
        start: `Costs`, where the search begins. Defaults to ``Costs()``.

    Returns:
        `Calibration`.

    Raises:
        ValueError: if there is no measurement.

    Example:
        >>> lab = Cluster(4, 2, 200e6, cores_per_host=2, workers_per_host=4)
        >>> runs = [Measurement(lab, Method("2d"), (102_228_128,), seconds=6.75)]
        >>> abs(calibrate(runs).worst_error) < 0.02
        True
    """
    measurements = list(measurements)
    if not measurements:
        raise ValueError("calibrate needs at least one measurement")
    start = start or Costs()
    names = [field.name for field in dataclasses.fields(Costs)]
    center = np.log([max(getattr(start, name), 1e-15) for name in names])

    def costs_of(x):
        # Beyond e^12 a constant has left every scale; exp must not overflow on the way.
        values = np.exp(np.clip(x, center - 12, center + 12))
        return Costs(**dict(zip(names, map(float, values), strict=True)))

    def residuals(x):
        costs, found = costs_of(x), []
        for m in measurements:
            p = predict(m.cluster, m.method, m.sizes, costs=costs)
            found.append(np.log(p.seconds / m.seconds) / _TIME_SPREAD)
            if m.cpu_seconds:
                found.append(np.log(p.cpu_seconds / m.cpu_seconds) / _CPU_SPREAD)
        return np.array([*found, *(x - center) / _CONSTANT_SPREAD])

    x, jacobian = _least_squares(residuals, center)
    costs = costs_of(x)
    errors = tuple(
        predict(m.cluster, m.method, m.sizes, costs=costs).seconds / m.seconds - 1
        for m in measurements
    )
    # What the measurements alone say of a constant, against what its prior says.
    weight = np.sum(np.square(jacobian[: -len(names)]), axis=0)
    weak = weight < 1 / _CONSTANT_SPREAD**2
    return Calibration(costs, errors, tuple(n for n, w in zip(names, weak, strict=True) if w))


def _least_squares(residuals, x):
    """Returns the minimum near `x` and the Jacobian there."""
    damping, value = 1.0, residuals(x)
    for _ in range(_ROUNDS):
        jacobian = _jacobian(residuals, x, value)
        gradient, curvature = jacobian.T @ value, jacobian.T @ jacobian
        while True:
            step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), -gradient)
            candidate = x + np.clip(step, -1, 1)
            new = residuals(candidate)
            if new @ new < value @ value:
                damping = max(damping / 5, 1e-9)
                break
            damping *= 4
            if damping > 1e8:
                return x, jacobian
        gain = value @ value - new @ new
        x, value = candidate, new
        if gain < 1e-9 * (value @ value):
            break
    return x, _jacobian(residuals, x, value)


def _jacobian(residuals, x, value, width=1e-4):
    columns = []
    for i in range(len(x)):
        moved = x.copy()
        moved[i] += width
        columns.append((residuals(moved) - value) / width)
    return np.stack(columns, axis=1)
