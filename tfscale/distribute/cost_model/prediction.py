"""`predict`: the time of an exchange from its buckets, the cluster and the constants."""

import dataclasses
import heapq
import math

from tfscale.distribute import merging
from tfscale.distribute.cost_model.costs import Costs

# Of a compression's work: before the first message, between two, after the last.
_SPLIT_AROUND_TWO_ROUNDS = (0.5, 0.3, 0.2)
_SPLIT_AROUND_ONE_ROUND = (0.8, 0.0, 0.2)


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What an exchange of all gradients costs.

    Attributes:
        seconds: the exchange by itself, every gradient being ready at once.
        exposed_seconds: what is left of it after the last gradient is ready; `seconds` if no
            ready times were given.
        local_seconds: work of the CPU before and after the messages, all buckets.
        cross_seconds: messages between workers, all buckets, one after another.
        latency_seconds: of those, the part that does not depend on size.
        cpu_seconds: CPU time of one worker.
        bytes_per_link: payload that one worker sends.
        steps: messages of one bucket that follow one another.
        buckets: number of buckets.
        bound_by: what takes longest: ``"link"``, ``"latency"`` or ``"cpu"``.

    Example:
        >>> predict(Cluster(4, 2, 200e6), Method("2d"), [102_228_128]).bound_by
        'link'
    """

    seconds: float
    exposed_seconds: float
    local_seconds: float
    cross_seconds: float
    latency_seconds: float
    cpu_seconds: float
    bytes_per_link: float
    steps: int
    buckets: int
    bound_by: str


@dataclasses.dataclass(frozen=True)
class _Stages:
    """Wall seconds of one bucket: before, latency, on the link, between, after."""

    before: float
    latency: float
    link: float
    between: float
    after: float
    cpu: float  # all of its CPU work as wall time
    wire: float


def predict(cluster, method, sizes, ready=None, costs=None):
    """Predicts one exchange of gradients.

    A bucket of b bytes passes three stages. In the first, buckets that are ready share the CPU,
    ours at most 2 streams of them at a time; the others work on one bucket at a time::

        before = [(local or ring) D b / 2 + part of compression b] contention
        cross  = steps (latency + step_seconds)
                 + longer(wire, transport) + interference shorter(wire, transport) / in flight
        after  = as before, with the rest of compression

    where ``transport`` is the CPU's work on the bytes sent, streams x local devices are in flight,
    and::

        wire = (sent_share (1 + link_overhead) + direct_share uneven_connections) b 8 / rate

    With several streams, latency and the sums between two rounds of one bucket hide behind the
    bytes of others. The whole can't be shorter than all work of the CPU.

    Args:
        cluster: `Cluster`.
        method: `Method`.
        sizes: sequence of `int`, float32 bytes of each tensor, in the order in which gradients
            become ready (the last layer first).
        ready: sequence of `float`, seconds at which each gradient is ready, or None (default) if
            all are at once.
        costs: `Costs`. Defaults to ``Costs()``.

    Returns:
        `Prediction`.

    Raises:
        ValueError: if `sizes` and `ready` differ in length, or the grid does not fit.

    Example:
        >>> lab = Cluster(4, 2, 200e6, cores_per_host=2, workers_per_host=4)
        >>> predict(lab, Method("2d"), [102_228_128]).bytes_per_link
        153342192.0

    References:
        Hockney, The communication challenge for MPP, 1994 (latency and bandwidth of a message);
        Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in
        MPICH, 2005 (with the cost of a reduction).
    """
    costs = costs or Costs()
    sizes = list(sizes)
    if ready is not None and len(ready) != len(sizes):
        raise ValueError(f"{len(sizes)} sizes but {len(ready)} ready times: one of each a tensor")
    at_once = [0.0] * len(sizes)
    plan = plan_buckets(cluster, method, sizes, ready or at_once, costs)
    sent = [(by, sum(sizes[i] for i in bucket)) for by, bucket in plan]
    stages = [_stages(cluster, by, size, costs) for by, size in sent]
    seconds = _end(stages, [0.0] * len(plan), method)
    exposed = seconds
    if ready is not None:
        last = max(ready, default=0.0)
        exposed = _end(stages, [max(ready[i] for i in b) for _, b in plan], method) - last
    total = {
        field.name: math.fsum(getattr(s, field.name) for s in stages)
        for field in dataclasses.fields(_Stages)
    }
    # Streams hide all latencies but the first one's share.
    by = {"link": total["wire"], "latency": total["latency"] / method.streams, "cpu": total["cpu"]}
    return Prediction(
        seconds=seconds,
        exposed_seconds=max(0.0, exposed),
        local_seconds=total["before"] + total["between"] + total["after"],
        cross_seconds=total["latency"] + total["link"],
        latency_seconds=total["latency"],
        cpu_seconds=total["cpu"] / cluster.contention,
        bytes_per_link=sum(by.sent_share(cluster) * size for by, size in sent),
        steps=method.steps(cluster),
        buckets=len(plan),
        bound_by=max(by, key=by.get),
    )


def plan_buckets(cluster, method, sizes, ready, costs):
    """Returns ``(method, positions in sizes)`` of each bucket, in order of sending.

    The method is that of the bucket's tensors: small ones may travel uncompressed, in buckets of
    their own.
    """
    kinds = {}
    for i, size in enumerate(sizes):
        kinds.setdefault(method.for_tensor(size), []).append(i)
    plan = []
    for by, members in kinds.items():
        own = [sizes[i] for i in members]
        if method.bucket_bytes == "adaptive":
            link = bucket_link(cluster, by, costs)
            buckets = merging.merge_by_time(own, [ready[i] for i in members], link)
        else:
            buckets = _fill(own, method.bucket_bytes or math.inf)
        plan += [(by, tuple(members[k] for k in bucket)) for bucket in buckets]
    return sorted(plan, key=lambda item: max(ready[i] for i in item[1]))


def _fill(sizes, limit):
    buckets, filled = [], 0
    for i, size in enumerate(sizes):
        if not buckets or filled >= limit:
            buckets.append([])
            filled = 0
        buckets[-1].append(i)
        filled += size
    return buckets


def bucket_link(cluster, method, costs):
    """Returns the `merging.Link` that the buckets of a method see."""
    size = 1 << 20
    one = _stages(cluster, method, size, costs)
    return merging.Link(one.latency, max(one.link, one.cpu) / size, method.streams)


def _stages(cluster, method, size, costs):
    sent = method.sent_share(cluster) * size
    transport = costs.transport * sent * cluster.contention
    several = method.direct_share(cluster) * size
    wire = cluster.seconds_on_the_wire(
        sent * (1 + costs.link_overhead) + several * costs.uneven_connections
    )
    each = costs.ring if method.algorithm == "ring" else costs.local
    local = each * size * cluster.devices_per_worker * cluster.contention
    work = costs.compression(method.compression) * size * cluster.contention
    in_flight = method.streams * cluster.devices_per_worker
    two_rounds = method.has_work_between_rounds(cluster)
    split = _SPLIT_AROUND_TWO_ROUNDS if two_rounds else _SPLIT_AROUND_ONE_ROUND
    # Waking up for a step costs more where the cores are busy with other workers.
    step = cluster.latency_seconds + costs.step_seconds * max(1.0, cluster.contention)
    return _Stages(
        before=local / 2 + split[0] * work,
        latency=method.steps(cluster) * step,
        link=max(wire, transport) + costs.interference / in_flight * min(wire, transport),
        between=split[1] * work,
        after=local / 2 + split[2] * work,
        cpu=local + work + transport,
        wire=wire,
    )


def _end(stages, ready, method):
    """When the last bucket has passed all stages; arguments as `_sent`."""
    after, (_, ends) = 0.0, _sent(stages, ready, method)
    for stage, end in zip(stages, ends, strict=True):
        after = max(after, end) + stage.after
    all_work = math.fsum(stage.cpu for stage in stages)
    return max(after, min(ready, default=0.0) + all_work)


def _sent(stages, ready, method):
    """When each bucket is prepared, and when the link is done with it.

    Buckets that are ready together share the CPU equally and advance together: TensorFlow runs
    operations in the order in which they become ready. Our all-reduce lets a bucket begin only
    when the link is done with the one ``2 streams`` before, so that the first leave early.

    Args:
        stages: `_Stages` of each bucket, in the order of sending.
        ready: seconds at which each bucket's gradients are, in ascending order.
        method: `Method`.

    Returns:
        Two lists of seconds.
    """
    count = len(stages)
    lead = count if method.algorithm in ("ring", "tree") else 2 * method.streams
    coming = [(ready[i], i) for i in range(min(lead, count))]  # a heap of when each may begin
    running = []  # a heap of (`worked` when it is done, bucket)
    now = worked = 0.0  # worked: what each one that has run all along has had of the CPU
    prepared, ends = [None] * count, []
    while coming or running:
        begins = coming[0][0] if coming else math.inf
        if not running or now + (running[0][0] - worked) * len(running) > begins:
            _, bucket = heapq.heappop(coming)
            worked += max(0.0, begins - now) / max(1, len(running))
            now = max(now, begins)
            heapq.heappush(running, (worked + stages[bucket].before, bucket))
            continue
        done, bucket = heapq.heappop(running)
        now += (done - worked) * (len(running) + 1)
        worked, prepared[bucket] = done, now
        while len(ends) < count and prepared[len(ends)] is not None:
            i, stage = len(ends), stages[len(ends)]
            free = ends[i - method.streams] if i >= method.streams else 0.0
            arrived = max(prepared[i], free) + stage.latency + stage.between
            ends.append(max(arrived, ends[-1] if ends else 0.0) + stage.link)
            if i + lead < count:
                heapq.heappush(coming, (max(ready[i + lead], ends[-1]), i + lead))
    return prepared, ends
