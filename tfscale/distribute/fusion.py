"""Sums of whole tensors over all replicas: joined into one vector, padded, summed, taken apart."""

import dataclasses

import tensorflow as tf

from tfscale.distribute import collectives

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


def reduce_bucket(values, mesh, mean, compressor, stream=0):
    """Sums tensors of one dtype and known shapes over all replicas, as one vector.

    Args:
        values: list with, for each value, the list of its tensors, one for each local device.
        mesh: `Mesh`.
        mean: `bool`, divide by the number of replicas; the mean of integers is floating point.
        compressor: how float32 travels between workers.
        stream: `int`, which of the mesh's streams to use.

    Returns:
        List with, for each value, the list of its results, one on each local device.
    """
    dtype = values[0][0].dtype
    shapes = [value[0].shape for value in values]
    sizes = [shape.num_elements() for shape in shapes]
    columns = len(mesh.devices) if sum(sizes) >= _MIN_SHARD * len(mesh.devices) else 1
    cross, quantum = _cross(mesh, stream, dtype, mean, compressor)
    padding = -sum(sizes) % (quantum * columns)

    vectors = []
    for d, device in enumerate(mesh.devices):
        with tf.device(device):
            parts = [tf.reshape(value[d], [-1]) for value in values]
            if padding:
                parts.append(tf.zeros([padding], dtype))
            vectors.append(tf.cast(tf.concat(parts, 0), _SUM_DTYPE.get(dtype, dtype)))
    if sum(sizes):
        vectors = collectives.hierarchical_all_reduce(vectors, mesh.devices, cross, columns)
    results = []
    for vector, device in zip(vectors, mesh.devices, strict=True):
        with tf.device(device):
            parts = tf.split(tf.cast(vector, _result_dtype(dtype, mean)), [*sizes, padding])
            results.append([tf.reshape(p, s) for p, s in zip(parts, shapes, strict=False)])
    return [list(result) for result in zip(*results, strict=True)]


def reduce_unshaped(value, mesh, mean):
    """Sums a tensor whose shape is known only when it runs; arguments as `reduce_bucket`.

    Returns:
        List of the results, one on each local device.
    """
    dtype = value[0].dtype
    cross, _ = _cross(mesh, 0, dtype, mean, None)
    tensors = [tf.cast(v, _SUM_DTYPE.get(dtype, dtype)) for v in value]
    results = []
    for result, device in zip(
        collectives.hierarchical_all_reduce(tensors, mesh.devices, cross, 1),
        mesh.devices,
        strict=True,
    ):
        with tf.device(device):
            result = tf.cast(result, _result_dtype(dtype, mean))
            results.append(tf.ensure_shape(result, value[0].shape))
    return results


def _cross(mesh, stream, dtype, mean, compressor):
    """Returns ``(function of (column, shard), divisor of the shard's length)``."""
    links = mesh.streams[stream % len(mesh.streams)] if mesh.workers > 1 else None
    sum_dtype = _SUM_DTYPE.get(dtype, dtype)
    if links and sum_dtype not in _CROSS_WORKER_DTYPES:
        raise TypeError(
            f"{dtype.name} tensors cannot be summed between workers; TensorFlow's collectives "
            f"take {', '.join(d.name for d in _CROSS_WORKER_DTYPES)}. Cast before reducing."
        )
    if sum_dtype != tf.float32:
        compressor = None
    divisor = mesh.replicas if mean else 1

    def cross(column, shard):
        if not links:
            return shard / divisor if mean else shard
        if compressor is None:
            shard = links[column].all_reduce_any(shard)
            return shard / divisor if mean else shard
        if mean and compressor.lossy:
            return links[column].all_reduce(shard / divisor, compressor)
        shard = links[column].all_reduce(shard, compressor)
        return shard / divisor if mean else shard

    return cross, links[0].quantum * compressor.block if links and compressor else 1


def _result_dtype(dtype, mean):
    """The dtype of a sum or mean: a mean of integers is what TensorFlow's division gives."""
    if not (mean and dtype.is_integer):
        return dtype
    return tf.float64 if dtype.size > 2 else tf.float32
