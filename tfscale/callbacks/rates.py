"""How fast steps go: the clock that Throughput, TensorBoard and Progress read."""

import dataclasses
import time

from tfscale.data import clock


@dataclasses.dataclass(frozen=True)
class Interval:
    """A stretch of steps.

    Attributes:
        steps: int, steps of the global batch that ended in it.
        seconds: float, its length.
        waited_seconds: float, for how long this worker waited for input in it.
    """

    steps: int
    seconds: float
    waited_seconds: float

    @property
    def step_seconds(self):
        return self.seconds / self.steps if self.steps else float("nan")

    @property
    def input_wait_fraction(self):
        return min(1.0, self.waited_seconds / self.seconds) if self.seconds > 0 else 0.0

    def images_per_second(self, global_batch_size):
        return self.steps * global_batch_size / self.seconds if self.seconds > 0 else float("nan")


class StepClock:
    """Measures stretches of steps; `lap` ends one and begins the next.

    Example:
        step_clock = StepClock()
        step_clock.count(10)
        step_clock.lap().step_seconds
    """

    def __init__(self):
        self.restart()

    def restart(self):
        """Forgets what was counted so far."""
        self._steps = 0
        self._start = time.perf_counter()
        self._waited = clock.waited_seconds()

    def count(self, steps):
        self._steps += steps

    def peek(self):
        """The `Interval` since the last lap, which goes on."""
        now = time.perf_counter()
        return Interval(self._steps, now - self._start, clock.waited_seconds() - self._waited)

    def lap(self):
        interval = self.peek()
        self.restart()
        return interval
