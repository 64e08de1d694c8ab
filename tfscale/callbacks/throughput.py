"""`Throughput`: images per second and seconds per step, without the steps that compile."""

import statistics

from tfscale._keras.training_state import StepCallback
from tfscale.callbacks.rates import StepClock, wait_for


class Throughput(StepCallback):
    """Measures training speed per epoch, the whole job's, not counting the first steps.

        images_per_second = global batch size * steps / seconds

    The first steps trace and compile the graph and fill the input buffers, so they are left
    out. Validation, checkpoints and other callbacks that run at the end of an epoch are not
    counted; what runs after a step is.

    Args:
        global_batch_size: int, examples in a step on all replicas together.
        skip_steps: int, how many steps at the beginning of `fit` are left out.

    Attributes:
        images_per_second: float, median over the epochs; nan before one was measured.
        step_seconds: float, median over the epochs, of one step; nan as above.
        input_wait_fraction: float, median share of the time in which this worker waited for
            input (`tfscale.data.clock`); nan as above.
        epochs: list of `Interval`, one for each epoch measured.

    Example:
        throughput = tfscale.callbacks.Throughput(global_batch_size=256)
        model.fit(dataset, epochs=3, callbacks=[throughput])
        print(throughput.images_per_second)
    """

    def __init__(self, global_batch_size, skip_steps=2):
        super().__init__()
        self._global_batch_size = global_batch_size
        self._skip_steps = skip_steps
        self._open = False
        self.epochs = []

    @property
    def images_per_second(self):
        return self._median(lambda i: i.images_per_second(self._global_batch_size))

    @property
    def step_seconds(self):
        return self._median(lambda i: i.step_seconds)

    @property
    def input_wait_fraction(self):
        return self._median(lambda i: i.input_wait_fraction)

    def _median(self, measure):
        return statistics.median(map(measure, self.epochs)) if self.epochs else float("nan")

    def on_train_begin(self, logs=None):
        self._to_skip = self._skip_steps
        self._clock = StepClock()
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self._clock.restart()
        self._open = True

    def on_train_batch_begin(self, batch, logs=None):
        self._clock.begin(batch)

    def on_train_batch_end(self, batch, logs=None):
        steps = self._clock.end(batch)
        if self._to_skip > 0:
            self._to_skip -= steps
            if self._to_skip <= 0:
                wait_for(logs)
            self._clock.restart()
            return
        if batch + 1 == self.params.get("steps"):
            wait_for(logs)
            self._close()

    def on_test_begin(self, logs=None):
        # Of an epoch whose number of steps is not known beforehand; Keras has fetched its logs.
        if self._open:
            self._close()

    def on_epoch_end(self, epoch, logs=None):
        if self._open:
            self._close()

    def _close(self):
        self._open = False
        interval = self._clock.lap()
        if interval.steps:
            self.epochs.append(interval)
