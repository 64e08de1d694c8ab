"""The exchange of one step's values: planned in buckets, agreed between workers, summed."""

import contextlib
import functools
import hashlib
import json
import logging
import weakref

import tensorflow as tf

from tfscale.distribute import adaptive, buckets, fusion
from tfscale.distribute.bucket_memory import keep_all, memory_of
from tfscale.distribute.compression.protocol import Uncompressed
from tfscale.distribute.error_feedback import CompressionState
from tfscale.distribute.timeline import Timeline

_logger = logging.getLogger("tfscale")
# Both half precisions are summed in float32.
_COMPRESSED_DTYPES = (tf.float32, tf.float16, tf.bfloat16)


class Exchange:
    """Sums values over replicas; remembers the plans of gradients, and what belongs to them.

    Attributes:
        compressor: how gradients travel between workers; `start_over` after a change.
        state: `CompressionState` of the model that `for_model` names; outside of it that of loops
            without a model.
        fusion: `AdaptiveFusion`; without effect unless `bucket_bytes` is ``"adaptive"``.
        records_timeline: `bool`, whether steps that are traced note when buckets travel.
        plans: `dict` of the fingerprints of all plans of gradients, the present one last.

    Args:
        compressor: see above.
        bucket_bytes: `int` or ``"adaptive"``.
    """

    def __init__(self, compressor, bucket_bytes):
        self.compressor = compressor
        self.state = CompressionState()
        self.fusion = adaptive.AdaptiveFusion()
        self.records_timeline = False
        self.plans = {}
        self._is_adaptive = bucket_bytes == adaptive.ADAPTIVE
        self._bucket_bytes = adaptive.INITIAL_BUCKET_BYTES if self._is_adaptive else bucket_bytes
        self._agreed, self._timelines = set(), {}
        # By model, for two of them may have tensors of the same names.
        self._states = weakref.WeakKeyDictionary()
        self._own_state = self.state

    def start_over(self):
        """Makes ready for steps that are traced anew: they agree again and take the state over."""
        self._agreed.clear()
        self._timelines.clear()
        for state in (self._own_state, *self._states.values()):
            state.release()

    def forget_velocities(self):
        """Drops all velocities; after `start_over`."""
        for state in (self._own_state, *self._states.values()):
            state.forget_velocities()

    def state_of(self, model):
        """Returns the `CompressionState` of a model."""
        if model not in self._states:  # Asked in every step.
            self._states[model] = CompressionState()
        return self._states[model]

    @contextlib.contextmanager
    def for_model(self, model):
        """While it lasts, steps are traced for `model`."""
        before, self.state = self.state, self.state_of(model)
        try:
            yield
        finally:
            self.state = before

    def timelines(self):
        """Returns ``(plan, stream of each bucket, {name: seconds})`` of the last step's plans."""
        return [(plan, streams, t.read()) for plan, streams, t in self._timelines.values()]

    def compressors(self, mesh):
        """Returns the compressors of a step by name; a lone worker has no hop to compress."""
        own = self._own(mesh)
        return {c.name: c for c in (Uncompressed(), own, own.dense)}

    def reduce(self, values, mesh, mean, names, sparse=(), agree=None):
        """Plans the buckets, has the plan agreed if it is new, and sums bucket by bucket.

        Args:
            values: list with, for each value, the list of its tensors, one a local device.
            mesh: `Mesh`.
            mean: `bool`, divide by the number of replicas.
            names: list with the `Destination` of each value, None where it is no variable; or
                None.
            sparse: those of variables whose sparse gradients are summed elsewhere.
            agree: function of a list of lines that raises unless all workers have the same.

        Returns:
            list with, for each value, the list of its results, one on each local device.
        """
        names = names or [None] * len(values)
        compressors = self.compressors(mesh)
        specs = [
            _spec(name.path if name else f"value {i}", value, self._wire(name, value, mesh))
            for i, (name, value) in enumerate(zip(names, values, strict=True))
        ]
        if not (any(names) or sparse):
            plan = buckets.plan_buckets(specs, self._bucket_bytes)
            return self._sum(plan, values, mesh, mean, compressors)
        plan, timeline = self._gradient_plan(specs, mesh)
        key = self._register(plan, mesh, [name.path for name in sparse or ()], agree)
        tensors = [
            (spec.path, spec.size if spec.shape is not None else 0, name.key if name else spec.path)
            for spec, name in zip(specs, names, strict=True)
        ]
        # Variables of one path, in two plans, have plans of the same lines.
        in_state = key, tuple(own for *_, own in tensors)
        self.state.begin_plan(in_state, tensors)
        if timeline is not None:
            for i, value in enumerate(values):
                timeline.mark(f"tensor {i}", value)
        elif self.records_timeline:
            timeline = Timeline()
            self._timelines[key] = plan, _streams(plan, mesh, compressors), timeline
        results = self._sum(plan, values, mesh, mean, compressors, in_state, timeline)
        if timeline is not None:
            timeline.store()
        return results

    def _sum(self, plan, values, mesh, mean, compressors, key=None, timeline=None):
        results, memories = [None] * len(values), []
        order = fusion.SendingOrder(lead=2 * max(1, len(mesh.streams)))
        streams = _streams(plan, mesh, compressors)
        for number, (bucket, stream) in enumerate(zip(plan.buckets, streams, strict=True)):
            tensors = [values[i] for i in bucket]
            compressor = compressors[plan.tensors[bucket[0]].wire]
            layout = fusion.layout_of([plan.tensors[i].size for i in bucket], mesh, compressor)
            memory = mark = None
            if key is not None:
                memory = memory_of(
                    self.state, key, number, bucket, layout, mesh.devices, compressor
                )
                memories += [memory] if memory else []
            if timeline is not None:
                mark = functools.partial(_mark, timeline, number)
            reduced = fusion.reduce_bucket(
                tensors, layout, mesh, mean, compressor, stream, memory, mark, order
            )
            for i, result in zip(bucket, reduced, strict=True):
                results[i] = result
        for i in plan.alone:
            results[i] = fusion.reduce_unshaped(values[i], mesh, mean)
        keep_all(memories, mesh.devices[0])
        return results

    def _gradient_plan(self, specs, mesh):
        """Returns the plan and, while adaptive fusion measures, the timeline to be filled."""
        if self._is_adaptive and mesh.workers > 1:
            return self.fusion.plan(specs)
        return buckets.plan_buckets(specs, self._bucket_bytes), None

    def _own(self, mesh):
        return self.compressor if mesh.workers > 1 else Uncompressed(self.compressor.momentum)

    def _wire(self, name, value, mesh):
        """The name of the compressor by which a value travels."""
        own = self._own(mesh)
        if name is None:
            return Uncompressed().name
        dtype, shape = value[0].dtype, value[0].shape
        fits = dtype in _COMPRESSED_DTYPES and shape.is_fully_defined()
        if own.momentum and not fits:
            raise ValueError(
                "momentum correction takes float32 gradients of known shape; that of "
                f"{name.path} is {dtype.name}{shape}. Use a compressor with "
                "momentum=0 and the optimizer's own"
            )
        if not fits:
            return Uncompressed().name
        return (own if shape.num_elements() >= own.min_elements else own.dense).name

    def _register(self, plan, mesh, sparse, agree):
        """Records a plan of gradients; the first time, the workers compare it. Returns its key."""
        if sparse and self.compressor.momentum:
            raise ValueError(
                f"momentum correction takes dense gradients; that of {sparse[0]} is sparse. Use a "
                "compressor with momentum=0 and the optimizer's own"
            )
        fingerprint = plan.fingerprint()
        wires = [_shown(spec.wire, fusion.wire_dtype(spec.dtype)) for spec in plan.tensors]
        wires += ["uncompressed"] * len(sparse)  # TensorFlow's own gather
        fingerprint += [[path, None, "sparse", buckets.ALONE] for path in sparse]
        lines = [
            "{}, shape {}, {}, bucket {}, ".format(*item) + f"{wire} on the wire"
            for item, wire in zip(fingerprint, wires, strict=True)
        ]
        key = hashlib.sha256(json.dumps(lines).encode()).hexdigest()
        if key in self._agreed:
            return key
        if agree is not None:
            agree(lines)
        self._agreed.add(key)
        self.plans.pop(key, None)  # The last one is the present one.
        self.plans[key] = fingerprint
        wire = _shown(self.compressor.name, "uncompressed")
        _logger.info(
            "all-reduce of %d gradients in %d buckets, %s",
            len(fingerprint),
            len(plan.buckets) + len(plan.alone) + len(sparse),
            f"{wire} on the wire" if mesh.workers > 1 else "within one worker",
        )
        return key


def _spec(path, value, wire):
    dtype, shape = value[0].dtype, value[0].shape
    if not (dtype.is_integer or dtype.is_floating or dtype.is_complex):
        raise TypeError(
            f"cannot reduce {path}: tensors of dtype {dtype.name} have no sum; "
            "cast to int32 or float32 first"
        )
    known = tuple(shape.as_list()) if shape.is_fully_defined() else None
    return buckets.TensorSpec(path, known, dtype.name, dtype.size, wire)


def _streams(plan, mesh, compressors):
    """The stream of each bucket: the one that has the fewest bytes to send so far.

    Not in turns: a stream with more to send would end alone, and a lone stream leaves the link
    idle between its messages.
    """
    loads, streams = [0.0] * max(1, len(mesh.streams)), []
    for bucket in plan.buckets:
        elements = sum(plan.tensors[i].size for i in bucket)
        per_element = compressors[plan.tensors[bucket[0]].wire].bytes_per_element(mesh.workers)
        streams.append(loads.index(min(loads)))
        loads[streams[-1]] += elements * per_element
    return streams


def _mark(timeline, bucket, name, tensors):
    timeline.mark(f"{name} {bucket}", tensors)


def _shown(wire, plain):
    """The name of a compressor as a reader understands it; `plain`: what it compresses."""
    return wire.replace(Uncompressed().name, plain, 1)
