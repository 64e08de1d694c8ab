"""Wire types against ml_dtypes' own rounding, over a group of workers made of rows of a matrix."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from tfscale.distribute import compression


def encoded_sum(compressor, rows):
    """What member 0 of an all-reduce receives, with the exchange done by hand.

    Args:
        rows: ``[size, n]``, one row for each member.
    """
    size, n = rows.shape
    sent = [compressor.encode(tf.reshape(row, [size, n // size])) for row in rows]
    parts = []
    for rank in range(size):
        received = tf.stack([words[rank] for words in sent])
        parts.append(tf.reduce_sum(compressor.decode(received), 0))
    gathered = tf.concat([compressor.encode(part[tf.newaxis]) for part in parts], 0)
    return tf.reshape(compressor.decode(gathered), [-1]).numpy()


@pytest.mark.parametrize("name, dtype", [("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)])
def test_encode_rounds_as_the_dtype_does(name, dtype):
    compressor = compression.compressor(name)
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    decoded = compressor.decode(compressor.encode(tf.constant(x))).numpy()
    np.testing.assert_array_equal(decoded, x.astype(dtype).astype(np.float32))


@pytest.mark.parametrize("name, relative", [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_sum_is_within_two_roundings(name, relative):
    compressor = compression.compressor(name)
    rows = np.random.default_rng(1).standard_normal((4, 128)).astype(np.float32)
    result = encoded_sum(compressor, tf.constant(rows))
    bound = relative * (np.abs(rows).sum(0) + np.abs(rows.sum(0)))
    assert np.all(np.abs(result - np.float64(rows).sum(0)) <= bound)


@pytest.mark.parametrize("value", [1e-7, 3e4, 1e5, 1e-30, 3e38, 0.0])
def test_float16_keeps_what_its_own_range_would_lose(value):
    compressor = compression.Float16()
    x = tf.fill([2, 6], np.float32(value))
    decoded = compressor.decode(compressor.encode(x)).numpy()
    np.testing.assert_allclose(decoded, x, rtol=2**-11)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_overflow_stays_visible(name, value):
    compressor = compression.compressor(name)
    x = tf.constant([[1.0, value, 3.0, 4.0]])
    decoded = compressor.decode(compressor.encode(x)).numpy()
    np.testing.assert_array_equal(decoded[0, 1], np.float32(value))


def test_words_are_half_as_many():
    assert compression.BFloat16().encode(tf.zeros([3, 64])).shape == [3, 32]
    # One more for the scale.
    assert compression.Float16().encode(tf.zeros([3, 64])).shape == [3, 33]


def test_names_and_errors():
    assert compression.compressor(None).name == "none"
    assert compression.compressor("float32").name == "none"
    assert compression.compressor("bfloat16").name == "bfloat16"
    assert compression.compressor("bfloat16", "bfloat16").name == "bfloat16, sums in bfloat16"
    own = compression.Float16()
    assert compression.compressor(own) is own
    with pytest.raises(ValueError, match="unknown compression 'fp8'"):
        compression.compressor("fp8")
    with pytest.raises(ValueError, match="'float32' or the wire dtype 'float16', got 'bfloat16'"):
        compression.compressor("float16", "bfloat16")
    with pytest.raises(ValueError, match="needs a compression"):
        compression.compressor(None, "bfloat16")
    with pytest.raises(ValueError, match="compressor object"):
        compression.compressor(3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: compression.Int8("no"),
        lambda: compression.Int8(0.1),
        lambda: compression.TopK(0.1, error_feedback=float("nan")),
        lambda: compression.TopK(0.1, 0.9),
    ],
)
def test_error_feedback_is_a_bool(make):
    with pytest.raises(ValueError, match="error_feedback must be True or False, got "):
        make()
