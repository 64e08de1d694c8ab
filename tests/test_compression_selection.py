"""The k largest magnitudes: exactly k, exactly the largest, whatever the vector is."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests import references_compression as reference
from tfscale.distribute.compression import selection

# Searched whole, and by a sample first.
SIZES = [1, 2, 1000, 5000, 70_000, 200_000]


@functools.cache
def _selector(n, k):
    return tf.function(lambda x: selection.largest_magnitudes(x, k))


def select(x, k):
    return _selector(len(x), k)(tf.constant(x)).numpy()


def vectors(n, rng):
    normal = rng.standard_normal(n).astype(np.float32)
    scales = np.exp(8 * rng.standard_normal(n)).astype(np.float32)
    return {
        "normal": normal,
        "scales from 1e-15 to 1e15": normal * scales,
        "zeros": np.zeros(n, np.float32),
        "one value": np.where(np.arange(n) == n // 3, np.float32(-2), np.float32(0)),
        "a constant": np.full(n, -3, np.float32),
        "few distinct values": rng.integers(-2, 3, n).astype(np.float32),
        "subnormal": normal * np.float32(1e-41),
        "huge": normal * np.float32(3e37),
        "one layer dominates": np.where(np.arange(n) < n // 50, 100 * normal, normal),
    }


@pytest.mark.parametrize("n", SIZES)
def test_exactly_the_k_largest(n):
    rng = np.random.default_rng(n)
    for k in sorted({1, max(1, n // 1000), max(1, n // 100), max(1, n // 3), n}):
        for name, x in vectors(n, rng).items():
            try:
                reference.assert_largest(x, select(x, k), k)
            except AssertionError as error:
                raise AssertionError(f"{name}, k {k}: {error}") from error


@pytest.mark.parametrize("n", [5000, 200_000])
def test_agrees_with_the_sorting_top_k(n):
    x = np.random.default_rng(2).standard_normal(n).astype(np.float32)
    expected = tf.math.top_k(tf.abs(x), n // 100).indices.numpy()
    np.testing.assert_array_equal(select(x, n // 100), np.sort(expected))


@pytest.mark.parametrize("n", [1000, 200_000])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_not_finite_comes_first(n, value):
    x = np.random.default_rng(3).standard_normal(n).astype(np.float32)
    for places in ([0], [n - 1], range(7, 300, 50)):
        y = x.copy()
        y[places] = value
        for k in (1, 10):
            positions = select(y, k)
            reference.assert_largest(y, positions, k)
            assert not np.isfinite(y[positions[0]]) or not np.isfinite(y[positions]).all()
    # More of them than k, and nothing else.
    assert select(np.full(n, value, np.float32), 3).shape == (3,)


@pytest.mark.parametrize("inside, k", [(100, 5000), (0.01, 3000)])
def test_a_sample_that_misleads_costs_a_pass_and_no_value(inside, k):
    """Every sampled cache line is much larger, or much smaller, than the rest."""
    n = 200_000
    x = np.random.default_rng(4).standard_normal(n).astype(np.float32)
    x[np.arange(n) % selection._ROW < selection._LINE] *= inside
    reference.assert_largest(x, select(x, k), k)


def test_the_sample_sees_every_channel():
    """Rows of 17 cache lines wander over channels, whose number is a power of two."""
    n = 1 << 20
    sampled = np.flatnonzero(np.arange(n) % selection._ROW < selection._LINE)
    for channels in (64, 256, 1024):
        counts = np.bincount(sampled % channels, minlength=channels)
        assert counts.min() > 0.9 * counts.mean()


@pytest.mark.parametrize("n", [1000, 200_000])
def test_ties_are_a_contiguous_slice_that_depends_on_the_values_only(n):
    offsets = set()
    for value in range(1, 8):
        x = np.full(n, value, np.float32)
        positions = select(x, n // 10)
        np.testing.assert_array_equal(np.diff(positions), 1)
        np.testing.assert_array_equal(positions, select(x, n // 10))
        offsets.add(positions[0])
    assert len(offsets) > 3


def test_candidates_are_few():
    """The exact search is among not much more than k; its cost is why there is a sample."""
    x = np.random.default_rng(5).standard_normal(1 << 20).astype(np.float32)
    for k, most in ((10_486, 1.7), (1049, 2.7), (52_429, 1.4)):
        assert k <= selection._candidates(tf.constant(x), k).shape[0] <= most * k
