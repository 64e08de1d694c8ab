"""The 2-D algorithm as functions of tensors, without any strategy, on four logical CPU devices."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from tfscale.distribute import collectives, fusion
from tfscale.distribute.compression import Uncompressed

DEVICES = tuple(f"/device:CPU:{i}" for i in range(4))


def placed(arrays):
    tensors = []
    for array, device in zip(arrays, DEVICES, strict=False):
        with tf.device(device):
            tensors.append(tf.constant(array))
    return tensors


@pytest.mark.parametrize("count", [1, 2, 4])
def test_local_reduce_scatter_and_gather(count):
    arrays = np.random.default_rng(0).standard_normal((count, 8)).astype(np.float32)
    shards = collectives.local_reduce_scatter(placed(arrays), DEVICES[:count])
    for i, shard in enumerate(shards):
        np.testing.assert_allclose(shard, np.split(arrays.sum(0), count)[i], rtol=1e-5)
        assert shard.device.endswith(f"CPU:{i}")
    for vector in collectives.local_all_gather(shards, DEVICES[:count]):
        np.testing.assert_allclose(vector, arrays.sum(0), rtol=1e-5)


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("columns", [1, 4])
def test_every_column_crosses_once(columns, in_function):
    arrays = np.arange(32, dtype=np.float32).reshape(4, 8)
    seen = []

    def cross(column, shard):
        seen.append((column, shard.shape[0]))
        return 3 * shard

    def run():
        return collectives.hierarchical_all_reduce(placed(arrays), DEVICES, cross, columns)

    for vector in (tf.function(run) if in_function else run)():
        np.testing.assert_array_equal(vector, 3 * arrays.sum(0))
    assert sorted(seen) == [(i, 8 // columns) for i in range(columns)]


def test_columns_are_in_flight_together_eagerly():
    """Each column waits for the others: a loop over columns would never end."""
    barrier = threading.Barrier(4, timeout=20)

    def cross(column, shard):
        barrier.wait()
        return shard

    collectives.in_each_column(cross, placed(np.zeros([4, 2])), DEVICES)


@pytest.mark.parametrize("sizes", [[()], [(5,), (), (0, 2), (3, 4)], [(5000,), (7,)]])
def test_padding_never_leaks(sizes):
    mesh = fusion.Mesh(DEVICES)
    values = [placed([np.full(shape, i + 1.0, np.float32) for i in range(4)]) for shape in sizes]
    results = fusion.reduce_bucket(values, mesh, mean=False, compressor=Uncompressed())
    for shape, result in zip(sizes, results, strict=True):
        for local in result:
            np.testing.assert_array_equal(local, np.full(shape, 10.0))


def test_complex_numbers_stay_inside_a_worker():
    mesh = fusion.Mesh(DEVICES)
    value = placed([np.full([3], 1j * i, np.complex64) for i in range(4)])
    (result,) = fusion.reduce_bucket([value], mesh, mean=False, compressor=Uncompressed())
    np.testing.assert_array_equal(result[0], np.full([3], 6j))
    mesh = fusion.Mesh(DEVICES, workers=2, streams=((collectives.Ring(_Alone()),) * 4,))
    with pytest.raises(TypeError, match="complex64 tensors cannot be summed between workers"):
        fusion.reduce_bucket([value], mesh, mean=False, compressor=Uncompressed())


class _Alone:
    size = 1
