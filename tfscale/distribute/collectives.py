"""The 2-D all-reduce as functions of tensors: rows are workers, columns are local devices.

A vector is summed over all devices in three steps. Inside each worker it is reduce-scattered, so
that each of the D local devices holds the sum of one part. Device i of every worker then sums
its part with device i of the other workers: one column, 1/D of the data, all columns at the same
time. At last the parts are gathered inside each worker. N workers of D devices send
``2 (N-1)/N`` times the vector's bytes per worker over the network, against
``2 (ND-1)/(ND)`` for one flat ring, and take 2(N-1) instead of 2(ND-1) steps.

With a grid of workers, a column is itself two-dimensional (the 2-D torus all-reduce of
Mikami et al., 2018, https://arxiv.org/abs/1811.05233): reduce-scatter along the grid's row,
all-reduce along its column, all-gather along the row.
"""

import dataclasses
from multiprocessing.pool import ThreadPool

import tensorflow as tf

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


class Ring:
    """One column of workers as a single ring.

    Args:
        group: `CollectiveGroup` of all workers.
    """

    def __init__(self, group):
        self.quantum = group.size
        self._group = group

    def all_reduce(self, x, compressor):
        """Returns the sum of the workers' `x`, whose length is a multiple of the quantum."""
        return compressor.all_reduce(x, self._group)

    def all_reduce_any(self, x):
        """Returns the sum of the workers' `x`, of any shape and dtype, uncompressed."""
        return self._group.all_reduce(x)


class Grid:
    """One column of workers as a grid of workers.

    Args:
        row: `CollectiveGroup` of the workers in the same row of the grid.
        column: `CollectiveGroup` of those in the same column.
    """

    def __init__(self, row, column):
        self.quantum = row.size * column.size
        self._row, self._column = row, column

    def all_reduce(self, x, compressor):
        """Returns the sum of the workers' `x`, whose length is a multiple of the quantum."""
        part = compressor.reduce_scatter(x, self._row)
        part = tf.ensure_shape(part, [x.shape[0] // self._row.size])
        return compressor.all_gather(compressor.all_reduce(part, self._column), self._row)

    def all_reduce_any(self, x):
        """Returns the sum of the workers' `x`, of any shape and dtype, uncompressed."""
        return self._column.all_reduce(self._row.all_reduce(x))


def local_reduce_scatter(vectors, devices):
    """Sums vectors over local devices; device i keeps the i-th part of the sum.

    Args:
        vectors: list with one ``[n]`` tensor for each device; the number of devices divides n.
        devices: list of device strings.

    Returns:
        List of ``[n / len(devices)]`` tensors, the i-th on device i.
    """
    count = len(devices)
    if count == 1:
        return list(vectors)
    parts = []
    for vector, device in zip(vectors, devices, strict=True):
        with tf.device(device):
            parts.append(tf.split(vector, count))
    shards = []
    for i, device in enumerate(devices):
        with tf.device(device):
            shards.append(tf.add_n([part[i] for part in parts]))
    return shards


def local_all_gather(shards, devices):
    """Joins the devices' parts on every local device.

    Args:
        shards: list of 1-D tensors, in order.
        devices: list of device strings.

    Returns:
        List with the joined vector for each device.
    """
    vectors = []
    for device in devices:
        with tf.device(device):
            vectors.append(tf.concat(shards, 0) if len(shards) > 1 else tf.identity(shards[0]))
    return vectors


def in_each_column(function, shards, devices):
    """Returns ``[function(i, shard)]`` on each shard's device, all columns in flight together.

    In a graph independent operations run concurrently anyway. Eagerly a collective blocks its
    caller, and the other workers may wait in another column: one thread a column.
    """

    def one(i):
        with tf.device(devices[i]):
            return function(i, shards[i])

    if len(shards) == 1 or not tf.executing_eagerly():
        return [one(i) for i in range(len(shards))]
    with ThreadPool(len(shards)) as pool:
        return pool.map(one, range(len(shards)))


def hierarchical_all_reduce(vectors, devices, cross, columns):
    """Sums vectors over all local devices and, column by column, over all workers.

    Args:
        vectors: list with one ``[n]`` tensor for each local device, n divisible by `columns`.
        devices: list of device strings.
        cross: function of ``(column, [n / columns] tensor)`` that returns the tensor's sum over
            the workers; identity for one worker.
        columns: `int`, the number of devices that talk to other workers: all of them, or 1 for
            a message so short that its latency matters more than its size.

    Returns:
        List with the ``[n]`` sum for each device.
    """
    if columns == 1:
        with tf.device(devices[0]):
            shards = [tf.add_n(vectors) if len(vectors) > 1 else vectors[0]]
    else:
        shards = local_reduce_scatter(vectors, devices)
    return local_all_gather(in_each_column(cross, shards, devices), devices)


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
        vectors = hierarchical_all_reduce(vectors, mesh.devices, cross, columns)
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
        hierarchical_all_reduce(tensors, mesh.devices, cross, 1), mesh.devices, strict=True
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
