"""One worker's part of `small_messages`: ``python -m ... small_messages_worker SETTINGS.json``."""

import json
import sys
import time
from pathlib import Path

import tensorflow as tf

from experiments.allreduce.measuring import Meter, report, strategy_of
from tfscale.distribute import Hierarchical2DAllReduce
from tfscale.layers import GroupedSyncBatchNormalization

CHANNELS = 256
MESSAGES = 16  # One after another, as in the layers of a network.


def main(argv=None):
    (path,) = sys.argv[1:] if argv is None else argv
    settings = json.loads(Path(path).read_text())
    meter, rows = Meter(), []
    for plan in settings["plans"]:
        step = Step(**plan, gradient_bytes=settings["gradient_bytes"])
        meter.measure(step)  # Traces it.
        for _ in range(settings["repeats"]):
            meter.measure(step)
            rows.append({**plan, **step.times()})
        meter.say(f"measured {plan}")
    report(settings, meter.worker, {"rows": rows})


class Step:
    """Gradients and the messages of batch normalisation leave together; notes when each has come.

    Args:
        bucket_bytes: `int`, of each gradient, which is a bucket of its own; 0 for none at all.
        streams: `int`, buckets in flight.
        gradient_bytes: `int`, of all gradients.
    """

    def __init__(self, bucket_bytes, streams, gradient_bytes):
        operation = Hierarchical2DAllReduce(bucket_bytes=max(1, bucket_bytes), streams=streams)
        self._strategy, self._times = strategy_of(operation), {}
        count = gradient_bytes // bucket_bytes if bucket_bytes else 0
        with self._strategy.scope():
            self._variables = [
                tf.Variable(tf.zeros([bucket_bytes // 4]), name=f"layer{i}/kernel")
                for i in range(count)
            ]
            self._layers = [GroupedSyncBatchNormalization() for _ in range(MESSAGES)]
            for layer in self._layers:
                layer.build([None, CHANNELS])
        self._function = tf.function(lambda: self._strategy.run(self._replica))

    def __call__(self):
        self._times.clear()
        self._begin = time.monotonic()
        self._strategy.experimental_local_results(self._function())[0].numpy()

    def times(self):
        """Returns the seconds until each message had come, and until all gradients had."""
        since = {name: moment - self._begin for name, moment in self._times.items()}
        messages = [since[f"message {i}"] for i in range(MESSAGES)]
        return {"messages": messages, "gradients": since.get("gradients")}

    def _replica(self):
        notes = []
        if self._variables:
            # Ready at once: the most that can stand in a message's way.
            gradients = [tf.random.uniform(v.shape) for v in self._variables]
            sums = tf.distribute.get_replica_context().merge_call(self._reduce, args=(gradients,))
            notes.append(self._note("gradients", tf.stack([s[0] for s in sums])))
        x = tf.random.uniform([4, CHANNELS])
        for i, layer in enumerate(self._layers):
            x = layer(x, training=True)
            notes.append(self._note(f"message {i}", x))
        return tf.add_n(notes)

    def _reduce(self, strategy, gradients):
        pairs = list(zip(gradients, self._variables, strict=True))
        return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)

    def _note(self, name, tensor):
        def now(_):
            self._times[name] = time.monotonic()
            return self._times[name]

        return tf.numpy_function(now, [tf.reshape(tensor, [-1])[:1]], tf.float64, stateful=False)


if __name__ == "__main__":
    main()
