"""Adaptive fusion: against brute force over all partitions, fixed sizes and the paper's greedy."""

import itertools
import math
import random
import time

import pytest

from tfscale.distribute.merging import Link, exchanges, finish_time, merge_by_time


def partitions(count):
    """All contiguous partitions of `count` positions."""
    for inner in itertools.product([False, True], repeat=count - 1):
        cuts = [0, *(i + 1 for i, cut in enumerate(inner) if cut), count]
        yield tuple(tuple(range(i, j)) for i, j in itertools.pairwise(cuts))


def fixed_size(sizes, bucket_bytes):
    buckets, filled = [], math.inf
    for i, size in enumerate(sizes):
        if filled + size > bucket_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append(i)
        filled += size
    return buckets


def greedy_of_the_paper(sizes, ready, link):
    """Merges a tensor with the next one if that is ready within a latency of the start."""
    buckets, free = [[0]], -math.inf
    for i in range(1, len(sizes)):
        start = max(free, ready[i - 1])
        if ready[i] < start + link.latency_seconds:
            buckets[-1].append(i)
        else:
            free = start + link.seconds(sum(sizes[j] for j in buckets[-1]))
            buckets.append([i])
    return buckets


def random_case(rng, count):
    sizes = [rng.choice([0, 4, 256, 1000, 5000, 80000]) for _ in range(count)]
    ready = sorted(rng.choice([0.0, 0.1, 0.2, 0.25, 0.7, 1.0, 3.0]) for _ in range(count))
    link = Link(rng.choice([0.0, 0.01, 0.1, 0.5]), rng.choice([0.0, 1e-6, 1e-5, 1e-4]))
    return sizes, ready, link


def test_finish_time_by_hand():
    link = Link(latency_seconds=1.0, seconds_per_byte=0.5)
    assert finish_time(((0,), (1,)), [2, 4], [0.0, 5.0], link) == 8.0
    assert finish_time(((0, 1),), [2, 4], [0.0, 5.0], link) == 9.0
    assert exchanges(((0,), (1,)), [2, 4], [0.0, 1.0], link) == [(0.0, 2.0), (2.0, 5.0)]
    two = Link(latency_seconds=1.0, seconds_per_byte=0.5, streams=2)
    assert exchanges(((0,), (1,)), [2, 4], [0.0, 1.0], two) == [(0.0, 2.0), (1.0, 4.0)]
    assert finish_time((), [], [], link) == 0.0


def test_serial_link_is_as_good_as_the_best_partition_with_the_fewest_buckets():
    rng = random.Random(0)
    for _ in range(300):
        sizes, ready, link = random_case(rng, rng.randint(1, 9))
        found = merge_by_time(sizes, ready, link)
        ends = {p: finish_time(p, sizes, ready, link) for p in partitions(len(sizes))}
        best = min(ends.values())
        assert finish_time(found, sizes, ready, link) == pytest.approx(best, rel=1e-8, abs=1e-12)
        fewest = min(len(p) for p, end in ends.items() if end <= best * (1 + 1e-10))
        assert len(found) <= fewest, (sizes, ready, link)


def test_cap_is_kept_and_the_best_under_it_is_found():
    rng = random.Random(1)
    for _ in range(150):
        sizes, ready, link = random_case(rng, rng.randint(1, 9))
        cap = rng.choice([1, 300, 6000, 90000])

        def fits(bucket, sizes=sizes, cap=cap):
            return len(bucket) == 1 or sum(sizes[i] for i in bucket) <= cap

        found = merge_by_time(sizes, ready, link, max_bucket_bytes=cap)
        assert all(map(fits, found))
        best = min(
            finish_time(p, sizes, ready, link) for p in partitions(len(sizes)) if all(map(fits, p))
        )
        assert finish_time(found, sizes, ready, link) == pytest.approx(best, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("streams", [2, 4])
def test_several_streams_match_brute_force(streams):
    rng = random.Random(2)
    for _ in range(150):
        sizes, ready, link = random_case(rng, rng.randint(1, 8))
        link = Link(link.latency_seconds, link.seconds_per_byte, streams)
        found = merge_by_time(sizes, ready, link)
        best = min(finish_time(p, sizes, ready, link) for p in partitions(len(sizes)))
        assert finish_time(found, sizes, ready, link) == pytest.approx(best, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("latency, rate", [(0.0, 1e8), (3e-3, 2.5e7), (0.03, 1e9), (1.0, 1e5)])
def test_never_worse_than_fixed_sizes_or_the_greedy_and_quick(streams, latency, rate):
    rng = random.Random(3)
    sizes = [4 * rng.choice([64, 256, 1024, 2048, 16384, 262144, 1 << 20]) for _ in range(161)]
    ready = list(itertools.accumulate(rng.expovariate(160) for _ in sizes))
    link = Link(latency, 1 / rate, streams)
    start = time.process_time()
    found = merge_by_time(sizes, ready, link)
    assert time.process_time() - start < 1.0
    assert [i for bucket in found for i in bucket] == list(range(161))
    end = finish_time(found, sizes, ready, link)
    others = [fixed_size(sizes, 1 << p) for p in range(8, 30)]
    others.append(greedy_of_the_paper(sizes, ready, link))
    for other in others:
        assert end <= finish_time(other, sizes, ready, link) * (1 + 1e-8)


def test_limits_of_the_link():
    sizes, ready = [10, 20, 30], [0.0, 1.0, 2.0]
    assert merge_by_time(sizes, ready, Link(100.0, 0.0)) == ((0, 1, 2),)
    assert merge_by_time([], [], Link(1.0, 1.0)) == ()
    assert merge_by_time([5], [3.0], Link(1.0, 1.0)) == ((0,),)


def test_order_is_that_of_readiness_from_any_origin():
    link = Link(0.5, 0.01)
    now = 1.7e9
    found = merge_by_time([10, 10, 10], [now + 9, now, now + 0.25], link)
    assert found == ((1, 2), (0,))
    assert merge_by_time([1, 1], [0.0, 0.0], link) == ((0, 1),)
    assert finish_time(found, [10, 10, 10], [now + 9, now, now + 0.25], link) == now + 9.6


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Link(-1.0, 0.0), "latency_seconds must be finite and not negative, got -1.0"),
        (lambda: Link(0.0, math.nan), "seconds_per_byte must be finite"),
        (lambda: Link(0.0, 0.0, 0), "streams must be a positive int, got 0"),
        (lambda: merge_by_time([1], [], Link(0, 0)), "1 sizes but 0 ready times"),
        (lambda: merge_by_time([1, -2], [0, 0], Link(0, 0)), "tensor 1 has -2 bytes"),
        (lambda: merge_by_time([1], [math.inf], Link(0, 0)), "ready at inf"),
        (lambda: merge_by_time([1], [0], Link(0, 0), 0), "max_bucket_bytes must be at least 1"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
