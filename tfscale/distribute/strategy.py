"""`create_strategy`: one call that gives the right tf.distribute strategy on every machine."""

import functools
import importlib.metadata
import json
import logging
import os
import platform

import tensorflow as tf

from tfscale import _keras, preflight
from tfscale.cluster import ClusterConfig
from tfscale.distribute import _tf_private, agreement
from tfscale.distribute.all_reduce import Hierarchical2DAllReduce
from tfscale.distribute.devices import LocalDevices
from tfscale.topology import Topology

_logger = logging.getLogger("tfscale")

KINDS = ("auto", "one_device", "mirrored", "multi_worker_mirrored", "tpu")
_TPU_VARIABLES = ("TPU_NAME", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES")

# A process belongs to one cluster for its whole life: TensorFlow's server can't be moved.
_joined = None


def create_strategy(
    kind="auto",
    *,
    cross_device_ops=None,
    devices_per_worker=None,
    timeout_seconds=120,
    heartbeat_seconds=10,
):
    """Creates a `tf.distribute.Strategy`; call it before any other use of TensorFlow.

    ``"auto"`` looks at the environment::

        TF_CONFIG names several workers      -> multi_worker_mirrored (evaluator: a local one)
        TPU_NAME or TPU_WORKER_* is set      -> tpu
        more than one local device           -> mirrored
        otherwise                            -> one_device

    With several workers it first meets the others (`tfscale.preflight`): who is missing or
    differs is named before TensorFlow waits for anybody. A worker that dies later ends the others
    with an error; one that stops answering (its link, its power, SIGSTOP) does so once
    `heartbeat_seconds` are over. SIGTERM ends a worker at once unless the program has installed a
    handler of its own.

    Args:
        kind: ``"auto"``, ``"one_device"``, ``"mirrored"``, ``"multi_worker_mirrored"`` or
            ``"tpu"``.
        cross_device_ops: None for a default `Hierarchical2DAllReduce`; an instance of it;
            ``"stock"`` for TensorFlow's own; for ``"mirrored"`` also any
            `tf.distribute.CrossDeviceOps`.
        devices_per_worker: `int`, local replicas. None takes the environment's
            ``TFSCALE_DEVICES_PER_WORKER``, else all GPUs, else one CPU device. Without GPUs the
            CPU is split into that many logical devices.
        timeout_seconds: `float`, how long workers wait for each other: at the start, and when
            they agree on what they exchange.
        heartbeat_seconds: `float`, at least 1: how long a worker may stay silent before the
            others take it for lost and end with an error. A link that comes back earlier does no
            harm. Defaults to 10. The same on all workers, and for all strategies of a process.

    Returns:
        A `tf.distribute.Strategy`: ours for mirrored kinds, TensorFlow's for the others.

    Raises:
        ValueError: for an unknown `kind`, or one that contradicts ``TF_CONFIG``; for
            `heartbeat_seconds` below 1, or `timeout_seconds` not above 0.
        RuntimeError: if TensorFlow has already started and can't be configured any more; if
            devices are missing; if ``TF_CONFIG`` changed after the first call.
        tfscale.preflight.PreflightError: if the workers do not meet or do not fit together.

    Example:
        >>> strategy = create_strategy("mirrored", devices_per_worker=2)
        >>> strategy.num_replicas_in_sync
        2
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind of strategy {kind!r}; choose one of {', '.join(KINDS)}")
    agreement.check_timeout(timeout_seconds)
    _check_heartbeat(heartbeat_seconds)
    config = _joined_cluster()
    if kind == "auto":
        kind = _automatic_kind(config)
    elif kind == "multi_worker_mirrored":
        _check_multi_worker(config)
    elif kind != "tpu" and config.num_workers > 1 and not config.is_evaluator:
        raise ValueError(
            f"create_strategy({kind!r}) trains on this process alone, but TF_CONFIG names "
            f"{config.num_workers} workers. Use 'auto' or 'multi_worker_mirrored', or unset "
            "TF_CONFIG."
        )
    if kind == "tpu":
        strategy = _tpu_strategy(cross_device_ops)
    else:
        devices = LocalDevices.find(devices_per_worker)
        if kind is None:
            kind = "mirrored" if devices.count > 1 else "one_device"
        create = {
            "one_device": _one_device_strategy,
            "mirrored": _mirrored_strategy,
            "multi_worker_mirrored": _multi_worker_strategy,
        }[kind]
        strategy = create(config, devices, cross_device_ops, timeout_seconds, heartbeat_seconds)
    _tf_private.leave_untuned()
    operation = _tf_private.cross_device_ops_of(strategy)
    agree = functools.partial(agreement.agree, timeout_seconds=timeout_seconds)
    _keras.install(strategy, getattr(operation, "owner", operation), agree)
    return strategy


def topology_of(strategy):
    """Returns the `Topology` of any strategy: workers x devices, and the grid of workers.

    Args:
        strategy: `tf.distribute.Strategy`: ours, TensorFlow's, TPU, or the default one.

    Example:
        >>> topology_of(create_strategy("mirrored", devices_per_worker=2))
        Topology(workers=1, devices_per_worker=2, worker_grid=None)
    """
    if isinstance(strategy, tf.distribute.TPUStrategy):
        workers = strategy.extended.num_hosts
    else:
        workers = _tf_private.num_workers(strategy)
    operation = _tf_private.cross_device_ops_of(strategy)
    grid = getattr(getattr(operation, "owner", operation), "worker_grid", None)
    return Topology(workers, strategy.num_replicas_in_sync // workers, grid)


def _joined_cluster():
    """The cluster of TF_CONFIG, which may not change once a strategy was made from it."""
    global _joined
    config = ClusterConfig.from_env()
    if _joined is not None and config != _joined:
        raise RuntimeError(
            f"TF_CONFIG has changed since the first strategy of this process: then "
            f"{_joined.to_json()}, now {config.to_json()}. A process belongs to one cluster; "
            "start a new process for another one."
        )
    _joined = config
    return config


def _automatic_kind(config):
    """The kind that the environment asks for; None leaves it to the number of devices."""
    if config.is_evaluator:
        return None
    if config.num_workers > 1:
        return "multi_worker_mirrored"
    return "tpu" if any(os.environ.get(name) for name in _TPU_VARIABLES) else None


def _check_multi_worker(config):
    if config == ClusterConfig.single():
        raise ValueError(
            "create_strategy('multi_worker_mirrored') needs the list of workers in TF_CONFIG, "
            "which is not set or empty. Start the program with `python -m launch.local "
            "--workers=2 ...`, or use 'auto' to train on this machine alone."
        )
    if config.is_evaluator:
        raise ValueError(
            "this process is an evaluator (TF_CONFIG's task), which does not train with the "
            "workers; use 'auto', 'mirrored' or 'one_device' for it"
        )


def _check_heartbeat(seconds):
    # TensorFlow looks once a second who has been silent for too long.
    if not _is_number(seconds) or not 1 <= seconds < float("inf"):
        raise ValueError(
            f"heartbeat_seconds must be a number of seconds, 1 at least, got {seconds!r}"
        )


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _one_device_strategy(config, devices, cross_device_ops, *unused_times):
    if devices.was_asked and devices.count > 1:
        raise ValueError(
            f"create_strategy('one_device', devices_per_worker={devices.count}): one_device has "
            "one replica; use 'mirrored'"
        )
    _check_no_velocity(cross_device_ops, "one device has nothing to reduce")
    if cross_device_ops not in (None, "stock"):
        _logger.warning("cross_device_ops is not used: one device has nothing to reduce")
    return tf.distribute.OneDeviceStrategy(devices.names()[0])


def _mirrored_strategy(config, devices, cross_device_ops, *unused_times):
    operation = _checked_operation(cross_device_ops, tf.distribute.CrossDeviceOps, "mirrored")
    if isinstance(operation, Hierarchical2DAllReduce):
        operation.check_workers(1)
        if operation.compressor.lossy:
            _logger.info("compression has no effect: one worker has no network to cross")
    return _tf_private.MirroredStrategy(devices.names(), operation)


def _multi_worker_strategy(config, devices, cross_device_ops, timeout_seconds, heartbeat_seconds):
    operation = _checked_operation(
        cross_device_ops, Hierarchical2DAllReduce, "multi_worker_mirrored"
    )
    if operation is not None:
        operation.check_workers(config.num_workers)
    if _tf_private.runtime_started() and not _tf_private.has_key_value_store():
        raise RuntimeError(
            "TensorFlow has already started its devices, so this process can't join the cluster "
            "of TF_CONFIG any more. Call create_strategy before the first tensor, dataset, model "
            "or list of logical devices is made; importing TensorFlow is fine."
        )
    declared = {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "tf_keras": _version("tf-keras"),
        "tfscale": _version("tfscale"),
        "devices_per_worker": f"{devices.count} {devices.kind}",
        "heartbeat_seconds": f"{heartbeat_seconds:g}",
        "all-reduce": json.dumps(operation.settings()) if operation else "stock",
    }
    preflight.meet(config, declared, timeout_seconds, log=_logger.warning)
    split = int(config.has_chief)
    jobs = {"chief": config.workers[:split], "worker": config.workers[split:]}
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({job: list(tasks) for job, tasks in jobs.items() if tasks}),
        task_type=config.task_type,
        task_id=config.task_index,
        rpc_layer="grpc",
    )
    strategy = _tf_private.MultiWorkerMirroredStrategy(
        resolver,
        devices.kind,
        devices.count,
        bind=operation and (lambda extended: operation.bind(extended, timeout_seconds)),
        timeout_seconds=timeout_seconds,
        heartbeat_seconds=heartbeat_seconds,
    )
    # The pre-flight check meets once for a process; this also covers its later strategies.
    agreement.agree(strategy, "how the strategy is made", declared, timeout_seconds)
    return strategy


def _tpu_strategy(cross_device_ops):
    """TPUStrategy keeps XLA's own reduction, which is two-dimensional on a Pod already."""
    if not any(os.environ.get(name) for name in _TPU_VARIABLES):
        raise RuntimeError(
            "create_strategy('tpu') found no TPU: none of "
            f"{', '.join(_TPU_VARIABLES)} is set. On a TPU VM set TPU_NAME=local; elsewhere set "
            "TPU_NAME to the TPU's name or grpc:// address."
        )
    _check_no_velocity(cross_device_ops, "a TPU reduces gradients by XLA")
    if cross_device_ops not in (None, "stock"):
        _logger.warning("cross_device_ops is not used: a TPU reduces gradients by XLA")
    name = os.environ.get("TPU_NAME", "local")
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise RuntimeError(f"the TPU {name!r} can't be reached or initialised: {error}") from error
    return tf.distribute.TPUStrategy(resolver)


def _check_no_velocity(cross_device_ops, reason):
    """An all-reduce that is not used cannot keep the momentum that the optimizer leaves to it."""
    momentum = getattr(getattr(cross_device_ops, "compressor", None), "momentum", 0)
    if momentum:
        raise ValueError(
            f"the compressor's momentum={momentum:g} would be lost: cross_device_ops is not used, "
            f"since {reason}. Give the momentum to the optimizer, and take a compressor without"
        )


def _checked_operation(cross_device_ops, allowed, kind):
    if cross_device_ops is None:
        return Hierarchical2DAllReduce()
    if isinstance(cross_device_ops, str) and cross_device_ops == "stock":
        return None
    if not isinstance(cross_device_ops, allowed):
        raise TypeError(
            f"cross_device_ops of {kind!r} must be None, 'stock' or an instance of "
            f"{allowed.__name__}, got {cross_device_ops!r}"
        )
    return cross_device_ops


def _version(distribution):
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
