"""What a run costs: the clock of training, which stands still while something is evaluated."""

import os
import resource
import statistics
import time

from tfscale import keras


class Measured(keras.callbacks.Callback):
    """Evaluates after epochs, and keeps the training time without it.

    Its clock runs from `start` on: making the data, tracing, training. Give it as the last of the
    callbacks. Where one before it has stopped the training, that epoch counts as accuracy 0: a lost
    model is not evaluated.

    Args:
        evaluate: function without arguments that returns the accuracy.
        every: `int`, epochs from one evaluation to the next; the last is evaluated in any case.

    Attributes:
        curve: `list` of ``{"epoch", "seconds", "accuracy"}``: epochs from 1, seconds of training
            until then.
        steps: `list`, for each epoch the seconds of each of its steps.
        memory: `int`, bytes by which the process had grown at most, at the end of the first
            epoch: weights, slots, activations and what the input keeps.
    """

    def __init__(self, evaluate, every=1):
        super().__init__()
        self._evaluate, self._every = evaluate, every
        self.curve, self.steps, self.memory = [], [], None

    def start(self):
        """Starts the clock."""
        self._resident = resident_bytes()
        self._paused, self._start = 0.0, time.perf_counter()

    @property
    def seconds(self):
        """Training time until the end of the last epoch."""
        return self._seconds

    def on_epoch_begin(self, epoch, logs=None):
        self.steps.append([])

    def on_train_batch_begin(self, batch, logs=None):
        self._step_start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.steps[-1].append(time.perf_counter() - self._step_start)

    def on_epoch_end(self, epoch, logs=None):
        now = time.perf_counter()
        self._seconds = now - self._start - self._paused
        if self.memory is None:
            self.memory = peak_bytes() - self._resident
        stopped = self.model.stop_training
        if (epoch + 1) % self._every == 0 or epoch + 1 == self.params["epochs"] or stopped:
            accuracy = 0.0 if stopped else self._evaluate()
            self.curve.append(
                {"epoch": epoch + 1, "seconds": round(self._seconds, 2), "accuracy": accuracy}
            )
        self._paused += time.perf_counter() - now


def phase_costs(steps, epochs):
    """Returns, for each phase that began, a step's median seconds and the first one's excess.

    Args:
        steps: of `Measured`.
        epochs: `list` of `int`, epochs of each phase.

    Example:
        >>> phase_costs([[5.0, 1.0, 1.0], [1.0, 1.0, 1.0]], [2])
        [(1.0, 4.0)]
    """
    costs, first = [], 0
    for count in epochs:
        own = [seconds for epoch in steps[first : first + count] for seconds in epoch]
        if not own:
            break
        median = statistics.median(own)
        costs.append((median, max(0.0, own[0] - median)))
        first += count
    return costs


def resident_bytes():
    """Memory that this process has at present."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes():
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
