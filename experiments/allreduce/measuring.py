"""How every method is measured: together from a barrier, drained, with its bytes and CPU time."""

import dataclasses
import json
import logging
import time
from pathlib import Path

import tensorflow as tf

from experiments.allreduce.lab import parse_counters
from tfscale.cluster import ClusterConfig
from tfscale.distribute import create_strategy

# Where all workers share a machine, one may trace its step minutes after another.
TIMEOUT_SECONDS = 600


@dataclasses.dataclass(frozen=True)
class Sample:
    """What one worker saw of one all-reduce or step.

    Attributes:
        seconds: `float`, from the barrier until this worker has its results.
        sent: `int`, bytes that its interface sent until all workers had theirs.
        cpu_seconds: `float`, of this process, user and system, in the same time.
    """

    seconds: float
    sent: int
    cpu_seconds: float


class Meter:
    """Measures one worker's part of something that all workers do.

    It has a strategy of its own for barriers, so that those of all methods are the same.
    """

    def __init__(self):
        # One step of each method and pack size is traced, which it takes for a leak.
        logging.getLogger("tensorflow").addFilter(lambda record: "retracing" not in record.msg)
        self._notes = _Notes()
        self.worker = ClusterConfig.from_env().worker_index
        self.strategy = strategy_of("stock")
        strategy = self.strategy

        @tf.function
        def meet():
            ones = strategy.run(lambda: tf.constant(1.0))
            return strategy.reduce("sum", ones, axis=None)

        self._meet = meet
        self.barrier()

    def barrier(self):
        """Returns once all workers are here."""
        self._meet().numpy()

    def measure(self, function):
        """Returns ``(Sample, result)`` of a function that returns when its work is done."""
        self.barrier()
        sent, cpu, start = _sent_bytes(), time.process_time(), time.monotonic()
        result = function()
        seconds = time.monotonic() - start
        # Slower workers may still take what this one has to send on.
        self.barrier()
        return Sample(seconds, _sent_bytes() - sent, time.process_time() - cpu), result

    def take_notes(self):
        """Returns the lines that tfscale has logged since the last call, such as a bucket plan."""
        lines, self._notes.lines = self._notes.lines, []
        return lines

    def say(self, text):
        """Prints a line of progress; the benchmark shows worker 0's."""
        print(text, flush=True)


class _Notes(logging.Handler):
    """Shows and keeps what tfscale logs."""

    def __init__(self):
        super().__init__()
        self.lines = []
        logger = logging.getLogger("tfscale")
        logger.setLevel(logging.INFO)
        logger.addHandler(self)

    def emit(self, record):
        self.lines += record.getMessage().splitlines()
        print(record.getMessage(), flush=True)


def strategy_of(operation):
    """Returns a strategy with this all-reduce, on the cluster of this process."""
    return create_strategy(
        "auto", cross_device_ops=operation or "stock", timeout_seconds=TIMEOUT_SECONDS
    )


def report(settings, worker, result):
    """Leaves this worker's result where the benchmark looks for it."""
    path = Path(settings["folder"]) / f"worker-{worker}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result))
    partial.rename(path)


def _sent_bytes():
    with open("/proc/net/dev") as file:
        return parse_counters(file.read()).sent
