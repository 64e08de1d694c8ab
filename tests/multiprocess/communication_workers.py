"""What the workers of the communication tests run; each function is one worker's whole program."""

import numpy as np
import tensorflow as tf

from tests import references
from tfscale.distribute import _tf_private, all_reduce
from tfscale.distribute import strategy as strategy_lib

SHAPES = ((), (0, 3), (1,), (7,), (2, 3, 5), (40, 50), (33, 127))
DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64", "int8")
# Relative to the sum of magnitudes.
TOLERANCE = {"float32": 2e-7, "float64": 1e-15, "float16": 6e-4, "bfloat16": 4e-3}
# The mean of integers is a float32 or float64; their sum is exact.
INTEGER_MEAN = {"int8": 1e-7, "int32": 1e-15, "int64": 1e-15}


def create(**settings):
    operation = all_reduce.Hierarchical2DAllReduce(**settings)
    return strategy_lib.create_strategy("multi_worker_mirrored", cross_device_ops=operation)


def replica_values(strategy, shape, dtype, salt=0):
    """A distributed value with each replica's `references.replica_value` on its device."""
    devices = _tf_private.local_devices(strategy)
    first = _tf_private.worker_index(strategy) * len(devices)
    values = []
    for i, device in enumerate(devices):
        with tf.device(device):
            values.append(tf.constant(references.replica_value(shape, dtype, first + i, salt)))
    return _tf_private.regroup(values)


def local_values(value):
    """The NumPy values of all local replicas."""
    return [v.numpy() for v in getattr(value, "values", (value,))]


def assert_reduced(results, shape, dtype, replicas, mean, salt, tolerance):
    expected = references.reduced(shape, dtype, replicas, mean, salt)
    allowed = tolerance * references.magnitude(shape, dtype, replicas, mean, salt)
    for result in results:
        assert result.shape == shape, (result.shape, shape)
        error = np.abs(np.float64(result) - expected)
        assert np.all(error <= allowed + 1e-30), (shape, dtype, mean, error.max(), allowed.max())
        assert np.array_equal(result, results[0]), "replicas differ"


def batch_reduce(strategy, values, mean, in_function, into_variables=False):
    """One batch_reduce of all values; returns each value's list of local results."""
    op = tf.distribute.ReduceOp.MEAN if mean else tf.distribute.ReduceOp.SUM
    destinations = values
    if into_variables:  # As gradients are; nothing else is compressed.
        with strategy.scope():
            destinations = [tf.Variable(tf.zeros_like(local_values(v)[0])) for v in values]

    def reduce():
        pairs = list(zip(values, destinations, strict=True))
        reduced = strategy.extended.batch_reduce_to(op, pairs)
        return [getattr(r, "values", (r,)) for r in reduced]

    results = (tf.function(reduce) if in_function else reduce)()
    return [[t.numpy() for t in result] for result in results]


ALL_MODES = [(mean, in_function) for mean in (False, True) for in_function in (False, True)]


def check_batches(
    strategy, dtypes=DTYPES, tolerances=TOLERANCE, modes=ALL_MODES, into_variables=False
):
    """Mixed dtypes and shapes in one call; modes are pairs of mean?, in a graph?"""
    replicas = strategy.num_replicas_in_sync
    cases = [(shape, dtype) for shape in SHAPES for dtype in dtypes]
    values = [replica_values(strategy, *case, salt=i) for i, case in enumerate(cases)]
    for mean, in_function in modes:
        results = batch_reduce(strategy, values, mean, in_function, into_variables)
        for i, ((shape, dtype), result) in enumerate(zip(cases, results, strict=True)):
            tolerance = {**tolerances, **(INTEGER_MEAN if mean else {})}.get(dtype, 0.0)
            assert_reduced(result, shape, dtype, replicas, mean, i, tolerance)
            if not (mean and dtype.startswith("int")):
                assert result[0].dtype.name == dtype


def check_single_values(strategy):
    """reduce to all and to one device, gather, broadcast, unknown shapes, IndexedSlices."""
    replicas = strategy.num_replicas_in_sync
    value = replica_values(strategy, (5, 3), "float32")
    expected = references.reduced((5, 3), "float32", replicas, False)
    host = strategy.reduce("SUM", value, axis=None)
    np.testing.assert_allclose(np.asarray(host), expected, rtol=1e-5, atol=1e-6)
    everywhere = strategy.extended.reduce_to(tf.distribute.ReduceOp.SUM, value, value)
    for local in local_values(everywhere):
        np.testing.assert_allclose(local, expected, rtol=1e-5, atol=1e-6)
    gathered = strategy.gather(value, axis=0)
    rows = [references.replica_value((5, 3), "float32", r) for r in range(replicas)]
    np.testing.assert_array_equal(np.asarray(gathered), np.concatenate(rows))
    with strategy.scope():
        variable = tf.Variable([0.0, 0.0])
    for local in local_values(strategy.extended.broadcast_to(tf.constant([1.0, 2.0]), variable)):
        np.testing.assert_array_equal(local, [1.0, 2.0])

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def unknown(x):
        def replica():
            context = tf.distribute.get_replica_context()
            return context.merge_call(
                lambda s, y: s.extended.batch_reduce_to(tf.distribute.ReduceOp.MEAN, [(y, y)])[0],
                args=(x * tf.cast(context.replica_id_in_sync_group, tf.float32),),
            )

        result = strategy.run(replica)
        for y in strategy.experimental_local_results(result):
            assert y.shape.as_list() == [None, 3]
        return strategy.experimental_local_results(result)

    for y in unknown(tf.ones([4, 3])):
        np.testing.assert_allclose(y, np.full([4, 3], (replicas - 1) / 2), rtol=1e-6)

    @tf.function
    def sparse():
        def replica():
            context = tf.distribute.get_replica_context()
            r = context.replica_id_in_sync_group
            slices = tf.IndexedSlices(
                tf.ones([2, 2]), tf.stack([0, r + 1]), tf.constant([replicas + 1, 2])
            )
            dense = tf.cast(tf.fill([3], r), tf.float32)

            def merge(s, a, b):
                return s.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, [(a, a), (b, b)])

            a, b = context.merge_call(merge, args=(slices, dense))
            return tf.convert_to_tensor(a), b

        return strategy.experimental_local_results(strategy.run(replica))

    for a, b in sparse():
        np.testing.assert_allclose(a[:, 0], [replicas] + [1] * replicas)
        np.testing.assert_allclose(b, np.full([3], replicas * (replicas - 1) / 2))

    total = strategy.run(
        lambda: tf.distribute.get_replica_context().all_reduce("MEAN", tf.constant([2.0]))
    )
    for local in local_values(total):
        np.testing.assert_allclose(local, [2.0])


def check_half_precision_extremes(strategy, small_too, narrow_sums):
    """Means of 30000 stay finite, of 1e-7 do not vanish; infinity and overflow are not clipped."""
    devices = _tf_private.local_devices(strategy)
    cases = [30000.0, np.inf] + ([1e-7] if small_too else [])
    for case in cases:
        values = []
        for device in devices:
            with tf.device(device):
                values.append(tf.fill([3000], np.float32(case)))
        value = _tf_private.regroup(values)
        (result,) = batch_reduce(strategy, [value], True, True, into_variables=True)
        np.testing.assert_allclose(result[0], np.full([3000], case), rtol=0.005)
        if case == 30000.0:
            replicas = strategy.num_replicas_in_sync
            total = np.inf if narrow_sums and case * replicas > 65504 else case * replicas
            (result,) = batch_reduce(strategy, [value], False, True, into_variables=True)
            np.testing.assert_allclose(result[0], np.full([3000], total), rtol=0.005)


def check_trained_variables(strategy):
    """Gradients into mirrored variables, in a graph: paths are known, the plan is agreed."""
    with strategy.scope():
        variables = [
            tf.Variable(tf.zeros(shape), name=f"layer_{i}/kernel")
            for i, shape in enumerate([(3, 4), (1000, 50), (4,)])
        ]

    def pairs_of(variables):
        r = tf.distribute.get_replica_context().replica_id_in_sync_group
        return [(tf.ones_like(v) * (tf.cast(r, tf.float32) + 1), v) for v in variables]

    step = gradient_step(strategy, variables, pairs_of)
    total = sum(range(1, strategy.num_replicas_in_sync + 1))
    for _ in range(2):
        for local in step():
            for gradient in local:
                np.testing.assert_allclose(gradient, np.full(gradient.shape, float(total)))
    return all_reduce.plan_of(strategy)


def check_large_variable(strategy):
    """One variable of 64 MiB, far above a gRPC message's default limit of 4 MiB."""
    with strategy.scope():
        variable = tf.Variable(tf.zeros([16 << 20]), name="large")
    step = gradient_step(strategy, [variable], lambda v: [(tf.ones_like(v[0]), v[0])])
    (gradient,) = step()[0]
    assert float(tf.reduce_min(gradient)) == float(tf.reduce_max(gradient)) == 2.0


def check_everything(grids=(None,)):
    """Every setting on one cluster; returns the plan of the last strategy."""
    stock = strategy_lib.create_strategy("multi_worker_mirrored", cross_device_ops="stock")
    float32_only = ("float32", "int32")
    for grid in grids:
        strategy = create(worker_grid=grid, bucket_bytes=4096, streams=3)
        check_batches(strategy)
        check_single_values(strategy)
        for wire, tolerance in (("bfloat16", 2**-7), ("float16", 2**-10)):
            for sums in ("float32", wire):
                strategy = create(worker_grid=grid, compression=wire, accumulate_dtype=sums)
                exact = {**TOLERANCE, "float32": tolerance * (1 if sums == "float32" else 4)}
                modes = [(False, False), (True, True)]
                check_batches(strategy, float32_only, exact, modes, into_variables=True)
                # What is not summed into variables is not compressed.
                check_batches(strategy, float32_only, modes=modes[:1])
                narrow_sums = sums == "float16"
                check_half_precision_extremes(strategy, not narrow_sums, narrow_sums)
        strategy = create(worker_grid=grid)
        ours = batch_reduce(strategy, [replica_values(strategy, (40, 50), "float32")], True, True)
        theirs = batch_reduce(stock, [replica_values(stock, (40, 50), "float32")], True, True)
        np.testing.assert_allclose(ours[0][0], theirs[0][0], rtol=1e-6, atol=1e-7)
        plan = check_trained_variables(strategy)
    if (topology := strategy_lib.topology_of(strategy)).num_replicas == 2:
        check_large_variable(strategy)
    return plan, (topology.workers, topology.devices_per_worker, topology.worker_grid)


def gradient_step(strategy, variables, pairs_of):
    """A graph step that sums what `pairs_of` makes of the variables."""

    @tf.function
    def step():
        def replica():
            return tf.distribute.get_replica_context().merge_call(
                lambda s, p: s.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, p),
                args=(pairs_of(variables),),
            )

        return strategy.experimental_local_results(strategy.run(replica))

    return step
