"""Who takes part in a job, and which part is ours: the cluster that ``TF_CONFIG`` describes."""

import dataclasses
import functools
import json
import logging
import os

from tfscale import tf_config

_LOG = logging.getLogger("tfscale")


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
    """The workers of a job and this process's place among them.

    ``worker_index = task_index + (1 if has_chief and task_type == "worker" else 0)``; worker 0
    leads. Evaluators stand outside: they are not counted in `num_workers`.

    Args:
        workers: `tuple` of ``"host:port"``, the chief first; the order of `worker_index`.
        has_chief: `bool`, whether ``workers[0]`` is the task ``chief``. Defaults to `False`.
        evaluators: `tuple` of ``"host:port"``. Defaults to none.
        task_type: ``"chief"``, ``"worker"`` or ``"evaluator"``. Defaults to ``"worker"``.
        task_index: `int`, the index within `task_type`. Defaults to 0.

    Raises:
        ValueError: from `from_env` and `from_json`, for any other form; it names ``TF_CONFIG``,
            the offending piece and what is allowed.

    Example:

    >>> config = ClusterConfig.from_env(
    ...     {"TF_CONFIG": '{"cluster": {"chief": ["a:1"], "worker": ["b:2"]},'
    ...                   ' "task": {"type": "worker", "index": 0}}'})
    >>> config.workers, config.worker_index, config.is_leader
    (('a:1', 'b:2'), 1, False)

    The format is TensorFlow's: https://www.tensorflow.org/guide/distributed_training#TF_CONFIG
    """

    workers: tuple[str, ...]
    has_chief: bool = False
    evaluators: tuple[str, ...] = ()
    task_type: str = "worker"
    task_index: int = 0

    def __post_init__(self):
        object.__setattr__(self, "workers", tuple(self.workers))
        object.__setattr__(self, "evaluators", tuple(self.evaluators))
        if not self.is_evaluator and not 0 <= self.worker_index < self.num_workers:
            raise ValueError(
                f"{self.task_type} {self.task_index} would be worker {self.worker_index} of "
                f"{self.num_workers}: {', '.join(self.workers)}"
            )

    @classmethod
    def single(cls):
        """One process that works alone: what an empty ``TF_CONFIG`` means."""
        return cls(workers=("localhost",))

    @classmethod
    def from_env(cls, environ=None):
        """Reads ``TF_CONFIG`` from `environ`, a mapping that defaults to `os.environ`."""
        text = (os.environ if environ is None else environ).get("TF_CONFIG")
        if text is None:
            _say_alone_once("TF_CONFIG is not set: not distributed, this process works alone.")
            return cls.single()
        return cls.from_json(text)

    @classmethod
    def from_json(cls, text):
        """Parses the JSON text of a ``TF_CONFIG``; blank text and ``{}`` mean `single`."""
        parsed = tf_config.parse(text)
        if parsed is None:
            _say_alone_once("TF_CONFIG is empty: not distributed, this process works alone.")
            return cls.single()
        tasks, task_type, task_index = parsed
        return cls(
            workers=(*tasks["chief"], *tasks["worker"]),
            has_chief=bool(tasks["chief"]),
            evaluators=tasks["evaluator"],
            task_type=task_type,
            task_index=task_index,
        )

    def to_json(self):
        """The normalised ``TF_CONFIG``, which `from_json` reads back; ``"{}"`` for `single`."""
        if self == ClusterConfig.single():
            return "{}"
        split = int(self.has_chief)
        addresses = (self.workers[:split], self.workers[split:], self.evaluators)
        cluster = {
            role: list(members)
            for role, members in zip(tf_config.ROLES, addresses, strict=True)
            if members
        }
        task = {"type": self.task_type, "index": self.task_index}
        return json.dumps({"cluster": cluster, "task": task})

    @property
    def num_workers(self):
        """How many workers train, evaluators not counted."""
        return len(self.workers)

    @property
    def worker_index(self):
        """This worker's place in `workers`; 0 leads. An evaluator has none."""
        if self.is_evaluator:
            raise ValueError(
                f"evaluator {self.task_index} is not one of the {self.num_workers} training "
                "workers, so it has no worker_index; ask is_evaluator first"
            )
        return self.task_index + (self.has_chief and self.task_type == "worker")

    @property
    def is_leader(self):
        """Whether this is worker 0, the one that writes logs and keeps the checkpoints."""
        return not self.is_evaluator and self.worker_index == 0

    @property
    def is_evaluator(self):
        """Whether this process evaluates checkpoints beside the training workers."""
        return self.task_type == "evaluator"

    @property
    def is_distributed(self):
        """Whether other processes take part."""
        return self.num_workers > 1 or self.is_evaluator

    @property
    def address(self):
        """This process's own ``host:port``; empty for an evaluator that the cluster omits."""
        if not self.is_evaluator:
            return self.workers[self.worker_index]
        return self.evaluators[self.task_index] if self.evaluators else ""


@functools.cache
def _say_alone_once(text):
    """Logs it once a process, which several parts of it ask for their cluster."""
    _LOG.info("%s", text)
