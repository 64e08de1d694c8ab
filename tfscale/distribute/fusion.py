"""Sums of whole tensors over all replicas: put into shards, summed, taken apart."""

import dataclasses

import tensorflow as tf

from tfscale.distribute import collectives
from tfscale.distribute.layout import lay_out

# Below this many elements to a device, one device's message is cheaper than one of each.
_MIN_SHARD = 1024

# Summed in a wider type and cast back: half precision for accuracy, small integers because the
# collectives have no kernel for them (wrapping around is the same).
_SUM_DTYPE = {
    tf.float16: tf.float32,
    tf.bfloat16: tf.float32,
    tf.int8: tf.int32,
    tf.uint8: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
}
_CROSS_WORKER_DTYPES = (tf.float32, tf.float64, tf.int32, tf.int64)


@dataclasses.dataclass(frozen=True)
class Mesh:
    """The replicas that sum together, as one worker sees them.

    Attributes:
        devices: the worker's device strings, in replica order.
        workers: `int`, number of workers.
        streams: for each stream a sequence with a `Ring` or `Grid` for each device; empty for one
            worker.
    """

    devices: tuple
    workers: int = 1
    streams: tuple = ()

    @property
    def replicas(self):
        """Number of replicas of all workers."""
        return self.workers * len(self.devices)


def wire_dtype(dtype):
    """Returns the name of the dtype in which uncompressed tensors of `dtype` are sent and summed.

    Example:
        >>> wire_dtype("float16"), wire_dtype("float64")
        ('float32', 'float64')
    """
    dtype = tf.as_dtype(dtype)
    return _SUM_DTYPE.get(dtype, dtype).name


class SendingOrder:
    """Keeps the buckets of a step from running ahead of each other.

    All that is ready may run, so the sums of late buckets would take the processor from the first
    one, which the network waits for. A bucket is therefore summed inside the worker after the one
    before it, and not before the network is done with the one that is `lead` buckets earlier.

    Args:
        lead: `int`, buckets that may be prepared or under way at the same time.
    """

    def __init__(self, lead):
        self._lead = lead
        self._summed, self._exchanged = (), []

    def before_next(self):
        """Returns, for each column, the tensors that the next bucket's sum has to wait for."""
        done = self._exchanged[-self._lead] if len(self._exchanged) >= self._lead else ()
        columns = max(len(self._summed), len(done))
        return [[*self._summed[i : i + 1], *done[i : i + 1]] for i in range(columns)]

    def add(self, summed, exchanged):
        """Notes a bucket: its shards inside the worker, and their sums over the workers."""
        self._summed = tuple(summed)
        self._exchanged.append(tuple(exchanged))


def layout_of(sizes, mesh, compressor):
    """Returns the `Layout` of a bucket: a shard for each local device, or one if it is small.

    Args:
        sizes: list of `int`, elements of each tensor.
        mesh: `Mesh`.
        compressor: how the bucket travels between workers.
    """
    columns = len(mesh.devices) if sum(sizes) >= _MIN_SHARD * len(mesh.devices) else 1
    quantum = mesh.streams[0][0].quantum * compressor.block if mesh.workers > 1 else 1
    return lay_out(sizes, columns, quantum)


def reduce_bucket(
    values, layout, mesh, mean, compressor, stream=0, memory=None, mark=None, order=None
):
    """Sums tensors of one dtype and known shapes over all replicas, as one message.

    Args:
        values: list with, for each value, the list of its tensors, one for each local device.
        layout: what `layout_of` returned for them.
        mesh: `Mesh`.
        mean: `bool`, divide by the number of replicas; the mean of integers is floating point.
        compressor: how float32 travels between workers.
        stream: `int`, which of the mesh's streams to use.
        memory: the `BucketMemory` of a compressor with state; else None.
        mark: function of ``(name, tensors)`` that notes when tensors are there; None for none.
        order: `SendingOrder` of the step's buckets; None where there is no order.

    Returns:
        List with, for each value, the list of its results, one on each local device.
    """
    dtype = values[0][0].dtype
    mark = mark or (lambda name, tensors: None)
    shapes = [value[0].shape for value in values]
    sum_dtype = _SUM_DTYPE.get(dtype, dtype)
    compressor = compressor if sum_dtype == tf.float32 else None
    flat = []
    for value in values:
        flat.append([])
        for tensor, device in zip(value, mesh.devices, strict=True):
            with tf.device(device):
                flat[-1].append(tf.cast(tf.reshape(tensor, [-1]), sum_dtype))
    mark("ready", [tensor for tensors in flat for tensor in tensors])
    after = order.before_next() if order is not None else ()
    shards = collectives.local_reduce_scatter(flat, layout, mesh.devices, after)
    summed = shards
    mark("start", shards)
    if layout.length:
        cross = _cross(mesh, stream, dtype, mean, compressor, memory)
        shards = collectives.in_each_column(cross, shards, mesh.devices)
    mark("end", shards)
    if order is not None:
        order.add(summed, shards)
    result_dtype, results = _result_dtype(dtype, mean), []
    for tensors, shape in zip(
        collectives.local_all_gather(shards, layout, mesh.devices), shapes, strict=True
    ):
        results.append([])
        for tensor, device in zip(tensors, mesh.devices, strict=True):
            with tf.device(device):
                results[-1].append(tf.reshape(tf.cast(tensor, result_dtype), shape))
    return results


def reduce_unshaped(value, mesh, mean):
    """Sums a tensor whose shape is known only when it runs; arguments as `reduce_bucket`.

    Returns:
        List of the results, one on each local device.
    """
    dtype = value[0].dtype
    cross = _cross(mesh, 0, dtype, mean, None, None)
    with tf.device(mesh.devices[0]):
        total = collectives.add([tf.cast(v, _SUM_DTYPE.get(dtype, dtype)) for v in value])
    (total,) = collectives.in_each_column(cross, [total], mesh.devices)
    results = []
    for device in mesh.devices:
        with tf.device(device):
            result = tf.cast(total, _result_dtype(dtype, mean))
            results.append(tf.ensure_shape(tf.identity(result), value[0].shape))
    return results


def _cross(mesh, stream, dtype, mean, compressor, memory):
    """Returns the function of (column, shard) that sums a shard over the workers."""
    links = mesh.streams[stream % len(mesh.streams)] if mesh.workers > 1 else None
    if links and _SUM_DTYPE.get(dtype, dtype) not in _CROSS_WORKER_DTYPES:
        raise TypeError(
            f"{dtype.name} tensors cannot be summed between workers; TensorFlow's collectives "
            f"take {', '.join(d.name for d in _CROSS_WORKER_DTYPES)}. Cast before reducing."
        )
    divisor = mesh.replicas if mean else 1
    # Before a lossy sum, so that it cannot overflow, and before a state, which outlives the step.
    # Always: some workers only may owe something, and all have to do it at the same place.
    divide_first = mean and compressor is not None

    def cross(column, shard):
        link = links[column] if links else collectives.ALONE
        if divide_first:
            shard = shard / divisor
        if compressor is None:
            total = link.all_reduce_any(shard)
        elif memory is None:
            total = link.all_reduce(shard, compressor).total
        else:
            total = memory.reduce(column, shard, link, compressor)
        return total / divisor if mean and not divide_first else total

    return cross


def _result_dtype(dtype, mean):
    """The dtype of a sum or mean: a mean of integers is what TensorFlow's division gives."""
    if not (mean and dtype.is_integer):
        return dtype
    return tf.float64 if dtype.size > 2 else tf.float32
