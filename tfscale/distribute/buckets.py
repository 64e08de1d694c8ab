"""Bucket plans: which tensors travel together in one message, and in which order.

Gradients become ready from the last layer backwards, so buckets are filled from the last tensor
backwards: the first bucket can travel while the rest of the backward pass still runs.
"""

import dataclasses
import math

ALONE = -1


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """A tensor as the plan sees it.

    Attributes:
        path: `str`, the variable's name, or where the value stood in the call.
        shape: `tuple` of `int`, or None where the shape is not known before it runs.
        dtype: `str`.
        itemsize: `int`, bytes of one element.
        wire: `str`, the name of the compressor by which it travels between workers.
    """

    path: str
    shape: tuple | None
    dtype: str
    itemsize: int
    wire: str = "none"

    @property
    def size(self):
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self):
        """Size in bytes."""
        return self.size * self.itemsize

    @property
    def kind(self):
        """What the tensors of one bucket have in common: dtype and compressor."""
        return self.dtype, self.wire


@dataclasses.dataclass(frozen=True)
class BucketPlan:
    """Tensors and the buckets they travel in.

    Attributes:
        tensors: `tuple` of `TensorSpec`, in the order of the call.
        buckets: `tuple` of buckets in the order of sending, each a `tuple` of indices into
            `tensors`, last tensor first.
        alone: `tuple` of indices of tensors of unknown shape, each sent by itself.
    """

    tensors: tuple
    buckets: tuple
    alone: tuple

    def fingerprint(self):
        """Returns ``[path, shape, dtype, bucket]`` for each tensor: what workers must agree on.

        The bucket is its place in the order of sending, or -1 for a tensor sent alone.
        """
        bucket_of = {i: b for b, bucket in enumerate(self.buckets) for i in bucket}
        return [
            [t.path, None if t.shape is None else list(t.shape), t.dtype, bucket_of.get(i, ALONE)]
            for i, t in enumerate(self.tensors)
        ]


def plan_buckets(tensors, bucket_bytes):
    """Fuses tensors into buckets of at least `bucket_bytes`, from the last backwards.

    A bucket takes tensors until it is full, so none but the last of a kind is smaller: a tensor
    that does not fit does not leave a message of a few bytes behind. Dtypes are never mixed,
    since joining them would need a cast, nor are compressors.

    Args:
        tensors: sequence of `TensorSpec`.
        bucket_bytes: `int`, size at which a bucket is full.

    Returns:
        `BucketPlan`, a function of its arguments alone, so that workers with the same model
        have the same plan.

    Raises:
        ValueError: if `bucket_bytes` is not positive.

    Example:
        >>> specs = [TensorSpec("a", (4,), "float32", 4), TensorSpec("b", (2,), "float32", 4)]
        >>> plan_buckets(specs, bucket_bytes=16).buckets
        ((1,), (0,))
    """
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes must be at least 1, got {bucket_bytes}")
    tensors = tuple(tensors)
    buckets, filling, alone = [], {}, []
    for index in reversed(range(len(tensors))):
        spec = tensors[index]
        if spec.shape is None:
            alone.append(index)
            continue
        bucket, filled = filling.pop(spec.kind, ((), 0))
        if filled + spec.bytes < bucket_bytes:
            filling[spec.kind] = ((*bucket, index), filled + spec.bytes)
        else:
            buckets.append((*bucket, index))
    # What is left over contains the earliest layers, whose gradients come last.
    buckets.extend(bucket for bucket, _ in filling.values())
    return BucketPlan(tensors, tuple(buckets), tuple(alone))


def plan_of_buckets(tensors, buckets):
    """Returns the `BucketPlan` of given buckets; tensors of unknown shape are sent alone.

    Args:
        tensors: sequence of `TensorSpec`.
        buckets: sequence of buckets in the order of sending, each of indices into `tensors`.

    A bucket whose tensors differ in dtype or compressor is divided: a saved plan may meet another
    compressor.

    Raises:
        ValueError: if a tensor is in no bucket or in several.
    """
    tensors = tuple(tensors)
    alone = tuple(i for i, spec in enumerate(tensors) if spec.shape is None)
    if sorted(i for bucket in buckets for i in bucket) != sorted(
        set(range(len(tensors))) - {*alone}
    ):
        raise ValueError(f"the buckets {buckets} do not hold each of {len(tensors)} tensors once")
    parts = [tuple(part) for bucket in buckets for part in by_kind(tensors, bucket)]
    return BucketPlan(tensors, tuple(parts), alone)


def by_kind(tensors, indices):
    """Returns lists of the indices of tensors of one kind, in the order of first appearance."""
    kinds = {}
    for i in indices:
        kinds.setdefault(tensors[i].kind, []).append(i)
    return list(kinds.values())
