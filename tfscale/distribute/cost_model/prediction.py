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

    A bucket of b bytes passes three stages. In the first, buckets that are ready share the CPU;
    the others work on one bucket at a time::

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
    seconds = _end(stages, [0.0] * len(plan), method.streams)
    exposed = seconds
    if ready is not None:
        last = max(ready, default=0.0)
        exposed = _end(stages, [max(ready[i] for i in b) for _, b in plan], method.streams) - last
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


def _end(stages, ready, streams):
    """When the last bucket has passed all stages."""
    prepared = _shared([stage.before for stage in stages], ready)
    after, ends = 0.0, [0.0] * streams
    for stage, time in zip(stages, prepared, strict=True):
        start = max(time, ends[0])
        end = max(start + stage.latency + stage.between, ends[-1]) + stage.link
        ends = [*ends[1:], end]
        after = max(after, end) + stage.after
    all_work = math.fsum(stage.cpu for stage in stages)
    return max(after, min(ready, default=0.0) + all_work)


def _shared(work, ready):
    """When each of several tasks is done if all that have begun share the CPU equally.

    TensorFlow runs operations in the order in which they become ready, so that buckets that are
    ready together advance together.

    Args:
        work: seconds that each task takes alone.
        ready: when each may begin, in ascending order.
    """
    done, running = [0.0] * len(work), []
    now, given = 0.0, 0.0  # given: the work that each running task has had since the beginning
    for i in range(len(work) + 1):
        until = ready[i] if i < len(work) else math.inf
        while running and now + (running[0][0] - given) * len(running) <= until:
            target, task = heapq.heappop(running)
            now += (target - given) * (len(running) + 1)
            given = target
            done[task] = now
        if i < len(work):
            if running:
                given += (until - now) / len(running)
            now = until
            heapq.heappush(running, (given + work[i], i))
    return done
