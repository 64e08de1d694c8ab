"""TopK: what travels, what stays, momentum correction and factor masking, the warm-up."""

import numpy as np
import pytest
import tensorflow as tf

from tests import member_groups
from tests import references_compression as reference
from tests.member_groups import all_reduce_by
from tfscale.distribute.compression import TopK, Uncompressed, top_k, top_k_warmup


def rows_of(size, n, seed=0):
    return list(np.random.default_rng(seed).standard_normal((size, n)).astype(np.float32))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("momentum, masking", [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("n", [600, 90_000])
def test_steps_are_those_of_the_oracle(size, momentum, masking, n):
    compressor = TopK(0.02, momentum=momentum, factor_masking=masking)
    k = round(0.02 * n)
    states = [member_groups.zero_state(compressor, n)] * size
    for step in range(3):
        rows = rows_of(size, n, step)
        results, _ = all_reduce_by(compressor, rows, states)
        arrived = []
        for x, state, result in zip(rows, states, results, strict=True):
            u, y = reference.given(x, state, compressor)
            # Nothing but what was sent has left the residual.
            positions = np.flatnonzero(y != result.state[0])
            reference.assert_largest(y, positions, k)
            arrived.append(reference.top_k(y, positions))
            np.testing.assert_array_equal(result.state[0], y - arrived[-1])
            if momentum:
                stopped = reference.top_k(u, positions) if masking else 0
                np.testing.assert_array_equal(result.state[1], u - stopped)
        for result in results:
            np.testing.assert_array_equal(result.total, reference.sum_by_rank(arrived))
        states = [result.state for result in results]


def test_without_error_feedback_the_rest_is_lost():
    compressor = TopK(0.1, error_feedback=False)
    assert compressor.slots == ()
    rows = rows_of(2, 100)
    results, _ = all_reduce_by(compressor, rows)
    expected = [reference.top_k(x, np.argsort(-np.abs(x))[:10]) for x in rows]
    np.testing.assert_array_equal(results[1].total, expected[0] + expected[1])
    assert results[1].state == () and results[1].finite


@pytest.mark.parametrize(
    "ratio, size, n", [(1.0, 2, 300), (0.5, 2, 300), (0.4, 3, 300), (0.01, 3, 3)]
)
def test_the_whole_vector_where_it_is_no_longer_than_the_messages(ratio, size, n):
    compressor = TopK(ratio, momentum=0.9)
    rows, states = rows_of(size, n), [tuple(rows_of(2, n, 9 + i)) for i in range(size)]
    results, sent = all_reduce_by(compressor, rows, states)
    both = [reference.given(x, s, compressor) for x, s in zip(rows, states, strict=True)]
    for result, (u, _) in zip(results, both, strict=True):
        np.testing.assert_array_equal(result.total, reference.sum_by_rank([y for _, y in both]))
        np.testing.assert_array_equal(result.state[0], 0)
        np.testing.assert_array_equal(result.state[1], u)
    assert sent[0] <= 8 * max(1, round(ratio * n)) * (size - 1)


def test_sending_all_with_momentum_is_plain_momentum():
    compressor, plain = TopK(1.0, momentum=0.9), Uncompressed(momentum=0.9)
    assert compressor.dense.name == plain.name and plain.slots == ("velocity",)
    states = [member_groups.zero_state(compressor, 64)] * 2
    plain_states = [member_groups.zero_state(plain, 64)] * 2
    velocity = np.zeros(64)
    for step in range(5):
        rows = rows_of(2, 64, step)
        results, _ = all_reduce_by(compressor, rows, states)
        expected, _ = all_reduce_by(plain, rows, plain_states)
        velocity = 0.9 * velocity + rows[0] + rows[1]
        np.testing.assert_array_equal(results[0].total, expected[0].total)
        np.testing.assert_allclose(results[0].total, velocity, rtol=1e-5, atol=1e-5)
        states = [r.state for r in results]
        plain_states = [r.state for r in expected]


def test_a_constant_gradient_arrives_whole_in_the_long_run():
    """Equal values take turns: what waits has grown, and is larger than what was just sent."""
    compressor, n = TopK(0.1), 1000
    rows, states = [np.ones(n, np.float32)] * 2, [member_groups.zero_state(TopK(), n)] * 2
    total = np.zeros(n)
    for _ in range(10):
        results, _ = all_reduce_by(compressor, rows, states)
        states = [r.state for r in results]
        total += results[0].total
    assert (total > 0).mean() > 0.6
    np.testing.assert_array_equal(total + states[0][0] + states[1][0], 20)


def test_warmup():
    np.testing.assert_allclose(
        top_k_warmup(0.001), [0.25, 0.0625, 0.015625, 0.0039, 0.001], rtol=0.03
    )
    assert top_k_warmup(0.01, steps=0) == [0.01]
    assert top_k_warmup(0.02, steps=1, start=0.5) == [0.5, 0.02]
    with pytest.raises(
        ValueError, match="start must be at least ratio, got start 0.1 and ratio 0.2"
    ):
        top_k_warmup(0.2, start=0.1)
    with pytest.raises(ValueError, match="steps must be an int >= 0, got -1"):
        top_k_warmup(0.2, steps=-1)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"ratio": 0}, r"ratio must be a number in \(0, 1\], got 0"),
        ({"ratio": 1.5}, r"ratio must be a number in \(0, 1\], got 1.5"),
        ({"ratio": "1%"}, "got '1%'"),
        ({"ratio": float("nan")}, "got nan"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"momentum": None}, "got None"),
        ({"min_elements": -1}, "min_elements must be an int >= 0, got -1"),
        ({"min_elements": 1e3}, "min_elements must be an int >= 0, got 1000.0"),
        ({"momentum": 0.9, "error_feedback": False}, "needs error_feedback=True"),
        ({"factor_masking": True}, "momentum=0 has none"),
        ({"momentum": 0.9, "factor_masking": 1}, "must be True or False, got 1"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        TopK(**arguments)


def test_names_hold_every_setting():
    names = {
        TopK().name,
        TopK(0.02).name,
        TopK(0.0200000001).name,  # another k in a long vector
        TopK(momentum=0.9).name,
        TopK(momentum=0.9, factor_masking=True).name,
        TopK(error_feedback=False).name,
        TopK(min_elements=1).name,
    }
    assert len(names) == 7


def test_both_sums_are_the_same_to_the_bit():
    generator = np.random.default_rng(3)
    positions = np.stack([generator.permutation(1000)[:200] for _ in range(5)]).astype(np.int32)
    values = generator.standard_normal((5, 200)).astype(np.float32)
    expected = top_k.sum_at_once(tf.constant(values), tf.constant(positions), 1000)
    by_member = top_k.sum_by_member(tf.constant(values), tf.constant(positions), 1000)
    np.testing.assert_array_equal(by_member, expected)
