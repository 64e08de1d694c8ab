"""`Hierarchical2DAllReduce`: gradients summed in buckets over a grid of workers x devices."""

import hashlib
import json
import logging

from tfscale.distribute import _tf_private, agreement, buckets, collectives, fusion
from tfscale.distribute import compression as compression_lib

_logger = logging.getLogger("tfscale")


class Hierarchical2DAllReduce(_tf_private.LocalCrossDeviceOps):
    """All-reduce over a 2-D grid of replicas: rows are workers, columns are local devices.

    Gradients are fused into buckets, from the last layer backwards, so that the first buckets
    travel while the rest of the backward pass still runs. For each bucket::

        shard[i] = sum over the worker's devices of part i      # reduce-scatter, on device i
        shard[i] = sum over the workers of shard[i]             # column i; all columns at once
        bucket   = concat(shard)                                # all-gather, on every device

    A worker sends ``2 (N - 1) / N`` times the bucket's bytes for N workers, whatever the number
    of its devices. Compression applies to the middle line only, and only to what arrives in a
    batch, as gradients do; single values (`strategy.reduce`, metrics, moving statistics) travel
    in full precision. TensorFlow hands on `tf.distribute.ReplicaContext.all_reduce` as a batch
    too: what must stay exact there needs an integer type or float64. float16 and bfloat16
    tensors are summed in float32. Sparse gradients and gather keep TensorFlow's own code.

    Before the first step the workers compare, over the coordination service, what they are about
    to exchange: path, shape, dtype and bucket of every gradient. A difference raises on every
    worker and names the first tensor that differs.

    Under `tf.distribute.MirroredStrategy` pass it as ``cross_device_ops``; it then sums over the
    devices of the one process. For several workers give it to
    `tfscale.distribute.create_strategy`.

    Args:
        compression: how float32 travels between workers: None (default, float32),
            ``"bfloat16"``, ``"float16"``, or a compressor (see `tfscale.distribute.compression`).
        bucket_bytes: `int`, size of a full bucket in bytes. Defaults to 4 MiB.
        streams: `int`, buckets in flight at the same time. Defaults to 2.
        worker_grid: None (default) for one ring of workers, or ``(rows, columns)`` with
            ``rows * columns`` workers in row-major order: reduce-scatter along the row,
            all-reduce along the column, all-gather along the row (2-D torus).
        accumulate_dtype: ``"float32"`` (default), or the wire dtype's name to sum in it.

    Raises:
        ValueError: for an argument out of range.

    Example:
        >>> strategy = tfscale.distribute.create_strategy(
        ...     cross_device_ops=Hierarchical2DAllReduce(compression="bfloat16"))

    References:
        Ying et al., Image Classification at Supercomputer Scale, 2018, section on 2-D gradient
        summation (https://arxiv.org/abs/1811.06992); Mikami et al., Massively Distributed SGD,
        2018 (https://arxiv.org/abs/1811.05233).
    """

    def __init__(
        self,
        compression=None,
        bucket_bytes=4 << 20,
        streams=2,
        worker_grid=None,
        accumulate_dtype="float32",
    ):
        super().__init__()
        if not isinstance(bucket_bytes, int) or bucket_bytes < 1:
            raise ValueError(f"bucket_bytes must be a positive int, got {bucket_bytes!r}")
        if not isinstance(streams, int) or streams < 1:
            raise ValueError(f"streams must be a positive int, got {streams!r}")
        self.compressor = compression_lib.compressor(compression, accumulate_dtype)
        self.bucket_bytes = bucket_bytes
        self.streams = streams
        self.worker_grid = None if worker_grid is None else _checked_grid(worker_grid)
        self._plans = {}

    def settings(self):
        """Returns the settings as a `dict` that JSON can hold; equal on all workers."""
        return {
            "compression": self.compressor.name,
            "bucket_bytes": self.bucket_bytes,
            "streams": self.streams,
            "worker_grid": self.worker_grid and list(self.worker_grid),
        }

    def plan_fingerprints(self):
        """Returns the bucket plans made so far, in order; each ``[path, shape, dtype, bucket]``.

        Only reductions into variables (gradients) are counted. Empty before the first step.
        Tensors sent alone have bucket -1; sparse ones are of dtype ``"sparse"``.
        """
        return [list(plan) for plan in self._plans.values()]

    def bind(self, strategy, timeout_seconds=120):
        """Returns the cross-device operation of one worker of a cluster.

        Called by `create_strategy` on every worker alike, while the strategy initialises.

        Args:
            strategy: the strategy or its extended.
            timeout_seconds: `float`, how long to wait for the others to agree on a plan.

        Raises:
            ValueError: if `worker_grid` does not have as many cells as there are workers.
        """
        workers = _tf_private.num_workers(strategy)
        self.check_workers(workers)
        devices = _tf_private.local_devices(strategy)
        streams = tuple(
            tuple(self._link(strategy, stream, device) for device in devices)
            for stream in range(self.streams if workers > 1 else 0)
        )
        mesh = fusion.Mesh(devices, workers, streams)

        def agree(plan):
            lines = ["{}, shape {}, {}, bucket {}".format(*item) for item in plan]
            agreement.agree(strategy, "gradients", lines, timeout_seconds)

        def reduce_tensors(values, mean, names, sparse):
            return self._reduce(values, mesh, mean, names, sparse, agree)

        return _tf_private.ClusterCrossDeviceOps(strategy, reduce_tensors, owner=self)

    def check_workers(self, workers):
        """Raises ValueError unless `worker_grid` has as many cells as there are workers."""
        if self.worker_grid is None:
            return
        rows, columns = self.worker_grid
        if rows * columns != workers:
            raise ValueError(
                f"worker_grid {self.worker_grid} has {rows} x {columns} = {rows * columns} cells, "
                f"but there are {workers} workers"
            )

    def reduce_tensors(self, values, devices, mean, names=None):
        """Sums tensors over the devices of one process; see `LocalCrossDeviceOps`."""
        self.check_workers(1)
        return self._reduce(values, fusion.Mesh(devices), mean, names)

    def _link(self, strategy, stream, device):
        """What connects `device` with its column of workers, in one stream."""
        workers = _tf_private.num_workers(strategy)

        def group(name, size, index):
            return _tf_private.collective_group(strategy, f"{name}/{stream}", size, device, index)

        if self.worker_grid is None:
            return collectives.Ring(group("all workers", workers, 0))
        rows, columns = self.worker_grid
        row, column = divmod(_tf_private.worker_index(strategy), columns)
        return collectives.Grid(group("grid row", columns, row), group("grid column", rows, column))

    def _reduce(self, values, mesh, mean, names, sparse=(), agree=None):
        """Plans the buckets, has the plan agreed if it is new, and sums bucket by bucket."""
        in_batch = names is not None
        names = names or [None] * len(values)
        specs = [
            _spec(name or f"value {i}", value)
            for i, (name, value) in enumerate(zip(names, values, strict=True))
        ]
        plan = buckets.plan_buckets(specs, self.bucket_bytes)
        if any(names) or sparse:
            self._register(plan, sparse, agree)
        compressor = self.compressor if in_batch else compression_lib.Uncompressed()
        results = [None] * len(values)
        for number, bucket in enumerate(plan.buckets):
            reduced = fusion.reduce_bucket(
                [values[i] for i in bucket], mesh, mean, compressor, stream=number
            )
            for i, result in zip(bucket, reduced, strict=True):
                results[i] = result
        for i in plan.alone:
            results[i] = fusion.reduce_unshaped(values[i], mesh, mean)
        return results

    def _register(self, plan, sparse, agree):
        """Records a plan of gradients; the first time, the workers compare it."""
        fingerprint = plan.fingerprint()
        fingerprint += [[path, None, "sparse", buckets.ALONE] for path in sparse]
        digest = hashlib.sha256(json.dumps(fingerprint).encode()).hexdigest()
        if digest in self._plans:
            return
        if agree is not None:
            agree(fingerprint)
        self._plans[digest] = fingerprint
        _logger.info(
            "all-reduce of %d gradients in %d buckets, %s on the wire",
            len(fingerprint),
            len(plan.buckets) + len(plan.alone) + len(sparse),
            "float32" if self.compressor.name == "none" else self.compressor.name,
        )


def plan_of(strategy):
    """Returns how a strategy exchanges gradients, for a checkpoint to keep; JSON can hold it.

    Args:
        strategy: `tf.distribute.Strategy`.

    Returns:
        `dict` with the all-reduce's settings and the plans made so far, or None if the strategy
        does not use `Hierarchical2DAllReduce`.

    Example:
        >>> plan_of(strategy)["plans"][0][0]
        ['dense/kernel', [4, 3], 'float32', 0]
    """
    operation = _tf_private.cross_device_ops_of(strategy)
    operation = getattr(operation, "owner", operation)
    if not isinstance(operation, Hierarchical2DAllReduce):
        return None
    return {"settings": operation.settings(), "plans": operation.plan_fingerprints()}


def _spec(path, value):
    dtype, shape = value[0].dtype, value[0].shape
    if not (dtype.is_integer or dtype.is_floating or dtype.is_complex):
        raise TypeError(
            f"cannot reduce {path}: tensors of dtype {dtype.name} have no sum; "
            "cast to int32 or float32 first"
        )
    known = tuple(shape.as_list()) if shape.is_fully_defined() else None
    return buckets.TensorSpec(path, known, dtype.name, dtype.size)


def _checked_grid(worker_grid):
    grid = tuple(worker_grid) if isinstance(worker_grid, (tuple, list)) else ()
    if len(grid) != 2 or not all(isinstance(n, int) and n > 0 for n in grid):
        raise ValueError(
            f"worker_grid must be (rows, columns), two positive ints, got {worker_grid!r}"
        )
    return grid
