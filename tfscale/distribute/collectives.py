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

from multiprocessing.pool import ThreadPool

import tensorflow as tf


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
        return compressor.all_reduce(x, self._group).total

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
        total = compressor.all_reduce(part, self._column).total
        return compressor.all_gather(total, self._row)

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
