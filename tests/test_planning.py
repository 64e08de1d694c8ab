"""The choice of buckets: when 4 MiB stay, when others pay, and how far buckets grow."""

import itertools
import random

import pytest

from tests.test_adaptive import CHOSEN, SPECS
from tfscale.distribute import buckets, merging, planning

MIB = 1 << 20
READY = [3.0, 2.0, 1.5, None, 1.0]


def links(latency, seconds_per_byte=1e-6, streams=1):
    return {name: merging.Link(latency, seconds_per_byte, streams) for name in ("none", "int8")}


def model(sizes):
    return [buckets.TensorSpec(f"{i}", (size // 4,), "float32", 4) for i, size in enumerate(sizes)]


def plan_of(sizes, ready, **link):
    specs = model(sizes)
    plan = planning.plan_by_time(specs, ready, {"none": links(**link)["none"]})
    plain = buckets.plan_buckets(specs, 4 * MIB).buckets
    return plan, tuple(bucket.tensors for bucket in plan.buckets) == plain


# Of many sizes, as in a convolutional network: 40 MiB.
SIZES = [int(4096 * 1.08**i) for i in range(90)]
AT_ONCE = [0.0] * len(SIZES)


def backward(seconds):
    """Ready times of `SIZES`: the last tensor first."""
    return [seconds * (1 - (i + 1) / len(SIZES)) for i in range(len(SIZES))]


def test_a_slow_link_merges_what_a_fast_one_does_not():
    # The exchange of e ends before a is ready: merging would only delay it.
    fast = planning._merged(SPECS, READY, links(1e-3), None)
    assert fast == ((4,), (2,), (1,), (0,))
    # Where a message costs more than waiting for a, the two travel together.
    assert planning._merged(SPECS, READY, links(10.0), None) == CHOSEN


def test_kinds_are_never_mixed_and_share_the_link():
    plan = planning.plan_by_time(SPECS, READY, links(0.75))
    for bucket in plan.buckets:
        assert len({SPECS[i].kind for i in bucket.tensors}) == 1
    assert sorted(i for b in plan.buckets for i in b.tensors) == [0, 1, 2, 4]
    for before, bucket in itertools.pairwise(plan.buckets):
        assert bucket.start >= before.end
    for bucket in plan.buckets:
        assert bucket.ready == max(READY[i] for i in bucket.tensors) <= bucket.start
        assert bucket.end == pytest.approx(bucket.start + 0.75 + bucket.bytes * 1e-6)


def test_gradients_that_are_ready_at_once_travel_in_plain_buckets():
    # One bucket of everything would be as good by the model, and hides no sum inside the worker.
    for streams in (2, 4):
        plan, is_plain = plan_of(
            SIZES, AT_ONCE, latency=5e-3, seconds_per_byte=6e-8, streams=streams
        )
        assert is_plain and plan.seconds == plan.plain_seconds


def test_long_backward_passes_take_plain_buckets():
    assert plan_of(SIZES, backward(100.0), latency=5e-3, seconds_per_byte=6e-8, streams=4)[1]


def test_a_long_latency_takes_few_buckets():
    plan, is_plain = plan_of(SIZES, AT_ONCE, latency=5.0, seconds_per_byte=1e-9)
    assert not is_plain and len(plan.buckets) == 1
    assert plan.seconds == pytest.approx(5.0, rel=0.02) and plan.plain_seconds > 30


def test_a_large_first_layer_does_not_wait_for_small_ones():
    """A wide embedding is ready last: what is before it should be gone by then."""
    sizes, ready = [16 * MIB] + [64 << 10] * 16, [1.1] + [1 - i / 16 for i in range(16)]
    plan, is_plain = plan_of(sizes, ready, latency=1e-3, seconds_per_byte=5e-8)
    assert not is_plain and plan.seconds < plan.plain_seconds
    assert plan.buckets[-1].tensors == (0,) and len(plan.buckets) < 6


@pytest.mark.parametrize("streams", [1, 4])
@pytest.mark.parametrize("seconds", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("latency, rate", [(1e-4, 1e9), (5e-3, 17e6), (3e-2, 5e8)])
def test_within_two_percent_of_any_and_never_crumbs(streams, seconds, latency, rate):
    rng = random.Random(0)
    ready = [max(0.0, time + rng.uniform(0, 0.01) * seconds) for time in backward(seconds)]
    ready = [time - min(ready) for time in ready]
    plan, is_plain = plan_of(
        SIZES, ready, latency=latency, seconds_per_byte=1 / rate, streams=streams
    )
    specs, link = model(SIZES), merging.Link(latency, 1 / rate, streams)
    least = planning._least_seconds(specs, ready, {"none": link})
    assert least <= plan.seconds * (1 + 1e-9)
    for p in range(12, 28):
        fixed = buckets.plan_buckets(specs, 1 << p).buckets
        assert plan.seconds <= 1.02 * merging.finish_time(fixed, SIZES, ready, link)
    assert is_plain or plan.seconds <= plan.plain_seconds / 1.02
    assert len(plan.buckets) <= 30


def test_the_smallest_limit_that_is_as_good_is_taken():
    """The backward pass takes much longer than the exchange, but for its last 8 MiB."""
    sizes = [8 * MIB] + [MIB] * 100
    ready = [101.0] + [float(100 - i) for i in range(100)]
    plan, is_plain = plan_of(sizes, ready, latency=0.2, seconds_per_byte=1 / MIB, streams=2)
    one = planning._merged(model(sizes), ready, {"none": merging.Link(0.2, 1 / MIB, 2)}, limit=None)
    assert max(b.bytes for b in plan.buckets) <= 8 * MIB
    assert plan.seconds <= 1.02 * merging.finish_time(
        one, sizes, ready, merging.Link(0.2, 1 / MIB, 2)
    )


def test_description():
    text = plan_of(SIZES, AT_ONCE, latency=5.0, seconds_per_byte=1e-8)[0].describe()
    first, link, times = text.splitlines()
    size = f"{sum(4 * (s // 4) for s in SIZES):,}"
    assert first == (
        f"adaptive buckets: 1, the smallest of {size} bytes, the median {size}, the largest {size}"
    )
    assert link == (
        "  measured link (uncompressed): 5e+03 ms for an exchange of a few bytes, then 100 MB of "
        "gradients per second"
    )
    assert times.startswith("  from the first ready gradient to the last sum: 5.5")
    plain = plan_of(SIZES, AT_ONCE, latency=1e-3, seconds_per_byte=1e-8, streams=4)[0].describe()
    assert plain.endswith("s: they stay")
