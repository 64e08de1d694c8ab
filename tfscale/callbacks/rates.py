"""How fast steps go: the clock that Throughput, TensorBoard and Progress read."""

import dataclasses
import math
import time

import tensorflow as tf

from tfscale.data import clock


@dataclasses.dataclass(frozen=True)
class Interval:
    """A stretch of steps.

    Attributes:
        steps: int, steps of the global batch that ended in it.
        seconds: float, its length.
        waited_seconds: float, for how long the steps of this worker waited for input in it.
        cpu_seconds: float, what this process computed in it, on all cores together.
    """

    steps: int = 0
    seconds: float = 0.0
    waited_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def __add__(self, other):
        return Interval(
            self.steps + other.steps,
            self.seconds + other.seconds,
            self.waited_seconds + other.waited_seconds,
            self.cpu_seconds + other.cpu_seconds,
        )

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

    Between the dataset and the step there is a thread that fetches ahead. It may wait all the
    time though the step, which computes meanwhile, hardly does; so a step's wait is found from
    the moment at which its input came and those at which steps ended. An accelerator runs
    behind the Python loop and only the end of a lap, where its results have been read, says
    when a step has ended: there the steps of a lap are taken to compute equally long.

    One clock serves a whole `fit`, as it must know how many steps the dataset has fed.

    Example:
        step_clock = StepClock()
        step_clock.begin(0)
        step_clock.end(0)
        step_clock.lap().step_seconds
    """

    def __init__(self):
        self._behind = any(d.device_type != "CPU" for d in tf.config.list_logical_devices())
        self._source = clock.deliveries()
        self._taken = self._source.count if self._source else 0
        self._pending = 0
        self.restart()

    def restart(self):
        """Forgets the steps so far, but for what they have taken from the dataset."""
        _, self._taken = self._pending_wait(time.perf_counter())
        self._steps, self._pending, self._blocked = 0, 0, 0.0
        self._start = self._mark = time.perf_counter()
        self._waited, self._cpu = clock.waited_seconds(), time.process_time()

    def begin(self, batch):
        """To be told in `on_train_batch_begin`."""
        self._first = batch

    def end(self, batch):
        """To be told in `on_train_batch_end`; returns the number of steps since `begin`."""
        steps = batch + 1 - self._first
        self._steps += steps
        self._pending += steps
        if not self._behind:
            now = time.perf_counter()
            blocked, self._taken = self._pending_wait(now)
            self._blocked += blocked
            self._pending, self._mark = 0, now
        return steps

    def peek(self):
        """The `Interval` since the last lap, which goes on."""
        now = time.perf_counter()
        blocked, _ = self._pending_wait(now)
        # What a buffer handed over at once was not waited for, however late the step asked.
        waited = min(self._blocked + blocked, clock.waited_seconds() - self._waited)
        cpu = time.process_time() - self._cpu
        return Interval(self._steps, now - self._start, waited, cpu)

    def lap(self):
        interval = self.peek()
        self.restart()
        return interval

    def _pending_wait(self, now):
        """Returns `(seconds, taken)`: how long the pending steps waited, the elements taken."""
        source = clock.deliveries()
        if source is not self._source:
            self._source, self._taken = source, 0  # an iterator that this fit has made
        if source is None or not self._pending:
            return 0.0, self._taken
        # How far ahead an iterator was that is older than this clock is not known; but what
        # has been taken had come.
        taken = min(self._taken + self._pending * source.per_step, source.count)
        first = max(0, taken - self._pending * source.per_step)
        times = list(source.times(first, taken)[:: -source.per_step][::-1])
        if not times:
            return 0.0, taken
        earlier = [-math.inf] * (self._pending - len(times))
        return clock.blocked_seconds(self._mark, now, earlier + times), taken


def wait_for(logs):
    """Waits until the step that gave these logs is done: devices run behind the Python loop."""
    for value in tf.nest.flatten(logs or {}):
        if tf.is_tensor(value):
            value.numpy()
