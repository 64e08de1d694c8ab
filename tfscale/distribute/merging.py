"""Which gradients to merge into one message, from when they are ready and what the link costs.

A message costs a latency however short it is, so merging saves time; but a merged message cannot
leave before the last of its gradients is ready, so merging also wastes time. Between one message
for each tensor and one for all of them lies a best partition.
"""

import dataclasses
import math

# How many ways to reach a prefix are kept where several streams overlap. With one stream one
# way is enough: the one that ends first.
_KEPT = 8
# Ends that differ by less than this share of the whole are the same: rounding must not decide
# between plans, nor make workers of different machines choose differently.
_SAME = 1e-9


@dataclasses.dataclass(frozen=True)
class Link:
    """What an exchange of b bytes costs: ``latency_seconds + b * seconds_per_byte``.

    With several streams latencies overlap, while the bytes still go one after another::

        start[k] = max(ready[k], end[k - streams])
        end[k]   = max(start[k] + latency_seconds, end[k - 1]) + bytes[k] * seconds_per_byte

    Args:
        latency_seconds: `float`, cost of a message of no bytes.
        seconds_per_byte: `float`, cost of one byte of a bucket. For an all-reduce this holds
            everything that is proportional to the bucket: its ``2 (N - 1) / N`` trips over the
            wire, sums, copies.
        streams: `int`, messages in flight at the same time. Defaults to 1.

    Raises:
        ValueError: for a value that is negative or not finite, or fewer than one stream.

    Example:
        >>> Link(latency_seconds=0.01, seconds_per_byte=1e-6).seconds(10_000)
        0.02
    """

    latency_seconds: float
    seconds_per_byte: float
    streams: int = 1

    def __post_init__(self):
        for name in ("latency_seconds", "seconds_per_byte"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be finite and not negative, got {value!r}")
        if not isinstance(self.streams, int) or self.streams < 1:
            raise ValueError(f"streams must be a positive int, got {self.streams!r}")

    def seconds(self, size):
        """Returns the seconds that an exchange of `size` bytes takes when nothing else runs."""
        return self.latency_seconds + size * self.seconds_per_byte


def merge_by_time(sizes, ready, link, max_bucket_bytes=None):
    """Merges tensors into the buckets whose last exchange ends first.

    Tensors are taken in the order in which they become ready, and buckets are contiguous in that
    order. A bucket may leave when its last tensor is ready and the link is free::

        end[k] = max(end[k - 1], ready of the last tensor in k) + latency + bytes[k] / bandwidth

    With one stream the partition is the best of all contiguous ones, by dynamic programming over
    where the last bucket begins, and has the fewest buckets among equally good ones. With more,
    eight ways to reach each prefix are kept, so that it is the best or close to it, and never
    worse than the serial plan on the same streams.

    Args:
        sizes: sequence of `int`, bytes of each tensor.
        ready: sequence of `float`, seconds at which each tensor is ready, from any origin.
            Tensors that are ready at the same time keep the order in which they are given.
        link: `Link`.
        max_bucket_bytes: `int`, no bucket of several tensors holds more. A larger tensor is a
            bucket of its own. Defaults to None: no limit.

    Returns:
        `tuple` of buckets in the order of sending, each a `tuple` of positions in `sizes`. A
        function of the arguments alone.

    Raises:
        ValueError: if `sizes` and `ready` differ in length, a size is negative, or a time is not
            finite, or the limit is not positive.

    Example:
        >>> link = Link(latency_seconds=1.0, seconds_per_byte=0.1)
        >>> merge_by_time([10, 10, 10], [0.0, 0.5, 9.0], link)
        ((0, 1), (2,))

    References:
        Shi, Chu and Li, MG-WFBP: Efficient Data Communication for Distributed Synchronous SGD
        Algorithms, 2019 (https://arxiv.org/abs/1811.11141), which decides for one tensor at a
        time whether to merge it with the next; here all contiguous partitions are compared.
    """
    sizes, ready = _checked(sizes, ready, max_bucket_bytes)
    if not sizes:
        return ()
    order = sorted(range(len(sizes)), key=lambda i: ready[i])
    origin = ready[order[0]]
    problem = _Problem(
        times=[ready[i] - origin for i in order],
        before=_running_sum(sizes[i] for i in order),
        limit=math.inf if max_bucket_bytes is None else max_bucket_bytes,
        link=link,
    )
    cuts = _best_serial(problem)
    if link.streams > 1:
        cuts = min(
            (_without_useless_cuts(problem, found) for found in (_best_streamed(problem), cuts)),
            key=problem.end,
        )
    return tuple(tuple(order[i:j]) for i, j in zip(cuts, cuts[1:], strict=False))


def finish_time(buckets, sizes, ready, link):
    """Returns when the last exchange of any partition ends, in the time of `ready`.

    Args:
        buckets: sequence of buckets in the order of sending, each a sequence of positions.
        sizes, ready, link: as for `merge_by_time`.

    Example:
        >>> link = Link(latency_seconds=1.0, seconds_per_byte=0.1)
        >>> finish_time(((0, 1), (2,)), [10, 10, 10], [0.0, 0.5, 9.0], link)
        11.0
    """
    return max((end for _, end in exchanges(buckets, sizes, ready, link)), default=0.0)


def exchanges(buckets, sizes, ready, link):
    """Returns ``(start, end)`` of each bucket's exchange; arguments as for `finish_time`."""
    messages = [(max(ready[i] for i in b), sum(sizes[i] for i in b), link) for b in buckets]
    return schedule(messages, link.streams)


def schedule(messages, streams):
    """Returns ``(start, end)`` of each message on streams that messages of several kinds share.

    Args:
        messages: sequence of ``(ready, bytes, link)`` in the order of sending; of the `Link` only
            the two costs are used.
        streams: `int`.

    Example:
        >>> slow, fast = Link(1.0, 0.1), Link(0.5, 0.0)
        >>> schedule([(0.0, 10, slow), (0.0, 10, fast)], streams=1)
        [(0.0, 2.0), (2.0, 2.5)]
    """
    spans, ends = [], [-math.inf] * streams
    for ready, size, link in messages:
        spans.append(_next(link, ends, ready, size))
        ends = [*ends[1:], spans[-1][1]]
    return spans


def _next(link, ends, ready, size):
    """Start and end of an exchange after those that ended at `ends`, oldest first."""
    start = max(ready, ends[0])
    return start, max(start + link.latency_seconds, ends[-1]) + size * link.seconds_per_byte


@dataclasses.dataclass(frozen=True)
class _Problem:
    """Tensors in order of readiness; a bucket is a range of them, a partition a list of cuts."""

    times: list
    before: list  # bytes of all tensors before the i-th
    limit: float
    link: Link

    def starts(self, stop):
        """Where a bucket that ends before `stop` may begin, from the shortest bucket on."""
        yield stop - 1
        for start in range(stop - 2, -1, -1):
            if self.before[stop] - self.before[start] > self.limit:
                return
            yield start

    def cost(self, start, stop):
        return self.link.seconds(self.before[stop] - self.before[start])

    def end(self, cuts):
        ends = [-math.inf] * self.link.streams
        for i, j in zip(cuts, cuts[1:], strict=False):
            size = self.before[j] - self.before[i]
            ends = [*ends[1:], _next(self.link, ends, self.times[j - 1], size)[1]]
        return ends[-1]


def _best_serial(problem):
    """The cuts of the partition that ends first on one stream, of those the one with fewest."""
    count = len(problem.times)
    first = [-math.inf] + [0.0] * count  # the earliest end of all tensors before the i-th
    for j in range(1, count + 1):
        first[j] = min(
            max(first[i], problem.times[j - 1]) + problem.cost(i, j) for i in problem.starts(j)
        )
    # An end that is earlier than it needs to be is worth nothing: whoever has fewer buckets may
    # reach a prefix later. latest[i]: when the link must be free for the rest to end in time.
    latest = [-math.inf] * count + [first[count] * (1 + _SAME)]
    for j in range(count, 0, -1):
        for i in problem.starts(j):
            cost = problem.cost(i, j)
            if problem.times[j - 1] + cost <= latest[j]:
                latest[i] = max(latest[i], latest[j] - cost)
    # Layer k holds what k buckets reach in time: prefix -> (end, cuts so far).
    layer = {0: (-math.inf, (0,))}
    while count not in layer:
        following = {}
        for j in range(1, count + 1):
            for i in problem.starts(j):
                if i not in layer:
                    continue
                end, cuts = layer[i]
                end = max(end, problem.times[j - 1]) + problem.cost(i, j)
                if end <= latest[j] and (j not in following or end < following[j][0]):
                    following[j] = (end, (*cuts, j))
        layer = following
    return layer[count][1]


def _best_streamed(problem):
    """The cuts of a partition that ends early on several streams."""
    link = problem.link
    ways = [[((-math.inf,) * link.streams, (0,))]]
    for j in range(1, len(problem.times) + 1):
        found = []
        for i in problem.starts(j):
            size = problem.before[j] - problem.before[i]
            for ends, cuts in ways[i]:
                end = _next(link, ends, problem.times[j - 1], size)[1]
                found.append(((*ends[1:], end), (*cuts, j)))
        found.sort(key=lambda way: (way[0][::-1], len(way[1])))
        kept = []
        for way in found:
            if not any(all(map(float.__le__, other[0], way[0])) for other in kept):
                kept.append(way)
                if len(kept) == _KEPT:
                    break
        ways.append(kept)
    return ways[-1][0][1]


def _without_useless_cuts(problem, cuts):
    """Joins neighbours for as long as that does not end later."""
    cuts, k = list(cuts), 1
    allowed = problem.end(cuts) * (1 + _SAME)
    while k < len(cuts) - 1:
        joined = cuts[:k] + cuts[k + 1 :]
        fits = problem.before[cuts[k + 1]] - problem.before[cuts[k - 1]] <= problem.limit
        if fits and problem.end(joined) <= allowed:
            cuts = joined
        else:
            k += 1
    return cuts


def _running_sum(values):
    total = [0]
    for value in values:
        total.append(total[-1] + value)
    return total


def _checked(sizes, ready, max_bucket_bytes):
    sizes, ready = list(sizes), [float(time) for time in ready]
    if len(sizes) != len(ready):
        raise ValueError(f"{len(sizes)} sizes but {len(ready)} ready times: one of each a tensor")
    for i, (size, time) in enumerate(zip(sizes, ready, strict=True)):
        if size < 0 or not math.isfinite(time):
            raise ValueError(
                f"tensor {i} has {size!r} bytes and is ready at {time!r} s; sizes cannot be "
                "negative and times must be finite"
            )
    if max_bucket_bytes is not None and max_bucket_bytes < 1:
        raise ValueError(f"max_bucket_bytes must be at least 1 or None, got {max_bucket_bytes!r}")
    return sizes, ready
