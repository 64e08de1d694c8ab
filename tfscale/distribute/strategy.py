"""`create_strategy`: one call that gives the right tf.distribute strategy on every machine."""

import os

import tensorflow as tf

from tfscale.distribute import _tf_private


def create_strategy(
    kind="auto", *, cross_device_ops=None, devices_per_worker=None, timeout_seconds=120
):
    """Creates a strategy (first form)."""
    count = devices_per_worker or int(os.environ.get("TFSCALE_DEVICES_PER_WORKER", "1"))
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster = resolver.cluster_spec().as_dict()
    if not _tf_private.runtime_started():
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
        )
    if kind == "multi_worker_mirrored" or (kind == "auto" and cluster):
        return _tf_private.MultiWorkerMirrored(
            resolver, "CPU", count, timeout_seconds=timeout_seconds
        )
    return _tf_private.Mirrored([f"CPU:{i}" for i in range(count)], cross_device_ops)
