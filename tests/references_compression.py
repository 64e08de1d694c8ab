"""NumPy oracles of the compressors, in float32 like them."""

import numpy as np


def given(x, state, compressor):
    """``(u, y)``: what an all-reduce was given, with its momentum, and with its residual."""
    state = dict(zip(compressor.slots, state, strict=True))
    u = x
    if compressor.momentum:
        u = np.float32(compressor.momentum) * state["velocity"] + x
    return u, u + state.get("residual", np.float32(0))


def sum_by_rank(rows):
    """The float32 sum, member by member."""
    total = np.zeros_like(rows[0])
    for row in rows:
        total = total + row
    return total


def int8_blocks(x, block):
    """What arrives of float32 ``[n]`` sent as int8 with a scale for each block."""
    x = x.reshape(-1, block)
    scale = np.abs(x).max(1, keepdims=True) * np.float32(1 / 127)
    # As TensorFlow does: results too small for a normal number are zero.
    scale[scale < np.finfo(np.float32).tiny] = 0
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    return (np.rint(x * inverse) * scale).ravel()


def int8_all_reduce(rows, block):
    """``(total, residuals)`` of `Int8`, from what each member was given in all."""
    size = len(rows)
    sent = [int8_blocks(row, block) for row in rows]
    parts = np.split(sum_by_rank(sent), size)
    arrived = [int8_blocks(part, block) for part in parts]
    residuals = [row - s for row, s in zip(rows, sent, strict=True)]
    for rank, residual in enumerate(residuals):
        np.split(residual, size)[rank][:] += parts[rank] - arrived[rank]
    return np.concatenate(arrived), residuals


def top_k(y, positions):
    """What arrives of `y` when `positions` are sent."""
    sent = np.zeros_like(y)
    sent[positions] = y[positions]
    return sent


def assert_largest(y, positions, k):
    """Exactly k positions, no value elsewhere being larger than one of them; NaN is largest."""
    assert positions.shape == (k,)
    assert np.all(np.diff(positions) > 0)
    bits = np.abs(y).view(np.int32)
    np.testing.assert_array_equal(np.sort(bits[positions]), np.sort(bits)[len(y) - k :])
