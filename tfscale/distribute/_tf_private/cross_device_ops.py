"""TensorFlow's contracts for a cross-device operation, with the sum itself left to a subclass.

`LocalCrossDeviceOps` serves strategies of one process, `ClusterCrossDeviceOps` the multi-worker
strategy. Both hand dense values over to one function of tensors and keep TensorFlow's own code
for everything rare: sparse values, gather, broadcast, destinations on other devices.
"""

from typing import NamedTuple

import tensorflow as tf
from tensorflow.python.distribute import cross_device_ops, reduce_util
from tensorflow.python.distribute import values as value_lib
from tensorflow.python.ops import resource_variable_ops

from tfscale.distribute._tf_private.groups import regroup


class Destination(NamedTuple):
    """A variable that a sum goes into.

    Attributes:
        path: `str`, its name; the same on all workers, but that of several variables if the user
            has named them so.
        key: `str`, its own in this process.
    """

    path: str
    key: str


def destination_of(value):
    """Returns the `Destination` that a variable is; None for anything else."""
    is_variable = isinstance(value, value_lib.DistributedVariable)
    if is_variable or resource_variable_ops.is_resource_variable(value):
        return Destination(value.name.removesuffix(":0"), value._unique_id)
    return None


def _is_dense(value, count):
    values = getattr(value, "values", None)
    return (
        isinstance(value, value_lib.DistributedValues)
        and len(values) == count
        and all(isinstance(v, tf.Tensor) for v in values)
    )


def _is_mean(reduce_op):
    return reduce_op == reduce_util.ReduceOp.MEAN


class LocalCrossDeviceOps(tf.distribute.CrossDeviceOps):
    """Cross-device operation of one process; subclasses define `reduce_tensors`."""

    def reduce_tensors(self, values, devices, mean, names=None):
        """Sums dense tensors over replicas.

        Args:
            values: list with, for each value, the list of its replicas' tensors.
            devices: list of the replicas' device strings.
            mean: `bool`, divide the sum by the number of replicas.
            names: list with the `Destination` of each value (None where it is no variable) if
                the values came in one batch; None for a single reduction.

        Returns:
            List with, for each value, the list of the results on `devices`.
        """
        raise NotImplementedError

    def reduce_implementation(self, reduce_op, per_replica_value, destinations, options):
        devices = self._all_reduce_devices(per_replica_value, destinations)
        if devices is None:
            return self._to_one_device().reduce(reduce_op, per_replica_value, destinations)
        values = [per_replica_value.values]
        (result,) = self.reduce_tensors(values, devices, _is_mean(reduce_op))
        return regroup(result, mirrored=True)

    def batch_reduce_implementation(self, reduce_op, value_destination_pairs, options):
        results = [None] * len(value_destination_pairs)
        by_devices = {}
        for i, (value, destinations) in enumerate(value_destination_pairs):
            devices = self._all_reduce_devices(value, destinations)
            if devices is None:
                results[i] = self.reduce_implementation(reduce_op, value, destinations, options)
            else:
                by_devices.setdefault(devices, []).append(i)
        for devices, indices in by_devices.items():
            values = [value_destination_pairs[i][0].values for i in indices]
            names = [destination_of(value_destination_pairs[i][1]) for i in indices]
            reduced = self.reduce_tensors(values, devices, _is_mean(reduce_op), names)
            for i, result in zip(indices, reduced, strict=True):
                results[i] = regroup(result, mirrored=True)
        return results

    def _gather_implementation(self, per_replica_value, destinations, axis, options):
        return self._to_one_device()._gather(per_replica_value, destinations, axis, options)

    def _all_reduce_devices(self, value, destinations):
        """Returns the devices of an all-reduce, or None where it is another kind of reduction."""
        if not isinstance(destinations, value_lib.DistributedValues):
            return None
        devices = tuple(destinations._devices)
        if len(devices) < 2 or len(set(devices)) < len(devices):
            return None
        if not _is_dense(value, len(devices)):
            return None
        # In a graph a tensor need not have a device; replica order says where it belongs.
        placed = {v.device for v in value.values} - {""}
        return devices if placed <= set(devices) else None

    def _to_one_device(self):
        return tf.distribute.ReductionToOneDevice()


class ClusterCrossDeviceOps(cross_device_ops.CollectiveAllReduce):
    """Cross-device operation of one worker of a cluster.

    The multi-worker strategy insists on a `CollectiveAllReduce`; what that class does for sparse
    values, gather and `ReplicaContext.all_reduce` stays in force.

    Args:
        extended: the strategy's extended, while it initialises.
        reduce_tensors: function of ``(values, mean, names, sparse)``, as
            `LocalCrossDeviceOps.reduce_tensors`; `sparse` lists those of the same batch
            whose gradients are reduced elsewhere.
        owner: the object whose settings these are.
    """

    def __init__(self, extended, reduce_tensors, owner):
        stock = extended._cross_device_ops
        super().__init__(
            devices=stock._devices,
            group_size=stock._group_size,
            options=extended._communication_options,
            collective_keys=extended._collective_keys,
        )
        self._reduce_tensors = reduce_tensors
        self.owner = owner

    def batch_reduce_implementation(self, reduce_op, value_destination_pairs, options):
        values = [value for value, _ in value_destination_pairs]
        if not cross_device_ops._all_devices_match(value_destination_pairs):
            return super().batch_reduce_implementation(reduce_op, value_destination_pairs, options)
        names = [destination_of(destination) for _, destination in value_destination_pairs]
        return self._all_reduce_per_replica_values(reduce_op, values, options, names)

    def _all_reduce_per_replica_values(self, reduce_op, per_replica_values, options, names=None):
        results = [None] * len(per_replica_values)
        count = len(self._devices)
        dense = [i for i, value in enumerate(per_replica_values) if _is_dense(value, count)]
        rest = [i for i in range(len(results)) if i not in set(dense)]
        # Dense values first: with them the workers agree on all that has a name.
        if dense or names:
            with self._lock:
                reduced = self._reduce_tensors(
                    [per_replica_values[i].values for i in dense],
                    _is_mean(reduce_op),
                    names and [names[i] for i in dense],
                    names and [names[i] for i in rest if names[i]],
                )
            for i, result in zip(dense, reduced, strict=True):
                results[i] = regroup(result, mirrored=True)
        if rest:
            reduced = super()._all_reduce_per_replica_values(
                reduce_op, [per_replica_values[i] for i in rest], options
            )
            for i, result in zip(rest, reduced, strict=True):
                results[i] = result
        return results
