"""Int8 against its oracle in NumPy, and its error."""

import numpy as np
import pytest

from tests import member_groups
from tests import references_compression as reference
from tests.member_groups import all_reduce_by
from tfscale.distribute.compression import Int8


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("error_feedback", [True, False])
def test_steps_are_those_of_the_oracle(size, error_feedback):
    compressor = Int8(error_feedback)
    n = size * compressor.block * 8
    states = [member_groups.zero_state(compressor, n)] * size
    rng = np.random.default_rng(size)
    for _ in range(3):
        # Blocks of scales from 1e-12 to 1e12, and inside them.
        scales = np.exp(6 * rng.standard_normal((n // 256, 1)) + rng.standard_normal((1, 256)))
        rows = (rng.standard_normal((size, n)) * scales.ravel()).astype(np.float32)
        results, _ = all_reduce_by(compressor, list(rows), states)
        given = [reference.given(x, s, compressor)[1] for x, s in zip(rows, states, strict=True)]
        total, residuals = reference.int8_all_reduce(given, compressor.block)
        for result, residual in zip(results, residuals, strict=True):
            np.testing.assert_array_equal(result.total, total)
            assert len(result.state) == error_feedback
            if error_feedback:
                np.testing.assert_array_equal(result.state[0], residual)
        states = [result.state for result in results]


def test_error_is_half_a_step_of_each_rounding():
    rows = np.random.default_rng(1).standard_normal((3, 24 * 256)).astype(np.float32)
    results, _ = all_reduce_by(Int8(False), list(rows))
    steps = np.abs(rows).reshape(3, 24, 256).max(2).sum(0) / 127
    steps += (np.abs(rows.sum(0)).reshape(24, 256).max(1) + steps / 2) / 127
    error = np.abs(results[0].total - np.float64(rows).sum(0)).reshape(24, 256).max(1)
    assert np.all(error <= steps / 2 * 1.0001)
    relative = np.linalg.norm(results[0].total - rows.sum(0)) / np.linalg.norm(rows.sum(0))
    assert relative < 0.015


def test_small_integers_travel_exactly():
    rng = np.random.default_rng(2)
    rows = rng.integers(-63, 64, (2, 4096)).astype(np.float32)
    rows[0, ::256], rows[1, ::256] = 127, 0
    rows[1, 1::256], rows[0, 1::256] = 127, 0
    results, _ = all_reduce_by(Int8(), list(rows))
    np.testing.assert_allclose(results[0].total, rows.sum(0), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_spreads_over_its_block_and_no_further(value):
    rows = list(np.random.default_rng(3).standard_normal((2, 2048)).astype(np.float32))
    rows[1][700] = value
    results, _ = all_reduce_by(Int8(), rows)
    spoilt = np.arange(2048) // 256 == 700 // 256
    np.testing.assert_array_equal(np.isfinite(results[0].total), ~spoilt)


def test_blocks_too_small_for_a_scale_wait_in_the_residual():
    rows = [np.full(1024, 1e-37, np.float32)] * 2
    compressor = Int8()
    states, arrived = [member_groups.zero_state(compressor, 1024)] * 2, 0
    for _ in range(20):
        results, _ = all_reduce_by(compressor, rows, states)
        states = [result.state for result in results]
        arrived = arrived + results[0].total
    assert arrived.min() > 0
    np.testing.assert_allclose(arrived + states[0][0] + states[1][0], 4e-36, rtol=1e-5)


def test_names_hold_every_setting():
    assert Int8().name == "int8 block 256"
    assert Int8(False).name == "int8 block 256 without error feedback"
    assert Int8().slots == ("residual",) and Int8(False).slots == ()
