"""Groups of workers that talk through TensorFlow's collectives; what a strategy knows of itself."""

import itertools

import tensorflow as tf
from tensorflow.python.distribute import cross_device_utils, distribute_utils
from tensorflow.python.distribute import values as value_lib
from tensorflow.python.ops import collective_ops

from tfscale.distribute._tf_private.runtime import worker_errors

# Collectives of two strategies of one process must never meet: each strategy takes its own
# range of group keys. Workers create their strategies in the same order, so ranges agree.
_KEYS_PER_STRATEGY = 100_000
_strategy_count = itertools.count(1)


def next_collective_key_base():
    """Returns the first group key of a range that no other strategy of this process uses."""
    return _KEYS_PER_STRATEGY * next(_strategy_count)


class CollectiveGroup:
    """One ordered stream of collectives of one local device among `size` workers.

    Collectives of one group run one after another; those of different groups run concurrently.
    Every member has to call the same methods in the same order.

    Args:
        collective_keys: the strategy's `CollectiveKeys`.
        group_key: `int`, the key that all members of this group share.
        size: `int`, number of members. A group of one needs no communication.
        rank: `int`, this member's place in the group: which row of an all-gather is its own.
        device: `str`, the local device whose tensors travel.
        options: `tf.distribute.experimental.CommunicationOptions`.
    """

    def __init__(self, collective_keys, group_key, size, rank, device, options):
        self.size = size
        self.rank = rank
        self.device = device
        self._options = options
        self._launcher = None
        if size > 1:
            self._launcher = cross_device_utils.CollectiveReplicaLauncher(
                group_key, size, collective_keys, device, options
            )

    def all_reduce(self, x):
        """Returns the sum of every member's `x`; the shape may be unknown."""
        if self._launcher is None:
            return tf.identity(x)
        return self._launcher.all_reduce(x)

    def all_gather(self, x):
        """Returns the members' `x` (same shape everywhere) concatenated on axis 0, by rank."""
        if self._launcher is None:
            return tf.identity(x)
        gathered = self._launcher._all_gather(x, self._options)
        if x.shape.rank is None or x.shape[0] is None:
            return gathered
        # The op's shape function leaves axis 0 unknown.
        return tf.ensure_shape(gathered, [x.shape[0] * self.size] + x.shape[1:].as_list())

    def exchange(self, x):
        """As `all_gather`, in one step: each member sends its `x` straight to all others.

        A ring passes everything on ``size - 1`` times, each time after a wait. It also loads
        each host's connections unevenly beside the all-to-all that goes before.
        """
        if self._launcher is None:
            return tf.identity(x)
        copies = tf.tile(x[tf.newaxis], [self.size] + [1] * x.shape.rank)
        return tf.reshape(self.all_to_all(copies), [self.size * x.shape[0], *x.shape[1:]])

    def all_to_all(self, x):
        """Sends ``x[j]`` to rank j and returns what came from each rank; `x` is ``[size, ...]``."""
        if self._launcher is None:
            return tf.identity(x)
        launcher = self._launcher
        with tf.device(self.device):
            received = collective_ops.all_to_all_v2(
                x,
                launcher._group_size,
                launcher._group_key,
                launcher._next_instance_key(),
                communication_hint=self._options.implementation.value,
                timeout=self._options.timeout_seconds or 0,
                ordering_token=launcher._get_ordering_token(),
            )
        return tf.ensure_shape(received, x.shape)


def collective_group(strategy, name, size, device, members_index, rank=None):
    """Returns this worker's group named `name` on `device`; call it alike on every worker.

    The workers are split into ``num_workers / size`` sibling groups. Keys of all siblings are
    allocated, in the same order on every worker, because the key counter of the strategy is what
    makes the members agree on a key without talking.

    Args:
        strategy: a strategy or its `extended`.
        name: `str`, unique for the purpose; the same on every worker.
        size: `int`, workers in a group; must divide the number of workers.
        device: `str`, the local device that takes part.
        members_index: `int`, which of the sibling groups this worker belongs to.
        rank: `int`, how many members of the group come before this worker; None where groups
            are made of consecutive workers. TensorFlow ranks members by their task.

    Raises:
        ValueError: if `size` does not divide the workers, or there is no such sibling.
    """
    extended = extended_of(strategy)
    workers = num_workers(extended)
    if size < 1 or workers % size:
        raise ValueError(f"group {name!r}: {size} does not divide the {workers} workers")
    siblings = workers // size
    if not 0 <= members_index < siblings:
        raise ValueError(
            f"group {name!r}: members_index {members_index} is not in 0..{siblings - 1} "
            f"({workers} workers / {size})"
        )
    keys = extended._collective_keys
    allocated = [keys.get_group_key((device, f"{name}/{j}")) for j in range(siblings)]
    options = extended._communication_options
    rank = worker_index(extended) % size if rank is None else rank
    return CollectiveGroup(keys, allocated[members_index], size, rank, device, options)


def extended_of(strategy):
    """Returns the `StrategyExtended` of a strategy; an extended is returned as it is."""
    return getattr(strategy, "extended", strategy)


def local_devices(strategy):
    """Returns this worker's replica devices, in replica order."""
    return tuple(extended_of(strategy).worker_devices)


def worker_index(strategy):
    """Returns this process's worker index (0 for strategies of one process)."""
    return getattr(extended_of(strategy), "_id_in_cluster", 0)


def num_workers(strategy):
    """Returns the number of worker processes that run this strategy together."""
    return int(getattr(extended_of(strategy), "_num_workers", 1))


def worker_names(strategy):
    """Returns each worker's ``"worker 1 (host:port)"``, in worker order, for messages."""
    spec = getattr(extended_of(strategy), "_cluster_spec", None)
    jobs = spec.as_dict() if spec else {}
    addresses = [*jobs.get("chief", []), *jobs.get("worker", [])]
    if len(addresses) != num_workers(strategy):
        return [f"worker {i}" for i in range(num_workers(strategy))]
    return [f"worker {i} ({address})" for i, address in enumerate(addresses)]


def failed_workers(strategy):
    """Returns the indices of the workers whose process no longer answers (after some 10 s)."""
    jobs = extended_of(strategy)._cluster_spec.as_dict()
    counts = [(job, len(jobs[job])) for job in ("chief", "worker") if job in jobs]
    try:
        return sorted(worker_errors(counts))
    except tf.errors.OpError:
        # The coordination service itself is gone; it lives in worker 0.
        return [0]


def cross_device_ops_of(strategy):
    """Returns the strategy's cross-device operation, or None where it has none (TPU, default)."""
    return getattr(extended_of(strategy), "_cross_device_ops", None)


def regroup(values, mirrored=False):
    """Joins one value (or nest of values) per local replica into distributed values.

    Args:
        values: list with one tensor or nest for each local replica.
        mirrored: `bool`, True where the replicas' values are known to be equal.
    """
    wrap_class = value_lib.Mirrored if mirrored else value_lib.PerReplica
    return distribute_utils.regroup(tuple(values), wrap_class=wrap_class)
