"""Hierarchical2DAllReduce under MirroredStrategy: every contract of a CrossDeviceOps."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests import references
from tfscale.distribute import _tf_private, all_reduce
from tfscale.distribute.all_reduce import Hierarchical2DAllReduce

SHAPES = ((), (0, 3), (1,), (7,), (2, 3, 5), (40, 50), (33, 127))
DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64", "int8")
SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


def mirrored(count=4, operation=None):
    devices = [f"/device:CPU:{i}" for i in range(count)]
    return _tf_private.MirroredStrategy(devices, operation or Hierarchical2DAllReduce())


@pytest.fixture(scope="module")
def strategy():
    return mirrored()


def distributed(strategy, shape, dtype, salt=0):
    values = []
    for i, device in enumerate(_tf_private.local_devices(strategy)):
        with tf.device(device):
            values.append(tf.constant(references.replica_value(shape, dtype, i, salt)))
    return _tf_private.regroup(values)


def batch_reduce(strategy, op, values, in_function):
    def reduce():
        reduced = strategy.extended.batch_reduce_to(op, [(v, v) for v in values])
        return [getattr(r, "values", (r,)) for r in reduced]

    results = (tf.function(reduce) if in_function else reduce)()
    return [[t.numpy() for t in result] for result in results]


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("op", [SUM, MEAN], ids=["sum", "mean"])
@pytest.mark.parametrize("public", [False, True], ids=["create_strategy", "public argument"])
@pytest.mark.slow
def test_mixed_dtypes_and_shapes_in_one_call(op, in_function, public):
    operation = Hierarchical2DAllReduce(bucket_bytes=4096)
    if public:
        devices = [f"/device:CPU:{i}" for i in range(4)]
        strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=operation)
    else:
        strategy = mirrored(operation=operation)
    # TensorFlow's own MirroredStrategy refuses int32 beside floats before we are asked.
    dtypes = [d for d in DTYPES if not (public and d == "int32")]
    cases = [(shape, dtype) for shape in SHAPES for dtype in dtypes]
    values = [distributed(strategy, *case, salt=i) for i, case in enumerate(cases)]
    results = batch_reduce(strategy, op, values, in_function)
    tolerance = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 3e-7}
    for i, ((shape, dtype), result) in enumerate(zip(cases, results, strict=True)):
        expected = references.reduced(shape, dtype, 4, op is MEAN, i)
        allowed = references.magnitude(shape, dtype, 4, op is MEAN, i) * tolerance.get(dtype, 1e-15)
        for local in result:
            assert local.shape == shape
            assert np.all(np.abs(np.float64(local) - expected) <= allowed + 1e-30), (shape, dtype)
        if not (op is MEAN and "int" in dtype):
            assert result[0].dtype.name == dtype


def test_float32_equals_the_stock_all_reduce(strategy):
    stock = mirrored(operation=tf.distribute.ReductionToOneDevice())
    for op in (SUM, MEAN):
        ours, theirs = (
            batch_reduce(s, op, [distributed(s, (40, 50), "float32")], True)[0][0]
            for s in (strategy, stock)
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("value, dtype", [(30000.0, "float16"), (1e-7, "float16")])
def test_mean_of_half_precision_neither_overflows_nor_vanishes(strategy, value, dtype):
    half = np.float16(value)
    values = []
    for device in _tf_private.local_devices(strategy):
        with tf.device(device):
            values.append(tf.fill([5000], half))
    value = _tf_private.regroup(values)
    (result,) = batch_reduce(strategy, MEAN, [value], True)
    np.testing.assert_array_equal(result[0], np.full([5000], half))
    (result,) = batch_reduce(strategy, SUM, [value], True)
    with np.errstate(over="ignore"):
        expected = np.float16(4 * np.float32(half))  # infinite where float16 ends, never clipped
    np.testing.assert_array_equal(result[0], np.full([5000], expected))


def test_unknown_shape_keeps_what_is_known(strategy):
    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def step(x):
        def replica():
            context = tf.distribute.get_replica_context()
            y = x * tf.cast(context.replica_id_in_sync_group, tf.float32)
            return context.merge_call(
                lambda s, y: s.extended.batch_reduce_to(SUM, [(y, y)])[0], args=(y,)
            )

        results = strategy.experimental_local_results(strategy.run(replica))
        assert all(r.shape.as_list() == [None, 3] for r in results)
        return results

    for rows in (2, 5, 0):
        for result in step(tf.ones([rows, 3])):
            np.testing.assert_array_equal(result, np.full([rows, 3], 6.0))


def test_sparse_and_dense_gradients_together(strategy):
    @tf.function
    def step():
        def replica():
            context = tf.distribute.get_replica_context()
            r = context.replica_id_in_sync_group
            slices = tf.IndexedSlices(tf.ones([2, 2]), tf.stack([0, r + 1]), tf.constant([5, 2]))
            dense = tf.cast(tf.fill([3], r), tf.float32)
            sparse, dense = context.merge_call(
                lambda s, *xs: s.extended.batch_reduce_to(SUM, [(x, x) for x in xs]),
                args=(slices, dense),
            )
            assert isinstance(sparse, tf.IndexedSlices)
            return tf.convert_to_tensor(sparse), dense

        return strategy.experimental_local_results(strategy.run(replica))

    for sparse, dense in step():
        np.testing.assert_array_equal(sparse[:, 0], [4, 1, 1, 1, 1])
        np.testing.assert_array_equal(dense, [6, 6, 6])


@pytest.mark.parametrize("dtype, mean", [("float32", 1.5), ("int32", 1.5), ("int64", 1.5)])
def test_reduce_to_the_host_and_to_one_device(strategy, dtype, mean):
    value = strategy.experimental_distribute_values_from_function(
        lambda c: tf.cast(c.replica_id_in_sync_group, dtype)
    )
    assert strategy.reduce("SUM", value, axis=None).numpy() == 6
    assert strategy.reduce("MEAN", value, axis=None).numpy() == mean
    on_one = strategy.extended.reduce_to(SUM, value, "/device:CPU:2")
    assert on_one.numpy() == 6 and on_one.device.endswith("CPU:2")
    nested = strategy.reduce("SUM", {"a": value, "b": (value,)}, axis=None)
    assert nested["b"][0].numpy() == 6


def test_values_that_are_not_distributed(strategy):
    assert strategy.reduce("MEAN", tf.constant(2.0), axis=None).numpy() == 2.0
    with pytest.raises(ValueError, match="non-DistributedValues"):
        strategy.reduce("SUM", tf.constant(2.0), axis=None)
    operation = Hierarchical2DAllReduce()
    assert operation.reduce(SUM, tf.constant(2.0), "/device:CPU:0").numpy() == 2.0


def test_bool_is_refused_by_name(strategy):
    values = []
    for device in _tf_private.local_devices(strategy):
        with tf.device(device):
            values.append(tf.constant([True]))
    value = _tf_private.regroup(values)
    with pytest.raises(TypeError, match="value 0: tensors of dtype bool have no sum"):
        strategy.extended.batch_reduce_to(SUM, [(value, value)])


def test_broadcast_and_gather(strategy):
    with strategy.scope():
        variable = tf.Variable([0.0, 0.0])
    for local in strategy.extended.broadcast_to(tf.constant([1.0, 2.0]), variable).values:
        np.testing.assert_array_equal(local, [1, 2])
    value = distributed(strategy, (2, 3), "float32")
    rows = [references.replica_value((2, 3), "float32", r) for r in range(4)]
    np.testing.assert_array_equal(strategy.gather(value, axis=0), np.concatenate(rows))
    np.testing.assert_array_equal(strategy.gather(value, axis=1), np.concatenate(rows, 1))


def test_metric_variables_of_every_aggregation(strategy):
    aggregations = tf.VariableAggregation
    expected = {aggregations.SUM: 6.0, aggregations.MEAN: 1.5, aggregations.ONLY_FIRST_REPLICA: 0.0}
    for aggregation, total in expected.items():
        for synchronization in (
            tf.VariableSynchronization.AUTO,
            tf.VariableSynchronization.ON_READ,
        ):
            with strategy.scope():
                variable = tf.Variable(
                    0.0, aggregation=aggregation, synchronization=synchronization
                )

            @tf.function
            def step(variable=variable):
                context = tf.distribute.get_replica_context()
                variable.assign(tf.cast(context.replica_id_in_sync_group, tf.float32))

            strategy.run(step)
            assert variable.read_value().numpy() == total, (aggregation, synchronization)


def test_one_replica_is_left_as_it_is():
    strategy = mirrored(1)
    (result,) = batch_reduce(strategy, MEAN, [distributed(strategy, (3,), "float32")], True)
    np.testing.assert_array_equal(result[0], references.replica_value((3,), "float32", 0))
    assert strategy.reduce("SUM", tf.constant(3.0), axis=None).numpy() == 3.0


@pytest.mark.parametrize("operation", ["ours", "stock"])
@pytest.mark.slow
def test_strategies_of_other_sizes_in_one_process(operation):
    for count in (2, 4, 3):
        given = Hierarchical2DAllReduce() if operation == "ours" else None
        devices = [f"/device:CPU:{i}" for i in range(count)]
        strategy = _tf_private.MirroredStrategy(devices, given)
        value = distributed(strategy, (5,), "float32")
        for in_function in (False, True):
            (result,) = batch_reduce(strategy, SUM, [value], in_function)
            expected = references.reduced((5,), "float32", count, False)
            np.testing.assert_allclose(result[-1], expected, rtol=1e-5, atol=1e-6)
        assert strategy.gather(value, axis=0).shape == (5 * count,)


@pytest.mark.slow
def test_training_by_keras_and_the_plan():
    from tfscale._keras import keras

    def train(strategy):
        with strategy.scope():
            keras.utils.set_random_seed(0)
            model = keras.Sequential(
                [
                    keras.layers.Dense(16, activation="relu", name="a"),
                    keras.layers.Dense(1, name="b"),
                ]
            )
            model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        x = np.random.default_rng(0).standard_normal((32, 4)).astype(np.float32)
        model.fit(x, x.sum(1), batch_size=16, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    strategy = mirrored(operation=Hierarchical2DAllReduce(bucket_bytes=128))
    assert all_reduce.plan_of(strategy)["plans"] == []
    for ours, alone in zip(train(strategy), train(tf.distribute.get_strategy()), strict=True):
        np.testing.assert_allclose(ours, alone, rtol=1e-5, atol=1e-6)
    plan = all_reduce.plan_of(strategy)
    assert json.loads(json.dumps(plan)) == plan
    (tensors,) = plan["plans"]
    assert [path for path, *_ in tensors] == ["a/kernel", "a/bias", "b/kernel", "b/bias"]
    assert [bucket for *_, bucket in tensors] == [1, 0, 0, 0] or tensors[0][3] > tensors[3][3]
    assert plan["settings"]["bucket_bytes"] == 128
    assert all_reduce.plan_of(tf.distribute.get_strategy()) is None


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"bucket_bytes": 0}, "bucket_bytes must be a positive int or 'adaptive', got 0"),
        ({"streams": 0}, "streams must be a positive int, got 0"),
        ({"worker_grid": (2,)}, "worker_grid must be .rows, columns., two positive ints"),
        ({"worker_grid": (2, 0)}, "worker_grid must be"),
        ({"worker_grid": (True, True)}, "worker_grid must be"),
        ({"streams": 10**9}, "streams must be at most 64, got 1000000000: each has collectives"),
        ({"bucket_bytes": np.ones(2)}, "bucket_bytes must be .* an object of type ndarray"),
        ({"compression": np.ones(2)}, "compression must be .* an object of type ndarray"),
        ({"compression": tf.ones(2)}, "compression must be .* an object of type EagerTensor"),
        ({"accumulate_dtype": np.ones(2)}, "accumulate_dtype must be .* an object of type ndarray"),
        ({"compression": "gzip"}, "unknown compression 'gzip'"),
        ({"accumulate_dtype": "bfloat16"}, "accumulate_dtype 'bfloat16' needs a compression"),
    ],
)
def test_arguments_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        Hierarchical2DAllReduce(**arguments)


def test_a_worker_grid_needs_its_workers(strategy):
    operation = Hierarchical2DAllReduce(worker_grid=(2, 2))
    value = distributed(strategy, (3,), "float32")
    with pytest.raises(ValueError, match=r"2 x 2 = 4 cells, but there are 1 workers"):
        operation.batch_reduce(SUM, [(value, value)])
