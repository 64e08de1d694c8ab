"""TensorFlow's strategies with our all-reduce inside and any number of local devices."""

import contextlib
import faulthandler
import io
import logging
import signal
import sys
import threading

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.distribute import (
    collective_all_reduce_strategy,
    mirrored_strategy,
    multi_worker_util,
)
from tensorflow.python.eager import context

from tfscale.distribute._tf_private.cross_device_ops import LocalCrossDeviceOps
from tfscale.distribute._tf_private.groups import next_collective_key_base

_logger = logging.getLogger("tfscale")

# The gRPC server of a process starts once; a later strategy of the same cluster shares it, and
# with it this setting.
_server_heartbeat_seconds = None


class _MirroredExtended(mirrored_strategy.MirroredExtended):
    def _get_cross_device_ops(self, value):
        """Stock TensorFlow sends int32 elsewhere, and refuses it in one batch with floats."""
        if isinstance(self._cross_device_ops, LocalCrossDeviceOps) and self._use_merge_call():
            return self._cross_device_ops
        return super()._get_cross_device_ops(value)


class MirroredStrategy(tf.distribute.MirroredStrategy):
    """`MirroredStrategy` whose reductions all reach `cross_device_ops`, several to a process.

    Args:
        devices: `tuple` of device strings.
        cross_device_ops: a `tf.distribute.CrossDeviceOps`; None keeps TensorFlow's own.
    """

    def __init__(self, devices, cross_device_ops=None):
        # The attribute is read by the extended: a second strategy of another size in the same
        # process would otherwise reuse the group keys and fail on the group's size.
        self._collective_key_base = next_collective_key_base()
        extended = _MirroredExtended(self, list(devices), cross_device_ops)
        # Not MirroredStrategy.__init__, which hard-codes its extended class.
        tf.distribute.Strategy.__init__(self, extended)


class _MultiWorkerExtended(collective_all_reduce_strategy.CollectiveAllReduceExtended):
    def __init__(
        self,
        container,
        cluster_resolver,
        options,
        devices,
        bind,
        timeout_seconds,
        heartbeat_seconds,
    ):
        self._device_kind, self._device_count = devices
        self._bind = bind
        self._timeout_seconds = timeout_seconds
        self._heartbeat_seconds = heartbeat_seconds
        super().__init__(container, cluster_resolver, options)

    def _initialize_local_devices(self, cluster_resolver, worker_device):
        """Stock TensorFlow gives a worker one CPU device, or all of its GPUs."""
        kind = self._device_kind
        names = [f"{worker_device}/device:{kind}:{i}" for i in range(self._device_count)]
        return tuple(names), kind

    def _initialize_multi_worker(self, cluster_resolver):
        global _server_heartbeat_seconds
        if _server_heartbeat_seconds is not None:
            if self._heartbeat_seconds != _server_heartbeat_seconds:
                _logger.warning(
                    "heartbeat_seconds=%g has no effect: the first strategy of this process has "
                    "joined the cluster with %g",
                    self._heartbeat_seconds,
                    _server_heartbeat_seconds,
                )
            self._std_server_started = True
            self._enable_check_health = False
        elif context.context().coordination_service is None:
            _configure_coordination_service(
                cluster_resolver, self._timeout_seconds, self._heartbeat_seconds
            )
        with _ended_after(self._timeout_seconds), _sigterm_kept():
            super()._initialize_multi_worker(cluster_resolver)
        if _server_heartbeat_seconds is None:
            _server_heartbeat_seconds = self._heartbeat_seconds
        if self._bind is not None:
            self._cross_device_ops = self._bind(self)


class MultiWorkerMirroredStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """`MultiWorkerMirroredStrategy` with injected reductions and chosen local devices.

    Args:
        cluster_resolver: names the cluster and this process's task.
        device_kind: ``"CPU"`` or ``"GPU"``.
        devices_per_worker: `int`, the same on every worker.
        bind: function of the strategy's extended that returns the cross-device operation (a
            `CollectiveAllReduce`) to use; None keeps TensorFlow's own.
        timeout_seconds: how long the workers wait for each other at the start.
        heartbeat_seconds: a worker that does not answer (power, network, SIGSTOP) is declared dead
            after this long, and every other worker's collectives end with an error. A later
            strategy of the same process shares the server of the first one, with its setting.
    """

    def __init__(
        self,
        cluster_resolver,
        device_kind,
        devices_per_worker,
        bind=None,
        timeout_seconds=120,
        heartbeat_seconds=10,
    ):
        self._collective_key_base = next_collective_key_base()
        # Not CollectiveAllReduceStrategy.__init__, which hard-codes its extended class.
        tf.distribute.Strategy.__init__(
            self,
            _MultiWorkerExtended(
                self,
                cluster_resolver,
                tf.distribute.experimental.CommunicationOptions(),
                (device_kind, devices_per_worker),
                bind,
                timeout_seconds,
                heartbeat_seconds,
            ),
        )


def _configure_coordination_service(cluster_resolver, timeout_seconds, heartbeat_seconds):
    """As the stock strategy does, but with bounded waiting."""
    cluster = multi_worker_util.normalize_cluster_spec(cluster_resolver.cluster_spec())
    jobs = [
        coordination_config_pb2.CoordinatedJob(name=job, num_tasks=cluster.num_tasks(job))
        for job in ("chief", "worker")
        if job in cluster.jobs
    ]
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=multi_worker_util.coordination_leader(cluster),
        cluster_register_timeout_in_ms=int(timeout_seconds * 1000),
        heartbeat_timeout_in_ms=int(heartbeat_seconds * 1000),
        coordinated_jobs=jobs,
    )


@contextlib.contextmanager
def _ended_after(seconds):
    """Ends the process with a traceback if the block takes longer.

    TensorFlow joins the cluster without a time limit and without letting go of Python's
    interpreter lock, so neither an exception nor a thread of ours could end a worker whose peer
    died at that moment; the fault handler's own thread can.
    """
    try:
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    except (AttributeError, io.UnsupportedOperation, RuntimeError):
        pass  # no usable stderr: better no limit than no start
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def _sigterm_kept():
    """Keeps the process's reaction to SIGTERM while TensorFlow starts its server.

    The coordination service installs a handler in C++ that only notes a preemption, so that a
    worker stuck in a collective outlives SIGTERM. Python still knows the handler in force before.
    """
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, handler)
