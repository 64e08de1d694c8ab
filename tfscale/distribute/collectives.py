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

    def compressed_part(self, length, compressor):
        """Returns ``(first element, elements)`` of a shard that this worker's state covers."""
        return 0, length

    def all_reduce(self, x, compressor, state=()):
        """Returns the `Reduced` sum of the workers' `x`, a multiple of the quantum long."""
        return compressor.all_reduce(x, self._group, state)

    def all_reduce_any(self, x):
        """Returns the sum of the workers' `x`, of any shape and dtype, uncompressed."""
        return self._group.all_reduce(x)


class _GroupOfOne:
    """A group of one worker: what it sends, it has."""

    size, rank = 1, 0

    def all_reduce(self, x):
        return x

    def all_gather(self, x):
        return x

    def all_to_all(self, x):
        return x


ALONE = Ring(_GroupOfOne())


class Grid:
    """One column of workers as a grid of workers.

    A compressor that keeps a state compresses the grid's columns only: its rows carry float32,
    and the state covers this worker's part of the row.

    Args:
        row: `CollectiveGroup` of the workers in the same row of the grid.
        column: `CollectiveGroup` of those in the same column.
    """

    def __init__(self, row, column):
        self.quantum = row.size * column.size
        self._row, self._column = row, column

    def compressed_part(self, length, compressor):
        """Returns ``(first element, elements)`` of a shard that this worker's state covers."""
        part = length // self._row.size
        return self._row.rank * part, part

    def all_reduce(self, x, compressor, state=()):
        """Returns the `Reduced` sum of the workers' `x`, a multiple of the quantum long."""
        part = compressor.reduce_scatter(x, self._row)
        part = tf.ensure_shape(part, [x.shape[0] // self._row.size])
        reduced = compressor.all_reduce(part, self._column, state)
        return reduced._replace(total=compressor.all_gather(reduced.total, self._row))

    def all_reduce_any(self, x):
        """Returns the sum of the workers' `x`, of any shape and dtype, uncompressed."""
        return self._column.all_reduce(self._row.all_reduce(x))


def add(tensors):
    """Returns the sum of tensors of one shape, always in the given order.

    TensorFlow's AddN begins with whichever input it can overwrite at the moment, so that three
    addends give other last bits from run to run; and its optimizer makes an AddN of any chain of
    additions. A check of the shape between them keeps it off, and costs nothing.
    """
    total = tensors[0]
    for tensor in tensors[1:]:
        total = tf.ensure_shape(total + tensor, tensor.shape)
    return total


def local_reduce_scatter(tensors, layout, devices, after=()):
    """Sums tensors over local devices; each device that has a shard keeps its part of the sum.

    Args:
        tensors: list with, for each tensor of the bucket, its flattened value on each device.
        layout: `Layout` with one shard for each of the first devices.
        devices: list of device strings.
        after: for each shard the tensors to wait for, although they are not needed.

    Returns:
        List of ``[layout.length]`` tensors, the i-th on device i.
    """
    shards = []
    for i, (segments, keeper) in enumerate(zip(layout.shards, devices, strict=False)):
        with tf.control_dependencies(after[i] if i < len(after) else []):
            parts, end = [], 0
            for segment in segments:
                if segment.offset > end:
                    parts.append(_zeros(segment.offset - end, tensors, keeper))
                parts.append(_sum_of_segment(tensors[segment.tensor], segment, devices, keeper))
                end = segment.offset + segment.size
            if end < layout.length:
                parts.append(_zeros(layout.length - end, tensors, keeper))
            with tf.device(keeper):
                shards.append(tf.concat(parts, 0) if len(parts) > 1 else parts[0])
    return shards


def _sum_of_segment(values, segment, devices, keeper):
    pieces = []
    for value, device in zip(values, devices, strict=True):
        if segment.size < value.shape[0]:
            with tf.device(device):
                value = value[segment.start : segment.start + segment.size]
        pieces.append(value)
    with tf.device(keeper):
        return add(pieces)


def _zeros(size, tensors, device):
    with tf.device(device):
        return tf.zeros([size], tensors[0][0].dtype)


def local_all_gather(shards, layout, devices):
    """Takes shards apart into the bucket's tensors, on every local device.

    Args:
        shards: list of ``[layout.length]`` tensors, as `local_reduce_scatter` returns them.
        layout: their `Layout`.
        devices: list of device strings.

    Returns:
        List with, for each tensor of the bucket, its flattened value on each device.
    """
    pieces = [[] for _ in layout.sizes]
    for shard, segments, keeper in zip(shards, layout.shards, devices, strict=False):
        sizes, end, wanted = [], 0, []
        for segment in segments:
            if segment.offset > end:
                sizes.append(segment.offset - end)
            wanted.append(len(sizes))
            sizes.append(segment.size)
            end = segment.offset + segment.size
        if end < layout.length:
            sizes.append(layout.length - end)
        with tf.device(keeper):
            parts = tf.split(shard, sizes) if len(sizes) > 1 else [shard]
        for segment, i in zip(segments, wanted, strict=True):
            pieces[segment.tensor].append(parts[i])
    results = []
    for parts in pieces:
        results.append([])
        for device in devices:
            with tf.device(device):
                if len(parts) == 1:
                    results[-1].append(tf.identity(parts[0]))
                else:
                    results[-1].append(tf.concat([*parts, shards[0][:0]], 0))
    return results


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
