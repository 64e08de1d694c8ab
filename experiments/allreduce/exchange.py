"""The mode ``allreduce``: the time of one all-reduce of a model's gradients, by every method."""

import dataclasses

import tensorflow as tf

from experiments.allreduce.measuring import Meter, report
from experiments.allreduce.methods import PACKS, parse_method
from experiments.allreduce.trial import Trial
from experiments.rates import format_bytes
from tfscale.distribute import gather_values

_MOST_WARM_UPS = 20


class ExchangeTrial(Trial):
    """A method with a traced all-reduce of given gradients into variables."""

    def __init__(self, method, gradients, variables):
        super().__init__(method)
        self._gradients = _per_replica(self.strategy, gradients)
        self._variables = variables
        self.step = self.step_with_pack(self.pack)

    def step_with_pack(self, pack):
        """Returns the step with another size of stock's packs."""
        options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=pack)
        strategy, variables = self.strategy, self._variables

        def in_batch(strategy, *gradients):
            # Into variables, as an optimizer does: only that is compressed.
            pairs = list(zip(gradients, variables, strict=True))
            return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs, options)

        def on_replica(*gradients):
            # An op of its own device: an argument has none, and would not count as in place.
            gradients = [tf.identity(gradient) for gradient in gradients]
            sums = tf.distribute.get_replica_context().merge_call(in_batch, args=gradients)
            # One element of every sum: all of them have to arrive.
            return tf.add_n([tf.reshape(one, [-1])[0] for one in sums])

        @tf.function
        def step(gradients):
            return strategy.experimental_local_results(strategy.run(on_replica, args=gradients))

        def run():
            return [float(x) for x in step(self._gradients)]

        return run


def measure(settings):
    """Measures all methods of `settings`, in turns, and reports."""
    meter = Meter()
    shapes = [tuple(shape) for shape in settings["shapes"]]
    gradients, variables = gradients_of(meter, shapes)
    methods = [parse_method(name) for name in settings["methods"]]
    trials, checksums = [], {}
    for method in methods:
        meter.say(f"warm-up {method.name} ...")
        trial = ExchangeTrial(method, gradients, variables)
        sample, checksum = meter.measure(trial.step)
        meter.say(f"warm-up {method.name}: {sample.seconds:.2f} s, tracing included")
        _settle(meter, trial)
        trial.notes = meter.take_notes()
        if method.pack == "best":
            _choose_pack(meter, trial)
        trials.append(trial)
        checksums[method.name] = checksum[0]
    samples = {method.name: [] for method in methods}
    for repeat in range(settings["repeats"]):
        for trial in trials:
            sample, _ = meter.measure(trial.step)
            samples[trial.method.name].append(dataclasses.asdict(sample))
            meter.say(
                f"repeat {repeat + 1}/{settings['repeats']} {trial.method.name}: "
                f"{sample.seconds:.3f} s"
            )
    cluster = settings["workers"], settings["devices_per_worker"]
    facts = {
        trial.method.name: {
            **trial.facts(shapes, *cluster),
            "checksum": checksums[trial.method.name],
        }
        for trial in trials
    }
    report(settings, meter.worker, {"samples": samples, "facts": facts})


def _settle(meter, trial):
    """Runs on until a step is as any later one: buffers grown, adaptive buckets planned."""
    for _ in range(_MOST_WARM_UPS):
        meter.measure(trial.step)
        if not trial.is_planning:
            return
        if trial.operation.after_step(trial.strategy):
            trial.step = trial.step_with_pack(trial.pack)
            meter.measure(trial.step)  # Traces it.
    raise RuntimeError(f"{trial.method.name} has made no bucket plan after {_MOST_WARM_UPS} steps")


def _choose_pack(meter, trial):
    """Tries sizes of packs once each and keeps the one whose slowest worker is the fastest."""
    tried = []
    for pack in PACKS:
        step = trial.step_with_pack(pack)
        meter.measure(step)  # Traces it.
        sample, _ = meter.measure(step)
        slowest = max(gather_values(meter.strategy, "seconds of a pack size", sample.seconds))
        meter.say(f"{trial.method.name}: packs of {format_bytes(pack)}: {slowest:.3f} s")
        tried.append((slowest, pack, step))
    _, trial.pack, trial.step = min(tried, key=lambda item: item[0])


def gradients_of(meter, shapes):
    """Returns ``(gradients, variables)``: a list of tensors per local device, and where they go.

    All methods share them: 25 M parameters on each replica are 200 MB already.
    """
    strategy = meter.strategy
    devices = strategy.extended.worker_devices
    gradients = []
    for index, device in enumerate(devices):
        replica = meter.worker * len(devices) + index
        with tf.device(device):
            gradients.append(
                [
                    tf.random.stateless_normal(shape, [replica, number], stddev=0.01)
                    for number, shape in enumerate(shapes)
                ]
            )
    with strategy.scope():
        variables = [
            tf.Variable(tf.zeros(shape), trainable=True, name=f"parameter_{number}")
            for number, shape in enumerate(shapes)
        ]
    return gradients, variables


def _per_replica(strategy, gradients):
    """The same tensors as values of another strategy."""
    count = len(gradients)

    def values(number):
        return strategy.experimental_distribute_values_from_function(
            lambda context: gradients[context.replica_id_in_sync_group % count][number]
        )

    return [values(number) for number in range(len(gradients[0]))]
