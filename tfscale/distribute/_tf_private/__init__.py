"""The parts of TensorFlow's private distribution API that tfscale needs, each behind a plain name.

Only this folder imports ``tensorflow.python`` or reads ``strategy.extended._*``, so that a new
TensorFlow release is met in one place. Use it as ``from tfscale.distribute import _tf_private``.
"""

from tfscale.distribute._tf_private.cross_device_ops import (
    ClusterCrossDeviceOps,
    LocalCrossDeviceOps,
    destination_of,
)
from tfscale.distribute._tf_private.device_datasets import leave_untuned
from tfscale.distribute._tf_private.distributed_datasets import first_replica_spec, strategy_of
from tfscale.distribute._tf_private.groups import (
    CollectiveGroup,
    collective_group,
    cross_device_ops_of,
    failed_workers,
    local_devices,
    num_workers,
    regroup,
    worker_index,
    worker_names,
)
from tfscale.distribute._tf_private.runtime import (
    delete_key,
    get_key,
    has_key_value_store,
    heartbeat_seconds,
    put_key,
    raw_variable,
    runtime_started,
    same_device,
    worker_errors,
)
from tfscale.distribute._tf_private.strategies import MirroredStrategy, MultiWorkerMirroredStrategy

__all__ = [
    "ClusterCrossDeviceOps",
    "CollectiveGroup",
    "LocalCrossDeviceOps",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "collective_group",
    "cross_device_ops_of",
    "delete_key",
    "destination_of",
    "failed_workers",
    "first_replica_spec",
    "get_key",
    "has_key_value_store",
    "heartbeat_seconds",
    "leave_untuned",
    "local_devices",
    "num_workers",
    "put_key",
    "raw_variable",
    "regroup",
    "runtime_started",
    "same_device",
    "strategy_of",
    "worker_errors",
    "worker_index",
    "worker_names",
]
