"""`TensorBoard`: the run's scalars, written once for the whole job."""

import time
from pathlib import Path

import tensorflow as tf

from tfscale._keras import retrace
from tfscale._keras.training_state import StepCallback
from tfscale.callbacks.bucket_table import bucket_table
from tfscale.callbacks.progress import scalars
from tfscale.callbacks.rates import Interval, StepClock, wait_for
from tfscale.data import verdict


class TensorBoard(StepCallback):
    """Writes scalars for TensorBoard, by worker 0 only; the step is the optimizer's iteration.

    | run        | tag                   | when             | what                              |
    |------------|-----------------------|------------------|-----------------------------------|
    | train      | epoch_NAME            | end of epoch     | loss and each metric of the epoch |
    | train      | batch_NAME            | `update_freq`    | the same, of the epoch so far     |
    | train      | learning_rate         | both             | rate of the step just done        |
    | train      | images_per_second     | both             | of the whole job, since the last  |
    | train      | step_seconds          | both             | seconds per step, since the last  |
    | train      | input_wait_fraction   | both             | share of time worker 0 waited     |
    | train      | input_verdict         | when it changes  | text: what holds the run up       |
    | train      | epoch                 | end of epoch     | number of the epoch, from 1       |
    | train      | compression           | when it changes  | text: how gradients travel        |
    | train      | bucket_plan           | when it changes  | text: a table of the buckets      |
    | validation | epoch_NAME            | end of epoch     | the validation's loss and metrics |

    The table of buckets has the predicted times of an adaptive plan (not after resuming: the
    checkpoint keeps the plan only), and the measured ones of the step at which it is written if
    the all-reduce's `record_timeline` is on.

    Names are Keras's, so that the two runs share a chart. A resumed run says where it starts,
    and TensorBoard drops the points that the killed run wrote after that step.

    Args:
        log_dir: path of a folder, used by worker 0.
        global_batch_size: int, for `images_per_second`, which is not written without it.
        update_freq: int, every how many steps of `fit` something is written; "epoch" for the
            ends of the epochs only.

    Raises:
        ValueError: in the constructor, for another `update_freq`.

    Example:
        model.fit(..., callbacks=[tfscale.callbacks.TensorBoard("runs/a/logs", 256)])
        # tensorboard --logdir runs/a/logs
    """

    def __init__(self, log_dir, global_batch_size=None, update_freq=100):
        super().__init__()
        if update_freq != "epoch" and (not isinstance(update_freq, int) or update_freq < 1):
            raise ValueError(f'update_freq={update_freq!r}: a number of steps, or "epoch"')
        self._log_dir = Path(log_dir)
        self._global_batch_size = global_batch_size
        self._every = None if update_freq == "epoch" else update_freq
        self._writers = None

    def on_train_begin(self, logs=None):
        leader = self.model.distribute_strategy.extended.should_checkpoint
        self._writers = {} if leader else None
        self._clock = StepClock()
        self._first_iteration = None
        self._since = 0
        self._texts, self._verdict = {}, None

    def on_epoch_begin(self, epoch, logs=None):
        if self._writers is None:
            return
        # Not in on_train_begin: the callback that restores the iterations may come later.
        self._traced = self._first_iteration is not None
        if not self._traced:
            self._first_iteration = self._iterations()
        self._clock.restart()
        self._last, self._whole = None, Interval()

    def on_train_batch_begin(self, batch, logs=None):
        if self._writers is not None:
            self._clock.begin(batch)

    def on_train_batch_end(self, batch, logs=None):
        if self._writers is None:
            return
        steps = self._clock.end(batch)
        if not self._traced:
            # The first step traces and compiles; it says nothing about speed.
            self._traced = True
            self._clock.restart()
        self._since += steps
        if self._every is not None and self._since >= self._every:
            self._since = 0
            # Reading the logs waits for the step, so the time is that of finished steps.
            values = {f"batch_{name}": value for name, value in scalars(logs).items()}
            self._write("train", values | self._rate() | self._speed(self._lap()))
        if batch + 1 == self.params.get("steps"):
            # What an evaluation at the end of the epoch takes is not the time of steps.
            wait_for(logs)
            self._last = self._lap()

    def on_test_begin(self, logs=None):
        # Of an epoch whose number of steps is not known beforehand.
        if self._writers is not None and self._last is None:
            self._last = self._lap()

    def on_epoch_end(self, epoch, logs=None):
        if self._writers is None:
            return
        values = scalars(logs)
        train = {f"epoch_{n}": v for n, v in values.items() if not n.startswith("val_")}
        validation = {f"epoch_{n[4:]}": v for n, v in values.items() if n.startswith("val_")}
        speed = self._speed(self._last or self._lap())
        texts = self._judge(self._whole)
        self._write("train", {**train, **self._rate(), **speed, "epoch": epoch + 1}, texts)
        if validation:
            self._write("validation", validation)

    def on_train_end(self, logs=None):
        for writer in (self._writers or {}).values():
            writer.close()
        self._writers = None

    def _lap(self):
        """The `Interval` since the last point; adds it to that of the epoch."""
        interval = self._clock.lap()
        self._whole += interval
        return interval

    def _speed(self, interval):
        if not interval.steps:
            return {}
        speed = {
            "step_seconds": interval.step_seconds,
            "input_wait_fraction": interval.input_wait_fraction,
        }
        if self._global_batch_size:
            speed["images_per_second"] = interval.images_per_second(self._global_batch_size)
        return speed

    def _judge(self, interval):
        if not interval.steps:
            return {}
        found = verdict.judge(interval)
        if found.differs(self._verdict):
            self._verdict = found
        return {"input_verdict": (self._verdict, self._verdict.text)}

    def _rate(self):
        return {"learning_rate": float(tf.convert_to_tensor(self.model.optimizer.learning_rate))}

    def _iterations(self):
        return int(tf.convert_to_tensor(self.model.optimizer.iterations))

    def _write(self, run, scalars, texts=None):
        if run not in self._writers:
            self._writers[run] = _writer(self._log_dir / run, self._first_iteration)
        values = [tf.compat.v1.Summary.Value(tag=t, simple_value=v) for t, v in scalars.items()]
        if run == "train":
            operation = retrace.operation_of(self.model.distribute_strategy)
            texts = (texts or {}) | (_exchange(operation) if operation is not None else {})
            for tag, (state, text) in texts.items():
                if self._texts.get(tag) != state:
                    values.append(_text_value(tag, text))
                    self._texts[tag] = state
        self._writers[run].add_summary(tf.compat.v1.Summary(value=values), self._iterations())
        self._writers[run].flush()  # a run that is killed keeps its points


def _writer(folder, first_iteration):
    """A writer of event files that tells TensorBoard to drop points after `first_iteration`."""
    with tf.Graph().as_default():  # the writer refuses to be made in eager mode
        # Files are named by the second, and a run in phases may open two in one.
        suffix = f".{first_iteration}"
        writer = tf.compat.v1.summary.FileWriter(str(folder), filename_suffix=suffix)
    start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
    # TensorBoard drops what has this step or a later one; the point at `first_iteration` stays.
    writer.add_event(
        tf.compat.v1.Event(wall_time=time.time(), step=first_iteration + 1, session_log=start)
    )
    return writer


def _exchange(operation):
    """How gradients travel: ``{tag: (state, text)}``, a text for each new state."""
    name, plans = operation.compressor.name, operation.plan_fingerprints()
    texts = {"compression": (name, name)}
    if plans:
        predicted, measured = operation.predicted_timeline(), operation.timeline()
        # Measured times differ from step to step: those of the first one are shown.
        state = plans[-1], predicted, bool(measured)
        texts["bucket_plan"] = state, bucket_table(plans[-1], predicted, measured)
    return texts


def _text_value(tag, text):
    plugin = tf.compat.v1.SummaryMetadata.PluginData(plugin_name="text")
    return tf.compat.v1.Summary.Value(
        tag=tag,
        metadata=tf.compat.v1.SummaryMetadata(plugin_data=plugin),
        tensor=tf.make_tensor_proto(text, dtype=tf.string),
    )
