"""Bucket plans: order, size, dtypes, fingerprints."""

import json

import pytest

from tfscale.distribute.buckets import TensorSpec, plan_buckets


def spec(path, size, dtype="float32", itemsize=4):
    return TensorSpec(path, (size,), dtype, itemsize)


def test_buckets_are_filled_from_the_last_tensor_backwards():
    plan = plan_buckets([spec(name, 2) for name in "abcde"], bucket_bytes=16)
    assert plan.buckets == ((4, 3), (2, 1), (0,))


def test_every_tensor_is_in_exactly_one_bucket_of_its_dtype():
    specs = [
        spec(f"t{i}", 3 * i, *[("float32", 4), ("float16", 2), ("int64", 8)][i % 3])
        for i in range(20)
    ]
    plan = plan_buckets(specs, bucket_bytes=100)
    assert sorted(i for bucket in plan.buckets for i in bucket) == list(range(20))
    small = 0
    for bucket in plan.buckets:
        assert len({specs[i].dtype for i in bucket}) == 1
        assert list(bucket) == sorted(bucket, reverse=True)
        sizes = [specs[i].size * specs[i].itemsize for i in bucket]
        assert sum(sizes[:-1]) < 100
        small += sum(sizes) < 100
    assert small <= 3  # what is left of each dtype


def test_a_large_tensor_takes_the_small_ones_before_it_along():
    plan = plan_buckets([spec("a", 1), spec("big", 1000), spec("b", 1)], bucket_bytes=16)
    assert plan.buckets == ((2, 1), (0,))


def test_unknown_shapes_travel_alone():
    plan = plan_buckets([spec("a", 1), TensorSpec("u", None, "float32", 4)], bucket_bytes=16)
    assert plan.alone == (1,) and plan.buckets == ((0,),)
    assert plan.fingerprint()[1] == ["u", None, "float32", -1]


def test_empty_tensors_and_no_tensors():
    assert plan_buckets([], 16).buckets == ()
    assert plan_buckets([spec("a", 0), spec("b", 0)], 16).buckets == ((1, 0),)


def test_fingerprint_is_json_and_tells_order_shape_and_dtype():
    def fingerprint(*specs):
        text = json.dumps(plan_buckets(specs, 1 << 20).fingerprint())
        assert json.loads(text) == plan_buckets(specs, 1 << 20).fingerprint()
        return text

    reference = fingerprint(spec("a", 2), spec("b", 2))
    assert reference == fingerprint(spec("a", 2), spec("b", 2))
    assert reference != fingerprint(spec("b", 2), spec("a", 2))
    assert reference != fingerprint(spec("a", 2), spec("b", 3))
    assert reference != fingerprint(spec("a", 2), spec("b", 2, "float16", 2))


def test_bucket_bytes_must_be_positive():
    with pytest.raises(ValueError, match="bucket_bytes must be at least 1, got 0"):
        plan_buckets([spec("a", 1)], 0)
