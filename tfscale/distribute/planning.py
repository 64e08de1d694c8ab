"""The buckets of a step, chosen from when gradients are ready and what each kind of link costs.

`merging` knows the best buckets of tensors of one kind under a model that has no noise. Here a
step with tensors of several kinds gets its plan, and one that does not lean on the model for more
than it gains.
"""

import dataclasses
import statistics

from tfscale.distribute import buckets, merging

PLAIN_BYTES = 4 << 20
# What a plan has to gain, as a share of the time that it shortens: less is within the error of
# the measurement.
_WORTH = 0.02
# Buckets may grow only as far as it gains something. A bucket that holds nearly everything is as
# good on paper, but is summed inside the worker while the link is idle, and leaves no time to make
# up for a link that is slower than measured.
_LIMITS = (PLAIN_BYTES, 4 * PLAIN_BYTES, 16 * PLAIN_BYTES, None)


@dataclasses.dataclass(frozen=True)
class Bucket:
    """A bucket of a plan and when it is predicted to travel.

    Attributes:
        tensors: `tuple` of indices of tensors.
        bytes: `int`.
        ready: `float`, when the last of its gradients is ready. This and the following in seconds
            from the moment when the first gradient of the step is.
        start: `float`, when the exchange begins.
        end: `float`, when the sum has come.
    """

    tensors: tuple
    bytes: int
    ready: float
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """The buckets of a step as they are predicted to travel.

    Attributes:
        buckets: `tuple` of `Bucket` in the order of sending.
        links: `dict` of the `merging.Link` of each kind of wire, by the compressor's name.
        plain_seconds: `float`, the time from the first ready gradient to the last sum with
            buckets of 4 MiB.
    """

    buckets: tuple
    links: dict
    plain_seconds: float

    @property
    def seconds(self):
        """The predicted time from the first ready gradient to the last sum."""
        return self.buckets[-1].end

    def describe(self):
        """Returns the plan in a few lines for people."""
        sizes = sorted(bucket.bytes for bucket in self.buckets)
        lines = [
            f"adaptive buckets: {len(sizes)}, the smallest of {sizes[0]:,} bytes, the median "
            f"{statistics.median_low(sizes):,}, the largest {sizes[-1]:,}"
        ]
        for wire, link in sorted(self.links.items()):
            name = wire.replace("none", "uncompressed", 1)
            lines.append(
                f"  measured link ({name}): {1e3 * link.latency_seconds:.3g} ms for an exchange of "
                f"a few bytes, then {1e-6 / link.seconds_per_byte:.4g} MB of gradients per second"
            )
        more = self.plain_seconds / self.seconds - 1
        lines.append(
            f"  from the first ready gradient to the last sum: {self.seconds:.4g} s predicted; "
            f"with buckets of 4 MiB {self.plain_seconds:.4g} s"
            + (f", {more:.0%} more" if more else ": they stay")
        )
        return "\n".join(lines)


def plan_by_time(specs, ready, links):
    """Returns the `Plan` of the least elaborate buckets that are as good as any.

    Buckets of 4 MiB, filled from the last tensor backwards, unless a plan is predicted to take 2 %
    less. Then the buckets of `merging.merge_by_time`, of at most 4 MiB, 16 MiB, 64 MiB, or of any
    size: the first in this order that is within 2 % of the best.

    Args:
        specs: sequence of `buckets.TensorSpec`; those of unknown shape have no part in it.
        ready: sequence of `float`, seconds from the first ready gradient; None for unknown shapes.
        links: `dict` of `merging.Link` by the name of the wire, all of them with the same streams.

    Returns:
        `Plan`, a function of the arguments alone.

    Example:
        >>> specs = [buckets.TensorSpec(name, (1000,), "float32", 4) for name in "ab"]
        >>> plan = plan_by_time(specs, [9.0, 0.0], {"none": merging.Link(1.0, 1e-3)})
        >>> [bucket.tensors for bucket in plan.buckets], plan.seconds, plan.plain_seconds
        ([(1,), (0,)], 14.0, 18.0)
    """
    plain = _predicted(specs, ready, links, buckets.plan_buckets(specs, PLAIN_BYTES).buckets)
    plain_seconds, slack, chosen = plain[-1].end, 1 + _WORTH, plain
    # Where plain buckets come close to what no plan can beat, there is nothing to look for.
    if plain_seconds > slack * _least_seconds(specs, ready, links):
        found = [
            _predicted(specs, ready, links, _merged(specs, ready, links, limit))
            for limit in _LIMITS
        ]
        best = min(plan[-1].end for plan in found)
        if slack * best < plain_seconds:
            enough = min(slack * best, plain_seconds / slack)
            chosen = next(plan for plan in found if plan[-1].end <= enough)
    return Plan(chosen, links, plain_seconds)


def _predicted(specs, ready, links, chosen):
    """The buckets with their times; all kinds of them share the streams."""
    rows = [(sum(specs[i].bytes for i in b), max(ready[i] for i in b)) for b in chosen]
    messages = [
        (time, size, links[specs[bucket[0]].wire])
        for bucket, (size, time) in zip(chosen, rows, strict=True)
    ]
    streams = next(iter(links.values())).streams
    spans = merging.schedule(messages, streams)
    return tuple(
        Bucket(tuple(bucket), size, time, *span)
        for bucket, (size, time), span in zip(chosen, rows, spans, strict=True)
    )


def _merged(specs, ready, links, limit):
    """The buckets of all tensors: those of one dtype and wire are merged by themselves."""
    shaped = [i for i, spec in enumerate(specs) if spec.shape is not None]
    chosen = []
    for members in buckets.by_kind(specs, shaped):
        link = links[specs[members[0]].wire]
        # Where two are ready at once, as the layer's kernel and bias, from the last backwards.
        members = sorted(reversed(members), key=lambda i: ready[i])
        sizes = [specs[i].bytes for i in members]
        for bucket in merging.merge_by_time(sizes, [ready[i] for i in members], link, limit):
            chosen.append(tuple(members[k] for k in bucket))
    return tuple(sorted(chosen, key=lambda bucket: max(ready[i] for i in bucket)))


def _least_seconds(specs, ready, links):
    """What no plan ends before: all that is ready from some moment on has to be sent after it."""
    latency = min(link.latency_seconds for link in links.values())
    least, after = 0.0, 0.0
    shaped = [i for i, spec in enumerate(specs) if spec.shape is not None]
    for i in sorted(shaped, key=lambda i: -ready[i]):
        after += specs[i].bytes * links[specs[i].wire].seconds_per_byte
        least = max(least, ready[i] + latency + after)
    return least
