"""One method under test: a strategy of its own on the same cluster, and the facts of its row."""

from experiments.allreduce.measuring import strategy_of
from experiments.allreduce.methods import payload_bytes
from tfscale.distribute import Hierarchical2DAllReduce, plan_of


class Trial:
    """What both modes do with a method; they add how it runs.

    Attributes:
        method: `methods.Method`, or None for training without any exchange.
        operation: its `Hierarchical2DAllReduce`, or None.
        strategy: `tf.distribute.Strategy`.
        pack: `int`, bytes of stock's packs; 0 is one pack.
        notes: `list` of the lines that tfscale logged while it was prepared: of adaptive buckets
            the plan, with latency and bandwidth as they were measured.
    """

    def __init__(self, method):
        self.method = method
        self.operation = None
        if method and method.family == "2d":
            self.operation = Hierarchical2DAllReduce(**method.arguments())
        self.strategy = strategy_of(self.operation)
        self.notes = []
        self.pack = 0 if method is None or method.pack == "best" else method.pack

    @property
    def is_planning(self):
        """Whether adaptive buckets are still being measured."""
        return self.operation is not None and self.operation.wants_measurement

    def facts(self, shapes, workers, devices_per_worker):
        """Returns what a row says of the method besides its times; call it after the last step."""
        if self.method is None:
            return {}
        facts = {}
        if self.operation is None:
            facts["bytes_per_pack"] = self.pack
        else:
            facts["streams"] = self.operation.streams
            facts["bucket_bytes"] = self.operation.bucket_bytes
            # The last plan: adaptive buckets begin with others.
            numbers = [number for *_, number in plan_of(self.strategy)["plans"][-1]]
            facts["buckets"] = len({n for n in numbers if n >= 0}) + numbers.count(-1)
            facts["notes"] = self.notes
            facts["lossy"] = self.operation.compressor.lossy
        facts["payload_bytes"] = payload_bytes(
            self.method,
            shapes,
            workers,
            devices_per_worker,
            self.operation and self.operation.compressor,
        )
        return facts
