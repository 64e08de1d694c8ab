"""Exchange of small vectors within groups of consecutive replicas, one message each.

Replicas are numbered worker by worker, so a group lies inside a worker (``g`` divides the devices
of a worker: plain ops on its devices) or is made of whole workers (the worker's replicas are
joined on its first device, which takes part in one collective with the other workers).

Every worker has to make the same exchanges in the same order. It does, because all trace the same
program: the collectives of one group size form one stream, which TensorFlow keeps in the order of
tracing. Streams of different sizes are independent. This was run on CPU; on GPU, whether NCCL
keeps streams of several sizes apart is untested.
"""

import weakref

import tensorflow as tf

from tfscale.distribute import _tf_private
from tfscale.topology import Topology

# Keyed by the extended, which lives as long as the strategy; retracing finds the groups here and
# allocates no new keys.
_groups = weakref.WeakKeyDictionary()


def replica_groups(strategy, group_size=None):
    """Returns the groups of `group_size` consecutive replicas of `strategy`.

    The first call for a size allocates the keys of its collectives: make the first calls in the
    same order on every worker.

    Args:
        strategy: `tf.distribute.Strategy` with synchronous replicas.
        group_size: `int`, replicas in a group; None means all of them.

    Returns:
        `ReplicaGroups`.

    Raises:
        ValueError: if the size does not divide the replicas, if a group would hold parts of
            several workers, or if the replicas of the strategy are not synchronous.

    Example:
        >>> strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)])
        >>> pairs = replica_groups(strategy, 2)
        >>> def replica_fn():
        ...     replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        ...     return pairs.sum(tf.cast([replica], tf.float32))
        >>> strategy.experimental_local_results(strategy.run(replica_fn))  # 0+1, 0+1, 2+3, 2+3
        (<tf.Tensor: [1.]>, <tf.Tensor: [1.]>, <tf.Tensor: [5.]>, <tf.Tensor: [5.]>)
    """
    sizes = _groups.setdefault(strategy.extended, {})
    size = strategy.num_replicas_in_sync if group_size is None else group_size
    if size not in sizes:
        if isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy):
            raise ValueError(
                "groups of replicas need synchronous replicas, which ParameterServerStrategy does "
                "not have; use MirroredStrategy, MultiWorkerMirroredStrategy or TPUStrategy"
            )
        kind = _TPUGroups if isinstance(strategy, tf.distribute.TPUStrategy) else _MergedGroups
        sizes[size] = kind(strategy, size)
    return sizes[size]


class ReplicaGroups:
    """Gathers or sums one vector per replica within each group; see `replica_groups`.

    `gather` and `sum` are called in replica context, by every replica, outside ``tf.cond``,
    ``tf.while_loop`` and inner ``tf.function``s. Gradients do not flow through them.

    Attributes:
        group_size: `int`.
    """

    def __init__(self, strategy, group_size):
        replicas = strategy.num_replicas_in_sync
        workers = _tf_private.num_workers(strategy)
        self._members = Topology(workers, replicas // workers).groups(group_size)
        self.group_size = group_size

    def gather(self, x):
        """Returns the vectors of this replica's group, ``[group_size, k]``, for its own ``[k]``."""
        with tf.name_scope("replica_groups_gather"):
            return tf.stop_gradient(self._exchange(x, gather=True))

    def sum(self, x):
        """Returns the sum, ``[k]``, over this replica's group of their ``[k]``."""
        with tf.name_scope("replica_groups_sum"):
            return tf.stop_gradient(self._exchange(x, gather=False))

    def gather_local(self, rows):
        """Gathers outside replicas: eagerly or in a ``tf.function``, on every worker.

        Args:
            rows: list with the vector ``[k]`` of each local replica.

        Returns:
            list with ``[group_size, k]`` for each local replica.
        """
        raise NotImplementedError

    def _exchange(self, x, gather):
        if self.group_size == 1:
            return x[tf.newaxis] if gather else x
        if x.shape.rank != 1 or x.shape[0] is None:
            raise ValueError(f"expected a vector of known length, got shape {x.shape}")
        return self._message(tf.distribute.get_replica_context(), x, gather)

    def _message(self, context, x, gather):
        raise NotImplementedError


class _MergedGroups(ReplicaGroups):
    """By `merge_call`: plain ops inside a worker, a collective between workers."""

    def __init__(self, strategy, group_size):
        super().__init__(strategy, group_size)
        devices = _tf_private.local_devices(strategy)
        self._devices, self._collective = devices, None
        self._local_size = min(group_size, len(devices))
        workers = group_size // len(devices)
        if workers > 1:
            self._collective = _tf_private.collective_group(
                strategy,
                f"replica_groups/{group_size}",
                workers,
                devices[0],
                _tf_private.worker_index(strategy) // workers,
            )

    def _message(self, context, x, gather):
        try:
            return context.merge_call(self._merge_gather if gather else self._merge_sum, args=(x,))
        except RuntimeError as error:
            if "merge_call" not in str(error):
                raise
            raise RuntimeError(
                "replicas cannot exchange statistics from inside a tf.cond, a tf.while_loop or a "
                "tf.function that is called in strategy.run: wrap strategy.run itself into the "
                f"tf.function, and branch on Python values ({error})"
            ) from error

    def _merge_gather(self, strategy, x):
        rows = strategy.experimental_local_results(x)
        return _tf_private.regroup(self.gather_local(rows))

    def _merge_sum(self, strategy, x):
        rows = strategy.experimental_local_results(x)
        return _tf_private.regroup(self._by_group(rows, self._sum_rows))

    def gather_local(self, rows):
        return self._by_group(rows, self._gather_rows)

    def _gather_rows(self, rows):
        rows = tf.stack(rows)
        return rows if self._collective is None else self._collective.all_gather(rows)

    def _sum_rows(self, rows):
        total = tf.add_n(rows)
        return total if self._collective is None else self._collective.all_reduce(total)

    def _by_group(self, rows, exchange):
        """Exchanges on the first device of each local group; copies to the others."""
        results = []
        for start in range(0, len(rows), self._local_size):
            members = slice(start, start + self._local_size)
            with tf.device(self._devices[start]):
                result = exchange(rows[members])
            for device in self._devices[members]:
                with tf.device(device):
                    results.append(tf.identity(result))
        return results


class _TPUGroups(ReplicaGroups):
    """By XLA's all-reduce with a group assignment; all shapes are static.

    No TPU was at hand: tests check the op and the groups in the traced graph.
    """

    def gather_local(self, rows):
        # One process drives all TPU replicas: outside of them, every row is at hand.
        groups = [tf.stack([rows[i] for i in members]) for members in self._members]
        return [groups[i // self.group_size] for i in range(len(rows))]

    def _message(self, context, x, gather):
        if gather:
            # There is no all-gather with groups: each replica fills its own row of zeros. Adding
            # zeros changes no bit. Not a product with a one-hot vector: 0 * inf would be NaN.
            row = tf.cast(context.replica_id_in_sync_group, tf.int32) % self.group_size
            own = tf.equal(tf.range(self.group_size), row)[:, tf.newaxis]
            x = tf.where(own, x[tf.newaxis], tf.zeros_like(x)[tf.newaxis])
        return tf.raw_ops.CrossReplicaSum(
            input=x, group_assignment=tf.constant(self._members, tf.int32)
        )
