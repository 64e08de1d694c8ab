"""Adaptive fusion without a cluster: plans from times, and plans from a checkpoint."""

import pytest

from tfscale.distribute import adaptive, buckets, merging

SPECS = [
    buckets.TensorSpec("a/kernel", (1000,), "float32", 4),
    buckets.TensorSpec("b/kernel", (1000,), "float32", 4, "int8"),
    buckets.TensorSpec("c/ids", (10,), "int64", 8),
    buckets.TensorSpec("d/unknown", None, "float32", 4),
    buckets.TensorSpec("e/kernel", (1000,), "float32", 4),
]
READY = [3.0, 2.0, 1.5, None, 1.0]


def links(latency):
    return {name: merging.Link(latency, 1e-6) for name in ("none", "int8")}


def test_a_slow_link_merges_what_a_fast_one_does_not():
    # The exchange of e ends before a is ready: merging would only delay it.
    assert adaptive._merged(SPECS, READY, links(1e-3)) == ((4,), (2,), (1,), (0,))
    # Where a message costs more than waiting for a, the two travel together.
    assert adaptive._merged(SPECS, READY, links(10.0)) == ((2,), (1,), (4, 0))


def test_kinds_are_never_mixed():
    plan = buckets.plan_of_buckets(SPECS, adaptive._merged(SPECS, READY, links(10.0)))
    assert plan.alone == (3,)
    for bucket in plan.buckets:
        assert len({(SPECS[i].dtype, SPECS[i].wire) for i in bucket}) == 1


def test_a_saved_plan_is_taken_over():
    fusion = adaptive.AdaptiveFusion()
    chosen = adaptive._merged(SPECS, READY, links(10.0))
    saved = buckets.plan_of_buckets(SPECS, chosen).fingerprint()
    fusion.use(saved + [["f/embeddings", None, "sparse", buckets.ALONE]])
    plan, timeline = fusion.plan(SPECS)
    assert timeline is None and not fusion.wants_measurement
    assert plan.fingerprint() == saved


def test_a_new_model_is_measured():
    fusion = adaptive.AdaptiveFusion()
    plan, timeline = fusion.plan(SPECS)
    assert timeline is not None and fusion.wants_measurement
    assert plan == buckets.plan_buckets(SPECS, adaptive.INITIAL_BUCKET_BYTES)
    assert not fusion.after_step()  # No step has run.
    fusion.forget()
    assert not fusion.wants_measurement


def test_buckets_that_do_not_fit_the_tensors():
    with pytest.raises(ValueError, match="each of 5 tensors once"):
        buckets.plan_of_buckets(SPECS, ((0, 1), (1, 2)))
