"""`calibrate`: the model's constants from measured exchanges."""

import dataclasses

import numpy as np

from tfscale.distribute.cost_model.cluster import Cluster
from tfscale.distribute.cost_model.costs import Costs
from tfscale.distribute.cost_model.method import Method
from tfscale.distribute.cost_model.prediction import predict

# How far a time may be off, and how far a constant may lie from where the search starts, as
# factors e^x: constants that no measurement depends on stay where they are. Work of the CPU
# differs much between machines, the share of a link that protocols take does not.
_TIME_SPREAD = 0.03
_CPU_SPREAD = 0.15
_CONSTANT_SPREAD = {"link_overhead": 0.5}
_USUAL_CONSTANT_SPREAD = 1.5
# Beyond this many spreads a residual counts linearly: one bad run must not bend all constants.
_OUTLIER = 3.0
_ROUNDS = 60
# More than this would say that hiding one behind the other makes both slower.
_UPPER = {"interference": 1.0, "link_overhead": 1.0, "uneven_connections": 1.0}


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One exchange, or one training step, that was timed.

    Attributes:
        cluster: `Cluster`.
        method: `Method`.
        sizes: tuple of `int`, float32 bytes of the tensors, the last layer first.
        seconds: `float`, wall time of the exchange, or of the step.
        cpu_seconds: `float`, CPU time of one worker, or None if it was not measured.
        name: `str`, for tables.
        ready: tuple of `float`, seconds within the step at which each gradient is ready, or None
            (default) for an exchange by itself.
        compute_seconds: `float`, the step without its exchange, if `ready` is given.
        spread: `float`, how far repeats were apart, relative to `seconds`. Defaults to 0.

    Raises:
        ValueError: for seconds that are not above 0, and for one of `ready` and
            `compute_seconds` without the other.

    Example:
        >>> Measurement(Cluster(4, 2, 200e6), Method("2d"), (102_228_128,), seconds=6.75).name
        ''
    """

    cluster: Cluster
    method: Method
    sizes: tuple
    seconds: float
    cpu_seconds: float | None = None
    name: str = ""
    ready: tuple | None = None
    compute_seconds: float | None = None
    spread: float = 0.0

    def __post_init__(self):
        if not self.seconds > 0:
            raise ValueError(f"{self.name or 'measurement'}: seconds must be positive")
        if (self.ready is None) != (self.compute_seconds is None):
            raise ValueError(
                f"{self.name or 'measurement'}: ready and compute_seconds belong together"
            )

    def predicted(self, costs):
        """Returns ``(seconds, Prediction of the exchange)`` as the model sees them."""
        p = predict(self.cluster, self.method, self.sizes, self.ready, costs)
        if self.ready is None:
            return p.seconds, p
        # What follows the last gradient, such as the optimizer, comes after the exchange too.
        after = self.compute_seconds - max(self.ready)
        return max(self.ready) + p.exposed_seconds + max(0.0, after), p


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Fitted constants, and how well they explain what they were fitted to.

    Attributes:
        costs: `Costs`.
        errors: tuple of `float`, predicted / measured - 1 of each measurement.
        undetermined: tuple of `str`, the constants on which the measurements hardly depend; they
            stayed where the search started.

    Example:
        >>> Calibration(Costs(), errors=(0.02, -0.03), undetermined=("topk",)).worst_error
        -0.03
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

        sum (log(predicted / measured) / spread)^2 + sum (log(constant / start) / its spread)^2

    by Levenberg and Marquardt's method. Times spread by 3 %, or by as much as their
    repeats, CPU seconds (where they were measured) by 15 %; what is off by more than three
    spreads counts linearly, as in Huber's loss. The second sum keeps constants in place that no
    measurement speaks of.

    Args:
        measurements: sequence of `Measurement`, of at least two methods. For constants that hold
            on other clusters take two runs that differ in rate, one of them bound by the link
            and one by the CPU, and in workers.
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
    prior = np.array([_CONSTANT_SPREAD.get(name, _USUAL_CONSTANT_SPREAD) for name in names])
    center = np.log([max(getattr(start, name), 1e-15) for name in names])

    def costs_of(x):
        # Beyond e^12 a constant has left every scale; exp must not overflow on the way.
        values = np.exp(np.clip(x, center - 12, center + 12))
        found = dict(zip(names, map(float, values), strict=True))
        return Costs(**{n: min(v, _UPPER.get(n, np.inf)) for n, v in found.items()})

    def residuals(x):
        costs, found = costs_of(x), []
        for m in measurements:
            seconds, prediction = m.predicted(costs)
            found.append(np.log(seconds / m.seconds) / max(_TIME_SPREAD, m.spread))
            if m.cpu_seconds:
                found.append(np.log(prediction.cpu_seconds / m.cpu_seconds) / _CPU_SPREAD)
        return np.array([*map(_huber, found), *(x - center) / prior])

    x, jacobian = _least_squares(residuals, center)
    costs = costs_of(x)
    errors = tuple(m.predicted(costs)[0] / m.seconds - 1 for m in measurements)
    # What the measurements alone say of a constant, against what its prior says.
    weight = np.sum(np.square(jacobian[: -len(names)]), axis=0)
    weak = weight < 1 / prior**2
    return Calibration(costs, errors, tuple(n for n, w in zip(names, weak, strict=True) if w))


def _huber(residual):
    """The number whose square is Huber's loss of a residual."""
    size = abs(residual)
    if size <= _OUTLIER:
        return residual
    return np.sign(residual) * np.sqrt(_OUTLIER * (2 * size - _OUTLIER))


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
