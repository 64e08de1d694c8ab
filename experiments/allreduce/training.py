"""The mode ``train``: steps of Keras's fit by every method, and without any exchange."""

import dataclasses
import statistics
import time

import tensorflow as tf

from experiments.allreduce import exchange
from experiments.allreduce.emulated_model import WIDTH, Recorder, emulated_model
from experiments.allreduce.measuring import Meter, Sample, report
from experiments.allreduce.methods import PACKS, parse_method
from experiments.allreduce.trial import Trial
from experiments.rates import format_bytes
from tfscale import keras
from tfscale.distribute import gather_values

NO_EXCHANGE = "no exchange"
BATCH = 32  # Examples of a replica: samples/s are steps/s times it.
_WARM_UP_STEPS = 2
_MOST_WARM_UPS = 8


class TrainingTrial(Trial):
    """A method with a model, ready for `fit`."""

    def __init__(self, name, settings, compute_seconds):
        super().__init__(None if name == NO_EXCHANGE else parse_method(name))
        self.name = name
        self.recorder = Recorder()
        with self.strategy.scope():
            self.model = emulated_model(
                [tuple(shape) for shape in settings["shapes"]],
                compute_seconds,
                settings["forward_share"],
                settings["compute"],
                self.recorder,
            )
        self.use_pack(self.pack)
        self.data = self.strategy.distribute_datasets_from_function(_batches)

    def use_pack(self, pack):
        """Compiles the model; stock exchanges in packs of so many bytes."""
        self.pack = pack
        optimizer = keras.optimizers.SGD(1e-4)
        if self.method is None:
            optimizer = _SeparateSGD(1e-4)
        elif pack:
            optimizer = _PackedSGD(pack)
        with self.strategy.scope():
            self.model.compile(optimizer, "mse")

    def fit(self, steps):
        """Trains for some steps; returns the `Clock` of them."""
        clock = Clock()
        self.model.fit(self.data, steps_per_epoch=steps, verbose=0, callbacks=[clock])
        return clock


class Clock(keras.callbacks.Callback):
    """When each step ended.

    Attributes:
        ends: list of seconds since 1970; the first is that of the first step's beginning.
    """

    def __init__(self):
        super().__init__()
        self.ends = []

    def on_train_batch_begin(self, batch, logs=None):
        if not self.ends:
            self.ends.append(time.time())

    def on_train_batch_end(self, batch, logs=None):
        float(logs["loss"])
        self.ends.append(time.time())

    @property
    def seconds(self):
        """Of each step but the first, which starts `fit` as well."""
        return [b - a for a, b in zip(self.ends[1:], self.ends[2:], strict=False)]


class _SeparateSGD(keras.optimizers.SGD):
    """Updates each replica by its own gradient: what a step costs if nothing is exchanged."""

    def aggregate_gradients(self, grads_and_vars):
        return list(grads_and_vars)


class _PackedSGD(keras.optimizers.SGD):
    """Sums as Keras does, in packs of a given size."""

    def __init__(self, pack):
        super().__init__(1e-4)
        self._options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=pack)

    def aggregate_gradients(self, grads_and_vars):
        gradients, variables = zip(*grads_and_vars, strict=True)
        context = tf.distribute.get_replica_context()
        sums = context.all_reduce(tf.distribute.ReduceOp.SUM, list(gradients), self._options)
        return list(zip(sums, variables, strict=True))


def measure(settings):
    """Measures all methods of `settings`, in turns, and reports."""
    meter = Meter()
    compute_seconds = settings["compute_seconds"]
    if compute_seconds == "auto":
        compute_seconds = _half_of_stock(meter, settings)
    trials = []
    for name in [NO_EXCHANGE, *settings["methods"]]:
        meter.say(f"warm-up {name} ...")
        trial = TrainingTrial(name, settings, compute_seconds)
        _warm_up(meter, trial)
        trial.notes = meter.take_notes()
        trials.append(trial)
    samples = {trial.name: [] for trial in trials}
    for repeat in range(settings["repeats"]):
        for trial in trials:
            steps = settings["steps"] + 1
            whole, clock = meter.measure(lambda trial=trial, steps=steps: trial.fit(steps))
            for seconds in clock.seconds:
                sample = Sample(seconds, whole.sent / steps, whole.cpu_seconds / steps)
                samples[trial.name].append(dataclasses.asdict(sample))
            meter.say(
                f"repeat {repeat + 1}/{settings['repeats']} {trial.name}: "
                f"{statistics.median(clock.seconds):.3f} s a step"
            )
    facts = {trial.name: _facts(trial, settings, compute_seconds) for trial in trials}
    result = {"samples": samples, "facts": facts}
    if settings["timeline"]:
        result["timeline"] = _timeline(meter, trials)
    report(settings, meter.worker, result)


def _half_of_stock(meter, settings):
    """Half of the median time of stock's all-reduce: communication twice the computation."""
    shapes = [tuple(shape) for shape in settings["shapes"]]
    trial = exchange.ExchangeTrial(parse_method("stock"), *exchange.gradients_of(meter, shapes))
    meter.measure(trial.step)
    seconds = statistics.median(meter.measure(trial.step)[0].seconds for _ in range(3))
    slowest = max(gather_values(meter.strategy, "seconds of stock's all-reduce", seconds))
    meter.say(f"stock's all-reduce takes {slowest:.3f} s; computation {slowest / 2:.3f} s a step")
    return slowest / 2


def _warm_up(meter, trial):
    sample, _ = meter.measure(lambda: trial.fit(_WARM_UP_STEPS))
    meter.say(f"warm-up {trial.name}: {sample.seconds:.2f} s, tracing included")
    if trial.method and trial.method.pack == "best":
        _choose_pack(meter, trial)
    fits = 0
    while trial.is_planning:
        trial.fit(_WARM_UP_STEPS)
        fits += 1
        if fits == _MOST_WARM_UPS:
            raise RuntimeError(f"{trial.name} has made no bucket plan after {2 * fits} steps")


def _choose_pack(meter, trial):
    tried = []
    for pack in PACKS:
        trial.use_pack(pack)
        trial.fit(1)  # Traces it.
        _, clock = meter.measure(lambda: trial.fit(2))
        slowest = max(gather_values(meter.strategy, "seconds of a pack size", clock.seconds[0]))
        meter.say(f"{trial.name}: packs of {format_bytes(pack)}: {slowest:.3f} s a step")
        tried.append((slowest, pack))
    trial.use_pack(min(tried)[1])
    trial.fit(_WARM_UP_STEPS)


def _facts(trial, settings, compute_seconds):
    shapes = [tuple(shape) for shape in settings["shapes"]]
    return {
        "samples_per_step": BATCH * trial.strategy.num_replicas_in_sync,
        "compute_seconds": compute_seconds,
        "forward_share": settings["forward_share"],
        **trial.facts(shapes, settings["workers"], settings["devices_per_worker"]),
    }


def _timeline(meter, trials):
    """When the buckets of one more step travelled, under the first 2d method."""
    trial = next(trial for trial in trials if trial.operation is not None)
    trial.operation.record_timeline()
    trial.fit(_WARM_UP_STEPS)
    trial.recorder.on = True
    _, clock = meter.measure(lambda: trial.fit(_WARM_UP_STEPS))
    start, end = clock.ends[-2:]
    return {
        "method": trial.name,
        "step": [start, end],
        "layers": [span for span in trial.recorder.spans if span[0] >= start],
        "streams": trial.operation.streams,
        "buckets": trial.operation.timeline(),
    }


def _batches(context):
    size = context.get_per_replica_batch_size(BATCH * context.num_replicas_in_sync)
    x = tf.random.stateless_normal([size, WIDTH], [0, context.input_pipeline_id])
    return tf.data.Dataset.from_tensors((x, tf.zeros_like(x))).repeat()
