"""`Progress`: one display for the whole job."""

import sys
import time

import numpy as np

from tfscale._keras import retrace
from tfscale._keras.training_state import StepCallback
from tfscale.callbacks.rates import StepClock, wait_for
from tfscale.data import verdict
from tfscale.distribute.all_reduce import plan_of
from tfscale.distribute.strategy import topology_of


class Progress(StepCallback):
    """Shows how a job gets on: one line, from worker 0, however many workers there are.

        epoch 2/5  step 12/40  loss 0.5123  accuracy 0.8512  1,234 images/s  12 s left

    After the first step, and whenever the step has been traced again, one line says how gradients
    travel: in how many buckets, with which compression. After an epoch whose steps have waited
    for input for more than 10 % of their time, one says why, and when that has changed.

    On a terminal the line is updated in place; in a log file there is one line for each epoch
    and one every `interval_seconds` in between. Use it with `verbose=0`. The time left is that
    of all remaining steps at the present speed; it does not know of validation.

    Args:
        global_batch_size: int, examples in a step on all replicas, for images/s; None leaves
            it out.
        interval_seconds: float, how often a log file gets a line in mid-epoch.
        stream: where to write; `sys.stdout` by default.

    Example:
        model.fit(dataset, epochs=5, verbose=0, callbacks=[tfscale.callbacks.Progress(256)])
    """

    def __init__(self, global_batch_size=None, interval_seconds=10.0, stream=None):
        super().__init__()
        self._global_batch_size = global_batch_size
        self._stream = stream
        self._log_interval = interval_seconds
        self._active = False

    def on_train_begin(self, logs=None):
        self._active = self.model.distribute_strategy.extended.should_checkpoint
        self._out = self._stream or sys.stdout
        self._terminal = bool(getattr(self._out, "isatty", lambda: False)())
        self._interval = 0.1 if self._terminal else self._log_interval
        self._width, self._traced, self._trace = 0, False, None
        self._shown = time.monotonic()
        self._clock, self._verdict = StepClock(), None

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._done, self._last = epoch, None, None
        self._clock.restart()

    def on_train_batch_begin(self, batch, logs=None):
        if self._active:
            self._clock.begin(batch)
            self._began = time.monotonic()
            if not self._traced and self._done is None:
                self._show("tracing the graph: the first step takes longer than the others", True)

    def on_train_batch_end(self, batch, logs=None):
        if not self._active:
            return
        self._clock.end(batch)
        self._done = batch + 1
        if self._is_traced_anew():
            again = " again" if self._traced else ""
            self._traced = True
            seconds = time.monotonic() - self._began
            self._show(f"traced{again} in {seconds:.1f} s{self._exchange()}", True)
            self._clock.restart()
            return
        if time.monotonic() - self._shown >= self._interval:
            # Only here are the logs fetched, which waits for the device.
            metrics = scalars(logs)
            self._show(self._line(metrics, self._clock.peek()))
        if self._done == self.params.get("steps"):
            wait_for(logs)
            self._last = self._clock.peek()

    def on_test_begin(self, logs=None):
        if self._active and self._done is not None:
            self._last = self._last or self._clock.peek()
            if self._terminal:
                self._show(f"{self._place()}  validating")

    def on_epoch_end(self, epoch, logs=None):
        if not self._active:
            return
        interval = self._last or self._clock.peek()
        self._show(self._line(scalars(logs), interval), True)
        if interval.steps:
            found = verdict.judge(interval)
            if found.differs(self._verdict) and (found.cause != "compute" or self._verdict):
                self._verdict = found
                self._show(found.text, True)

    def on_train_end(self, logs=None):
        self._active = False

    def _is_traced_anew(self):
        trace = retrace.trace_of(self.model)
        before, self._trace = self._trace, self._trace if trace is None else trace
        return not self._traced or self._trace != before

    def _exchange(self):
        """How gradients travel between workers, to be added to a line; empty on one worker."""
        plan = plan_of(self.model.distribute_strategy)
        if not plan or not plan["plans"] or not _workers_of(self.model) > 1:
            return ""
        numbers = [bucket for *_, bucket in plan["plans"][-1]]
        count = len({n for n in numbers if n >= 0}) + sum(n < 0 for n in numbers)
        name = plan["settings"]["compression"]
        sent = "uncompressed" if name == "none" else f"compression {name}"
        return f"; {len(numbers)} gradients travel in {count} buckets, {sent}"

    def _place(self):
        steps = self.params.get("steps")
        place = f"epoch {self._epoch + 1}/{self.params.get('epochs')}"
        return f"{place}  step {self._done or 0}{f'/{steps}' if steps else ''}"

    def _line(self, metrics, interval):
        parts = [self._place(), *(f"{name} {value:.4f}" for name, value in metrics.items())]
        if interval.steps:
            if self._global_batch_size:
                parts.append(f"{interval.images_per_second(self._global_batch_size):,.0f} images/s")
            else:
                parts.append(f"{interval.step_seconds:.3f} s/step")
            left = self._steps_left()
            if left:
                parts.append(f"{_duration(left * interval.step_seconds)} left")
        return "  ".join(parts)

    def _steps_left(self):
        steps, epochs = self.params.get("steps"), self.params.get("epochs")
        if not (steps and epochs):
            return 0
        # Of a phase still to come neither the steps nor their time is known.
        phases = self.params.get("phases")
        if phases and self._epoch < epochs - phases[-1]["epochs"]:
            return 0
        return steps * (epochs - self._epoch) - (self._done or 0)

    def _show(self, text, keep=False):
        self._shown = time.monotonic()
        if self._terminal:
            # Blanks cover what is left of a longer line before.
            text, self._width = "\r" + text.ljust(self._width), 0 if keep else len(text)
            self._out.write(text + ("\n" if keep else ""))
        else:
            self._out.write(text + "\n")
        self._out.flush()


def _workers_of(model):
    return topology_of(model.distribute_strategy).workers


def scalars(logs):
    """The single numbers among what Keras logs, by name; text, None and arrays are left out."""
    values = {name: np.asarray(value) for name, value in (logs or {}).items()}
    numbers = {name: v for name, v in values.items() if v.ndim == 0 and v.dtype.kind not in "OSU"}
    return {name: float(value) for name, value in numbers.items()}


def _duration(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
