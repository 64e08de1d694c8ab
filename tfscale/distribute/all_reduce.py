"""`Hierarchical2DAllReduce`: gradients summed in buckets over a grid of workers x devices."""

from tfscale.distribute import (
    _tf_private,
    adaptive,
    agreement,
    collectives,
    fusion,
    lost_workers,
)
from tfscale.distribute.compression.choice import compressor as compressor_of
from tfscale.distribute.compression.protocol import shown
from tfscale.distribute.exchange import Exchange

MAX_STREAMS = 64


class Hierarchical2DAllReduce(_tf_private.LocalCrossDeviceOps):
    """All-reduce over a 2-D grid of replicas: rows are workers, columns are local devices.

    Gradients are fused into buckets, from the last layer backwards, so that the first buckets
    travel while the rest of the backward pass still runs. For each bucket::

        shard[i] = sum over the worker's devices of part i      # reduce-scatter, on device i
        shard[i] = sum over the workers of shard[i]             # column i; all columns at once
        bucket   = concat(shard)                                # all-gather, on every device

    A worker sends ``2 (N - 1) / N`` times the bucket's bytes for N workers, whatever the number
    of its devices. Compression applies to the middle line only, and only to float32 that is
    summed into variables, as gradients are; all other values (`strategy.reduce`,
    `tf.distribute.ReplicaContext.all_reduce`, metrics, moving statistics) travel in full
    precision. float16 and bfloat16 tensors are summed in float32. Sparse gradients and gather
    keep TensorFlow's own code.

    Before the first step the workers compare, over the coordination service, what they are about
    to exchange: path, shape, dtype and bucket of every gradient. A difference raises on every
    worker and names the first tensor that differs.

    Under `tf.distribute.MirroredStrategy` pass it as ``cross_device_ops``; it then sums over the
    devices of the one process. For several workers give it to
    `tfscale.distribute.create_strategy`.

    Args:
        compression: how float32 travels between workers: None (default, float32),
            ``"bfloat16"``, ``"float16"``, ``"int8"``, ``"topk"`` (1 % of the values), or a
            compressor such as ``TopK(ratio=0.001)``.
        bucket_bytes: `int`, size of a full bucket in bytes, or ``"adaptive"``: after some steps
            with 4 MiB the buckets follow from when each gradient is ready and from what the
            link costs, both measured; 4 MiB stay where that gains less than 2 %. Defaults to
            4 MiB.
        streams: `int` up to 64, buckets in flight at the same time. Defaults to 4.
        worker_grid: None (default) for one ring of workers, or ``(rows, columns)`` with
            ``rows * columns`` workers in row-major order: reduce-scatter along the row,
            all-reduce along the column, all-gather along the row (2-D torus).
        accumulate_dtype: what half precision is summed in: ``"float32"``, the wire dtype's name,
            or None (default): float32, but bfloat16 for bfloat16 between at most eight workers.

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
        streams=4,
        worker_grid=None,
        accumulate_dtype=None,
    ):
        super().__init__()
        is_adaptive = isinstance(bucket_bytes, str) and bucket_bytes == adaptive.ADAPTIVE
        if not is_adaptive and not _is_positive_int(bucket_bytes):
            raise ValueError(
                f"bucket_bytes must be a positive int or 'adaptive', got {shown(bucket_bytes)}"
            )
        if not _is_positive_int(streams):
            raise ValueError(f"streams must be a positive int, got {shown(streams)}")
        if streams > MAX_STREAMS:
            raise ValueError(
                f"streams must be at most {MAX_STREAMS}, got {streams}: each has collectives of "
                "its own on every device, and a bucket in flight"
            )
        self._exchange = Exchange(compressor_of(compression, accumulate_dtype), bucket_bytes)
        self.bucket_bytes = bucket_bytes
        self.streams = streams
        self.worker_grid = None if worker_grid is None else _checked_grid(worker_grid)
        self.generation = 0
        self._mesh, self._timeout = None, 120

    @property
    def compressor(self):
        """The compressor in force."""
        return self._exchange.compressor

    @property
    def state(self):
        """What compression holds back on this worker: `error_feedback.CompressionState`.

        That of loops of your own; each model that `fit` trains has one to itself, `state_of`.
        """
        return self._exchange.state

    def state_of(self, model):
        """Returns the `error_feedback.CompressionState` of a model that `fit` trains."""
        return self._exchange.state_of(model)

    def for_model(self, model):
        """Returns a context in which what is traced works on the state of `model`.

        `fit` enters it by itself. A loop of your own that trains several models with tensors of
        the same names traces the step of each in the model's own.
        """
        return self._exchange.for_model(model)

    def set_compression(self, compression, accumulate_dtype=None):
        """Changes the compression from the next traced step on; every worker has to.

        What the compression before held back is carried over: into the new one's residuals, or,
        where it keeps none, into the first sum. A velocity is kept by compressors with momentum
        and dropped by all others: it belongs to the optimizer, no gradient is missing for it.
        `fit` traces its step again by itself, also in the middle of a run; your own
        ``tf.function`` has to be made anew.

        Args:
            compression: as in the constructor.
            accumulate_dtype: as in the constructor.

        Raises:
            ValueError: for an argument out of range.

        Example:
            >>> cross_device_ops.set_compression("bfloat16")
            >>> model.fit(data, epochs=4, initial_epoch=2)
        """
        new = compressor_of(compression, accumulate_dtype)
        if new.name == self.compressor.name:
            return
        self._exchange.compressor = new
        self._exchange.fusion.forget()
        self._trace_again()
        if not new.momentum:
            # Its gradients were sent long ago. Kept for a compressor with momentum that may come
            # one day, it would push the weights along gradients of then.
            self._exchange.forget_velocities()

    def record_timeline(self, on=True):
        """Notes, from the next traced step on, when each bucket travels; see `timeline`."""
        self._exchange.records_timeline = on
        self._trace_again()

    def timeline(self):
        """Returns when the buckets of the last step travelled, if `record_timeline` was called.

        Returns:
            list of ``{"bucket": int, "stream": int, "bytes": int, "ready": s, "start": s,
            "end": s}``, for each plan that was traced one after another: when the bucket's
            gradients were there on all local devices, when they were summed inside the worker,
            and when the sum over the workers had come; in seconds since 1970.
        """
        rows = []
        for plan, streams, times in self._exchange.timelines():
            for number, bucket in enumerate(plan.buckets if times else ()):
                row = {"bucket": number, "stream": streams[number]}
                row["bytes"] = sum(plan.tensors[i].bytes for i in bucket)
                # On a busy host a moment may be noted late, never early: so not after the next one.
                end = times[f"end {number}"]
                start = min(times[f"start {number}"], end)
                row |= {"ready": min(times[f"ready {number}"], start), "start": start, "end": end}
                rows.append(row)
        return rows

    # ------------------------------------------------------------------ adaptive fusion

    @property
    def wants_measurement(self):
        """Whether `after_step` is to be called after each step, until it returns True."""
        return self._exchange.fusion.wants_measurement

    def after_step(self, strategy):
        """Notes when gradients were ready; after some steps all workers make the bucket plan.

        `fit` calls it. In a loop of your own call it after each step, on every worker, while
        `wants_measurement` is true.

        Returns:
            `bool`: True once, when the plan is made: the step has to be traced again.
        """
        if not self._exchange.fusion.after_step():
            return False
        compressors = self._exchange.compressors(self._mesh)
        self._exchange.fusion.decide(strategy, self._mesh, compressors, self._timeout)
        self._trace_again()
        return True

    def predicted_timeline(self):
        """Returns when the buckets of the present plan travel by the model that they follow from.

        Returns:
            list of ``{"bucket": int, "bytes": int, "ready": s, "start": s, "end": s}``, in seconds
            from the moment when the step's first gradient is ready. Empty unless this process
            made an adaptive plan: a checkpoint keeps the plan only.
        """
        plan = self._exchange.fusion.present
        return [
            {"bucket": number, "bytes": b.bytes, "ready": b.ready, "start": b.start, "end": b.end}
            for number, b in enumerate(plan.buckets if plan else ())
        ]

    def use_plan(self, saved):
        """Takes over the bucket plan of a checkpoint, so that nothing is measured again.

        Args:
            saved: `dict` that `plan_of` returned; without effect unless this all-reduce and the
                saved one are adaptive.
        """
        if saved and self.bucket_bytes == saved["settings"]["bucket_bytes"] == "adaptive":
            for fingerprint in saved["plans"][-1:]:
                self._exchange.fusion.use(fingerprint)
            self._trace_again()

    def _trace_again(self):
        self.generation += 1
        self._exchange.start_over()

    # ------------------------------------------------------------------ what strategies call

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
        return [list(plan) for plan in self._exchange.plans.values()]

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

        self._mesh, self._timeout = mesh, timeout_seconds

        def agree(lines):
            agreement.agree(strategy, "gradients", lines, timeout_seconds)

        def reduce_tensors(values, mean, names, sparse):
            return self._exchange.reduce(values, mesh, mean, names, sparse, agree)

        return _tf_private.ClusterCrossDeviceOps(strategy, reduce_tensors, owner=self)

    def explain(self, error):
        """Returns which worker was lost, if that is what a TensorFlow error means; else None."""
        return lost_workers.explain_lost_worker(error)

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
        return self._exchange.reduce(values, fusion.Mesh(devices), mean, names)

    def _link(self, strategy, stream, device):
        """What connects `device` with its column of workers, in one stream."""
        workers = _tf_private.num_workers(strategy)

        def group(name, size, index, rank):
            return _tf_private.collective_group(
                strategy, f"{name}/{stream}", size, device, index, rank
            )

        me = _tf_private.worker_index(strategy)
        if self.worker_grid is None:
            return collectives.Ring(group("all workers", workers, 0, me))
        rows, columns = self.worker_grid
        row, column = divmod(me, columns)
        return collectives.Grid(
            group("grid row", columns, row, column), group("grid column", rows, column, row)
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


def _is_positive_int(value):
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _checked_grid(worker_grid):
    grid = tuple(worker_grid) if isinstance(worker_grid, (tuple, list)) else ()
    if len(grid) != 2 or not all(_is_positive_int(n) for n in grid):
        raise ValueError(
            f"worker_grid must be (rows, columns), two positive ints, got {shown(worker_grid)}"
        )
    return grid
