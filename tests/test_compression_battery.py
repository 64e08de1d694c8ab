"""Every compressor through one battery: the law, the long run, NaN, odd vectors, bytes, graphs."""

import numpy as np
import pytest
import tensorflow as tf

from tests import member_groups
from tests import references_compression as reference
from tests.member_groups import all_reduce_by
from tfscale.distribute.compression import (
    BFloat16,
    Float16,
    Int8,
    TopK,
    Uncompressed,
    compressor,
)

COMPRESSORS = {
    c.name: c
    for c in (
        Uncompressed(),
        Uncompressed(momentum=0.9),
        BFloat16(),
        BFloat16("bfloat16"),
        Float16(),
        Float16("float16"),
        Int8(),
        Int8(error_feedback=False),
        TopK(0.05),
        TopK(0.05, momentum=0.9),
        TopK(0.05, momentum=0.9, factor_masking=True),
        TopK(0.05, error_feedback=False),
        TopK(1.0, momentum=0.9),
    )
}
WITH_FEEDBACK = [name for name, c in COMPRESSORS.items() if "residual" in c.slots]
every_compressor = pytest.mark.parametrize("name", COMPRESSORS)
every_feedback = pytest.mark.parametrize("name", WITH_FEEDBACK)
two_and_three = pytest.mark.parametrize("size", [2, 3])
EPSILON = 2.0**-24  # float32 rounds by at most this share


def length(size):
    return size * 2 * 1024


def random_rows(size, seed, kind="normal"):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((size, length(size)))
    if kind == "mixed scales":
        x *= np.exp(5 * rng.standard_normal(x.shape))
    if kind == "huge":
        x *= 1e37
    if kind == "tiny":
        x *= 1e-37
    if kind == "subnormal":
        x *= 1e-41
    if kind == "constant":
        x = np.full(x.shape, 0.1)
    if kind == "zeros":
        x *= 0
    return list(x.astype(np.float32))


@every_feedback
@two_and_three
@pytest.mark.parametrize(
    "kind", ["normal", "mixed scales", "huge", "tiny", "subnormal", "constant", "zeros"]
)
def test_what_left_the_members_is_what_arrived(name, size, kind):
    """The law: sum of (y - new residual) == total, up to the rounding of float32 sums."""
    c = COMPRESSORS[name]
    states = [member_groups.zero_state(c, length(size))] * size
    for step in range(3):
        rows = random_rows(size, step, kind)
        results, _ = all_reduce_by(c, rows, states)
        left, rounding = 0, 0
        for x, state, result in zip(rows, states, results, strict=True):
            y = reference.given(x, state, c)[1]
            left = left + (np.float64(y) - result.state[0])
            if isinstance(c, Int8):
                sent = reference.int8_blocks(y, c.block)
                rounding = rounding + EPSILON * np.abs(result.state[0])
            else:
                sent = y - result.state[0]
            rounding = rounding + EPSILON * (size - 1) * np.abs(np.float64(sent))
        # TensorFlow's kernels flush subnormal results to zero.
        flushed = 3 * size * np.finfo(np.float32).tiny
        assert np.all(np.abs(left - results[0].total) <= rounding + flushed)
        for result in results:
            np.testing.assert_array_equal(result.total, results[0].total)
            assert result.finite
        states = [result.state for result in results]


@every_feedback
def test_the_long_run_is_unbiased(name):
    """What arrived in all, and what is still owed, is what was given in all."""
    c, size, steps = COMPRESSORS[name], 2, 25
    n = length(size)
    states = [member_groups.zero_state(c, n)] * size
    arrived, owed, magnitude = np.zeros(n), np.zeros(n), np.zeros(n)
    for step in range(steps):
        rows = random_rows(size, step)
        for x, state in zip(rows, states, strict=True):
            owed += reference.given(x, state, c)[0]
        results, _ = all_reduce_by(c, rows, states)
        states = [result.state for result in results]
        arrived += results[0].total
        magnitude += sum(np.abs(s[0]) for s in states) + np.abs(results[0].total)
    residual = sum(np.float64(state[0]) for state in states)
    # One rounding a step and member each, of the sum and of what is added to the residual.
    assert np.all(np.abs(arrived + residual - owed) <= 4 * EPSILON * (magnitude + steps))


@every_compressor
@two_and_three
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen_by_all_and_kept_by_none(name, size, value):
    c, n = COMPRESSORS[name], length(size)
    before = [
        tuple(random_rows(2, 5 + i)[j][:1].repeat(n) for j in range(len(c.slots)))
        for i in range(size)
    ]
    for place, member in ((0, 0), (1030, size - 1), (n - 1, 0)):
        rows = random_rows(size, 1)
        rows[member][place] = value
        results, _ = all_reduce_by(c, rows, before)
        for old, result in zip(before, results, strict=True):
            assert not np.isfinite(result.total[place])
            assert bool(result.finite) == (not c.slots)
            for state in member_groups.kept(old, result):
                assert np.isfinite(state).all()
    # And the step after is as if nothing had happened.
    rows = random_rows(size, 2)
    results, _ = all_reduce_by(c, rows, before)
    assert all(np.isfinite(result.total).all() and result.finite for result in results)


@pytest.mark.parametrize("name", [name for name, c in COMPRESSORS.items() if c.slots])
def test_a_sum_that_overflows_is_seen(name):
    c = COMPRESSORS[name]
    rows = [np.full(length(2), 3e38, np.float32)] * 2
    results, _ = all_reduce_by(c, rows)
    for result in results:
        assert not np.isfinite(result.total).all()
        assert not result.finite


@every_compressor
@two_and_three
def test_zeros_stay_zeros(name, size):
    c = COMPRESSORS[name]
    results, _ = all_reduce_by(c, random_rows(size, 0, "zeros"))
    for result in results:
        assert result.finite
        for vector in (result.total, *result.state):
            np.testing.assert_array_equal(vector, 0)


@every_compressor
@pytest.mark.parametrize("parts", [1, 2])
def test_the_shortest_vectors(name, parts):
    c, size = COMPRESSORS[name], 3
    n = size * c.block * parts
    rows = [np.full(n, 2.0**i, np.float32) for i in range(size)]
    results, _ = all_reduce_by(c, rows)
    for result in results:
        assert result.total.shape == (n,)
        if isinstance(c, TopK) and c.ratio < 1 and parts == 2:  # one value of each member
            assert result.total.sum() == 7
        else:
            np.testing.assert_allclose(result.total, 7, rtol=1e-2)
        assert [state.shape for state in result.state] == [(n,)] * len(c.slots)


@every_compressor
def test_alone_everything_arrives(name):
    c, n = COMPRESSORS[name], length(1)
    state = tuple(random_rows(1, 3 + i)[0] for i in range(len(c.slots)))
    x = random_rows(1, 1)[0]
    (result,), (sent,) = all_reduce_by(c, [x], [state])
    u, y = reference.given(x, state, c)
    np.testing.assert_array_equal(result.total, y)
    for slot, kept in zip(c.slots, result.state, strict=True):
        np.testing.assert_array_equal(kept, u if slot == "velocity" else np.zeros(n))
    assert sent == 0 and result.finite


@every_compressor
@two_and_three
def test_bytes_are_those_that_were_sent(name, size):
    c = COMPRESSORS[name]
    _, sent = all_reduce_by(c, random_rows(size, 0))
    # Float16's own scale: one word a message, whatever its length.
    own = 4 * (size - 1) * 2 if name == "float16" else 0
    expected = c.bytes_per_element(size) * length(size)
    for count in sent:
        # A ratio's k is rounded to a whole number of values.
        assert abs(count - own - expected) <= 4 * (size - 1) * isinstance(c, TopK) + 1e-6


def test_bytes_per_element():
    assert Uncompressed().bytes_per_element(4) == 6
    assert BFloat16().bytes_per_element(4) == Float16().bytes_per_element(4) == 3
    assert Int8().bytes_per_element(4) == 1.5 * (1 + 4 / 256)
    assert TopK(0.01).bytes_per_element(4) == pytest.approx(0.24)
    assert TopK(0.25).bytes_per_element(8) == Uncompressed().bytes_per_element(8)
    assert all(c.bytes_per_element(1) == 0 for c in COMPRESSORS.values())


@every_compressor
def test_the_same_again_to_the_bit_also_in_a_graph(name):
    c, n, size = COMPRESSORS[name], length(2), 2
    group = member_groups.EchoGroup(size, rank=1)
    for kind in ("mixed scales", "constant"):
        x = tf.constant(random_rows(size, 0, kind)[0])
        state = tuple(tf.constant(random_rows(size, 4 + i)[0]) for i in range(len(c.slots)))
        graph = tf.function(lambda x, state: c.all_reduce(x, group, state))
        eager = c.all_reduce(x, group, state)
        for reduced in (c.all_reduce(x, group, state), graph(x, state), graph(x, state)):
            for a, b in zip(tf.nest.flatten(eager), tf.nest.flatten(reduced), strict=True):
                np.testing.assert_array_equal(a, b)
                assert a.shape == b.shape
        shapes = graph.get_concrete_function(x, state).structured_outputs
        assert [t.shape for t in tf.nest.flatten(shapes)][:-1] == [[n]] * (1 + len(c.slots))


@every_compressor
def test_grids_of_workers(name):
    """Rows of a grid travel by these two; both have to undo each other."""
    c = COMPRESSORS[name]
    group = member_groups.EchoGroup(2, rank=1)
    x = tf.constant(random_rows(2, 0)[0])
    part = c.reduce_scatter(x, group)
    np.testing.assert_allclose(part, 2 * x[length(2) // 2 :], rtol=2**-7)
    np.testing.assert_allclose(c.all_gather(part, group)[: part.shape[0]], part, rtol=2**-7)


def test_the_object_that_a_name_stands_for():
    assert compressor("int8").name == Int8().name
    assert compressor("topk").name == TopK(0.01).name
    with pytest.raises(ValueError, match="'int8', 'topk'"):
        compressor("powersgd")
    with pytest.raises(ValueError, match="the sums of 'int8' are in float32"):
        compressor("int8", "bfloat16")
    with pytest.raises(ValueError, match="has its own; leave it out"):
        compressor(Float16("float16"), "float16")
