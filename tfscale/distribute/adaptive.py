"""Adaptive gradient fusion: buckets chosen from when gradients are ready and what the link costs.

The first steps run with buckets of a fixed size and note when each gradient is ready. Then the
workers measure what an exchange costs between them, tell each other, and each computes the same
plan from what all of them have seen (MG-WFBP: Shi, Chu and Li, 2019,
https://arxiv.org/abs/1811.11141).
"""

import statistics
import time

import tensorflow as tf

from tfscale.distribute import agreement, buckets, fusion, merging
from tfscale.distribute.bucket_memory import memory_of
from tfscale.distribute.error_feedback import CompressionState
from tfscale.distribute.timeline import Timeline

ADAPTIVE = "adaptive"
INITIAL_BUCKET_BYTES = 4 << 20
# The first step traces and allocates; the median of the others decides.
_STEPS = 5
# Small enough for the latency to show, large enough for the bandwidth to.
_PROBE_BYTES = (64 << 10, 2 << 20)
_PROBE_REPEATS = 3


class AdaptiveFusion:
    """Measures, plans, and remembers the plans of one all-reduce."""

    def __init__(self):
        self._plans = {}  # signature of the tensors -> buckets
        self._measured = {}  # signature -> (specs, timeline, list of its readings)

    @property
    def wants_measurement(self):
        """Whether a traced step has no plan of its own yet."""
        return bool(self._measured)

    def plan(self, specs):
        """Returns ``(BucketPlan, Timeline or None)``: with a timeline while it is measured."""
        signature = _signature(specs)
        if signature in self._plans:
            return buckets.plan_of_buckets(specs, self._plans[signature]), None
        initial = buckets.plan_buckets(specs, INITIAL_BUCKET_BYTES)
        if sum(spec.shape is not None for spec in specs) < 2:
            return initial, None
        timeline = Timeline()
        self._measured[signature] = (specs, timeline, [])
        return initial, timeline

    def use(self, fingerprint):
        """Takes over the plan that a checkpoint holds, as `BucketPlan.fingerprint` gave it."""
        specs, of_bucket = [], {}
        for i, (path, shape, dtype, bucket) in enumerate(fingerprint):
            if dtype == "sparse":
                continue
            specs.append((path, None if shape is None else tuple(shape), dtype))
            if bucket != buckets.ALONE:
                of_bucket.setdefault(bucket, []).append(i)
        chosen = tuple(tuple(reversed(of_bucket[b])) for b in sorted(of_bucket))
        self._plans[tuple(specs)] = chosen
        self._measured.pop(tuple(specs), None)

    def forget(self):
        """Drops all plans: what an exchange costs has changed."""
        self._plans.clear()
        self._measured.clear()

    def after_step(self):
        """Notes the times of the step that has run; True when there are enough to plan."""
        enough = bool(self._measured)
        for _, timeline, readings in self._measured.values():
            times = timeline.read()
            if times and (not readings or times != readings[-1]):
                readings.append(times)
            enough = enough and len(readings) >= _STEPS
        return enough

    def decide(self, strategy, mesh, compressors, timeout_seconds):
        """Makes the plans of all that was measured; every worker calls it after the same step.

        Args:
            strategy: `tf.distribute.Strategy`.
            mesh: `Mesh`.
            compressors: `dict` of the compressors in use, by name.
            timeout_seconds: `float`, how long to wait for the other workers.
        """
        links = {}
        for specs, _, readings in self._measured.values():
            ready = [_median_ready(readings[1:], i) for i in range(len(specs))]
            wires = {s.wire for s in specs if s.shape is not None}
            for wire in sorted(wires - set(links)):
                links[wire] = measure_link(mesh, compressors[wire])
            told = agreement.gather_values(
                strategy,
                "ready times and link",
                {"ready": ready, "links": {w: list(links[w]) for w in sorted(wires)}},
                timeout_seconds,
            )
            # The slowest worker decides when an exchange can begin and how long it takes.
            each = zip(*(t["ready"] for t in told), strict=True)
            ready = [None if r[0] is None else max(r) for r in each]
            slowest = {
                w: merging.Link(
                    *(max(t["links"][w][k] for t in told) for k in range(2)),
                    streams=len(mesh.streams),
                )
                for w in wires
            }
            self._plans[_signature(specs)] = _merged(specs, ready, slowest)
        self._measured.clear()


def measure_link(mesh, compressor):
    """Measures what an exchange costs; every worker calls it at the same time.

    Two sizes of buckets are sent, with as many in flight as there are streams, on all local
    devices and with the compression that gradients have::

        seconds = latency + bytes * seconds_per_byte

    Returns:
        ``(latency_seconds, seconds_per_byte)`` of one bucket.
    """
    seconds = []
    for size in _PROBE_BYTES:
        exchange = _probe(mesh, compressor, size // 4)
        exchange()
        times = []
        for _ in range(_PROBE_REPEATS):
            start = time.perf_counter()
            exchange()
            times.append(time.perf_counter() - start)
        seconds.append(statistics.median(times) / len(mesh.streams))
    per_byte = max(0.0, (seconds[1] - seconds[0]) / (_PROBE_BYTES[1] - _PROBE_BYTES[0]))
    # Messages in flight together share the time; each alone waits for its own latency.
    latency = max(1e-6, seconds[0] - per_byte * _PROBE_BYTES[0]) * len(mesh.streams)
    return latency, per_byte


def _probe(mesh, compressor, elements):
    """A function that exchanges one bucket in every stream and waits for the result."""
    state = CompressionState()
    state.begin_plan("probe", [("probe", elements)])

    @tf.function
    def exchange():
        ends = []
        for stream in range(len(mesh.streams)):
            values = []
            for device in mesh.devices:
                with tf.device(device):
                    values.append(tf.random.normal([elements]))
            layout = fusion.layout_of([elements], mesh, compressor)
            memory = memory_of(state, "probe", stream, [0], layout, mesh.devices, compressor)
            (result,) = fusion.reduce_bucket([values], mesh, False, compressor, stream, memory)
            ends += [value[0] for value in result]
        return tf.add_n(ends)

    return lambda: exchange().numpy()


def _median_ready(readings, index):
    """Seconds at which a tensor is ready, from the moment when the first one is."""
    name = f"tensor {index}"
    if name not in readings[0]:
        return None
    return statistics.median(times[name] - min(times.values()) for times in readings)


def _merged(specs, ready, links):
    """The buckets of all tensors: those of one dtype and wire are merged by themselves."""
    shaped = [i for i, spec in enumerate(specs) if spec.shape is not None]
    chosen = []
    for members in buckets.by_kind(specs, shaped):
        link = links[specs[members[0]].wire]
        # Where two are ready at once, as the layer's kernel and bias, from the last backwards.
        members = sorted(reversed(members), key=lambda i: ready[i])
        sizes = [specs[i].bytes for i in members]
        for bucket in merging.merge_by_time(sizes, [ready[i] for i in members], link):
            chosen.append(tuple(members[k] for k in bucket))
    return tuple(sorted(chosen, key=lambda bucket: max(ready[i] for i in bucket)))


def _signature(specs):
    return tuple((spec.path, spec.shape, spec.dtype) for spec in specs)
