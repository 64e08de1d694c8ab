"""Adaptive gradient fusion: buckets chosen from when gradients are ready and what the link costs.

The first steps run with buckets of a fixed size and note when each gradient is ready. Then the
workers measure what an exchange costs between them, tell each other, and each computes the same
plan from what all of them have seen (MG-WFBP: Shi, Chu and Li, 2019,
https://arxiv.org/abs/1811.11141).
"""

import logging
import statistics

from tfscale.distribute import _tf_private, agreement, buckets, planning
from tfscale.distribute.link_cost import measure_link
from tfscale.distribute.timeline import Timeline

_logger = logging.getLogger("tfscale")

ADAPTIVE = "adaptive"
INITIAL_BUCKET_BYTES = planning.PLAIN_BYTES
# The first step traces and allocates; the median of the others decides.
_STEPS = 5
# A step that was not run for so many others is not waited for.
_GONE_AFTER = 4 * _STEPS


class AdaptiveFusion:
    """Measures, plans, and remembers the plans of one all-reduce.

    Attributes:
        present: `planning.Plan` of the step that was traced last; None if its buckets do not come
            from a measurement of this process.
    """

    def __init__(self):
        self.present = None
        self._chosen = {}  # signature of the tensors -> buckets
        self._plans = {}  # signature -> `planning.Plan`, where it was measured in this process
        self._measured = {}  # signature -> (specs, timeline, list of its readings)
        self._idle = {}  # signature -> steps since its last reading

    @property
    def wants_measurement(self):
        """Whether a traced step has no plan of its own yet."""
        return bool(self._measured)

    def plan(self, specs):
        """Returns ``(BucketPlan, Timeline or None)``: with a timeline while it is measured."""
        signature = _signature(specs)
        self.present = self._plans.get(signature)
        if signature in self._chosen:
            return buckets.plan_of_buckets(specs, self._chosen[signature]), None
        initial = buckets.plan_buckets(specs, INITIAL_BUCKET_BYTES)
        if sum(spec.shape is not None for spec in specs) < 2:
            return initial, None
        timeline = Timeline()
        self._measured[signature], self._idle[signature] = (specs, timeline, []), 0
        return initial, timeline

    def use(self, fingerprint):
        """Takes over the plan that a checkpoint holds, as `BucketPlan.fingerprint` gave it.

        Only the buckets are in it, not what they were chosen from.
        """
        specs, of_bucket = [], {}
        for i, (path, shape, dtype, bucket) in enumerate(fingerprint):
            if dtype == "sparse":
                continue
            specs.append((path, None if shape is None else tuple(shape), dtype))
            if bucket != buckets.ALONE:
                of_bucket.setdefault(bucket, []).append(i)
        signature = tuple(specs)
        self._chosen[signature] = tuple(tuple(reversed(of_bucket[b])) for b in sorted(of_bucket))
        self._plans.pop(signature, None)
        self._measured.pop(signature, None)

    def forget(self):
        """Drops all plans: what an exchange costs has changed."""
        self.present = None
        self._chosen.clear()
        self._plans.clear()
        self._measured.clear()

    def after_step(self):
        """Notes the times of the step that has run; True when there are enough to plan.

        A model that is gone, or trained no more, is waited for no longer.
        """
        for signature, (_, timeline, readings) in list(self._measured.items()):
            times = timeline.read()
            self._idle[signature] += 1
            if times and (not readings or times != readings[-1]):
                readings.append(times)
                self._idle[signature] = 0
            if self._idle[signature] >= _GONE_AFTER:
                del self._measured[signature]
        return bool(self._ready())

    def _ready(self):
        """What has enough readings: all that is planned together, on every worker the same."""
        return [m for m in self._measured.values() if len(m[2]) >= _STEPS]

    def decide(self, strategy, mesh, compressors, timeout_seconds):
        """Makes the plans of what `after_step` found; every worker calls it after the same step.

        All steps are traced again afterwards, and measured then if they have no plan yet.

        Args:
            strategy: `tf.distribute.Strategy`.
            mesh: `Mesh`.
            compressors: `dict` of the compressors in use, by name.
            timeout_seconds: `float`, how long to wait for the other workers.
        """
        bytes_of, links = {}, {}
        for specs, *_ in self._ready():
            for spec in specs:
                if spec.shape is not None:
                    bytes_of[spec.wire] = bytes_of.get(spec.wire, 0) + spec.bytes
        for wire in sorted(bytes_of):
            links[wire] = measure_link(
                strategy, mesh, compressors[wire], bytes_of[wire], timeout_seconds
            )
        for specs, _, readings in self._ready():
            wires = {spec.wire for spec in specs if spec.shape is not None}
            ready = _ready_times(readings[1:], len(specs))
            told = agreement.gather_values(strategy, "ready times", ready, timeout_seconds)
            # The slowest worker decides when an exchange can begin.
            ready = [max(times) for times in zip(*told, strict=True)]
            plan = planning.plan_by_time(specs, ready, {wire: links[wire] for wire in wires})
            signature = _signature(specs)
            self._plans[signature] = plan
            self._chosen[signature] = tuple(bucket.tensors for bucket in plan.buckets)
            if _tf_private.worker_index(strategy) == 0:  # The others have the same.
                _logger.info("%s", plan.describe())
        self._measured.clear()


def _ready_times(readings, count):
    """Seconds at which each tensor is ready, from the moment when the first one is."""
    times = [[reading[f"tensor {i}"] for i in range(count)] for reading in readings]
    since = [[time - min(step) for time in step] for step in times]
    return [statistics.median(of_tensor) for of_tensor in zip(*since, strict=True)]


def _signature(specs):
    return tuple((spec.path, spec.shape, spec.dtype) for spec in specs)
