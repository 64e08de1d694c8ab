"""The 2-D algorithm as functions of tensors, without any strategy, on four logical CPU devices."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from tfscale.distribute import collectives, fusion, layout
from tfscale.distribute.compression import Uncompressed

DEVICES = tuple(f"/device:CPU:{i}" for i in range(4))


def placed(arrays):
    tensors = []
    for array, device in zip(arrays, DEVICES, strict=False):
        with tf.device(device):
            tensors.append(tf.constant(array))
    return tensors


@pytest.mark.parametrize("sizes", [[8], [40, 3, 0, 17, 1], [100], [1, 1], [0, 64]])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_local_reduce_scatter_and_gather(count, sizes):
    arrays = [
        np.random.default_rng(i).standard_normal((count, size)).astype(np.float32)
        for i, size in enumerate(sizes)
    ]
    bucket = layout.lay_out(sizes, count, quantum=12)
    assert bucket.length % 12 == bucket.length % layout.ALIGNMENT == 0
    devices = DEVICES[:count]
    shards = collectives.local_reduce_scatter([placed(a) for a in arrays], bucket, devices)
    joined = np.zeros(count * bucket.length, np.float32)
    start = 0
    for array in arrays:
        joined[start : start + array.shape[1]] = array.sum(0)
        start += layout.round_up(array.shape[1], layout.ALIGNMENT)
    for i, shard in enumerate(shards):
        np.testing.assert_allclose(shard, np.split(joined, count)[i], rtol=1e-5, atol=1e-6)
        assert shard.device.endswith(f"CPU:{i}")
    results = collectives.local_all_gather(shards, bucket, devices)
    for array, result in zip(arrays, results, strict=True):
        for i, local in enumerate(result):
            np.testing.assert_allclose(local, array.sum(0), rtol=1e-5, atol=1e-6)
            assert local.device.endswith(f"CPU:{i}")


def test_columns_are_in_flight_together_eagerly():
    """Each column waits for the others: a loop over columns would never end."""
    barrier = threading.Barrier(4, timeout=20)

    def cross(column, shard):
        barrier.wait()
        return shard

    collectives.in_each_column(cross, placed(np.zeros([4, 2])), DEVICES)


def reduce_bucket(values, mesh):
    sizes = [value[0].shape.num_elements() for value in values]
    layout = fusion.layout_of(sizes, mesh, Uncompressed())
    return fusion.reduce_bucket(values, layout, mesh, mean=False, compressor=Uncompressed())


@pytest.mark.parametrize("sizes", [[()], [(5,), (), (0, 2), (3, 4)], [(5000,), (7,)]])
def test_padding_never_leaks(sizes):
    mesh = fusion.Mesh(DEVICES)
    values = [placed([np.full(shape, i + 1.0, np.float32) for i in range(4)]) for shape in sizes]
    results = reduce_bucket(values, mesh)
    for shape, result in zip(sizes, results, strict=True):
        for local in result:
            np.testing.assert_array_equal(local, np.full(shape, 10.0))


def test_complex_numbers_stay_inside_a_worker():
    mesh = fusion.Mesh(DEVICES)
    value = placed([np.full([3], 1j * i, np.complex64) for i in range(4)])
    (result,) = reduce_bucket([value], mesh)
    np.testing.assert_array_equal(result[0], np.full([3], 6j))
    mesh = fusion.Mesh(DEVICES, workers=2, streams=((collectives.Ring(_Alone()),) * 4,))
    with pytest.raises(TypeError, match="complex64 tensors cannot be summed between workers"):
        reduce_bucket([value], mesh)


class _Alone:
    size = 1
