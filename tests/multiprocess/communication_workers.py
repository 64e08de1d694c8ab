"""What the workers of the communication tests run; each function is one worker's whole program."""

import json
import os
import signal
import time

import numpy as np
import tensorflow as tf

from tests import references
from tfscale.distribute import _tf_private, agreement, all_reduce
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


def batch_reduce(strategy, values, mean, in_function):
    """One batch_reduce of all values; returns each value's list of local results."""
    op = tf.distribute.ReduceOp.MEAN if mean else tf.distribute.ReduceOp.SUM

    def reduce():
        reduced = strategy.extended.batch_reduce_to(op, [(v, v) for v in values])
        return [getattr(r, "values", (r,)) for r in reduced]

    results = (tf.function(reduce) if in_function else reduce)()
    return [[t.numpy() for t in result] for result in results]


ALL_MODES = [(mean, in_function) for mean in (False, True) for in_function in (False, True)]


def check_batches(strategy, dtypes=DTYPES, tolerances=TOLERANCE, modes=ALL_MODES):
    """Mixed dtypes and shapes in one call; modes are pairs of mean?, in a graph?"""
    replicas = strategy.num_replicas_in_sync
    cases = [(shape, dtype) for shape in SHAPES for dtype in dtypes]
    values = [replica_values(strategy, *case, salt=i) for i, case in enumerate(cases)]
    for mean, in_function in modes:
        results = batch_reduce(strategy, values, mean, in_function)
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
        (result,) = batch_reduce(strategy, [value], mean=True, in_function=True)
        np.testing.assert_allclose(result[0], np.full([3000], case), rtol=0.005)
        if case == 30000.0:
            replicas = strategy.num_replicas_in_sync
            total = np.inf if narrow_sums and case * replicas > 65504 else case * replicas
            (result,) = batch_reduce(strategy, [value], mean=False, in_function=True)
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
                check_batches(strategy, float32_only, exact, modes=[(False, False), (True, True)])
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


def message_of(function, *arguments):
    """The type and text of what a call raises; None if it returns."""
    try:
        function(*arguments)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


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


def disagree():
    """Agreements and disagreements of every kind on one cluster, which survives them all."""
    strategy = create()
    worker = _tf_private.worker_index(strategy)
    report = {}
    report["values"] = [
        agreement.gather_values(strategy, "rank", {"worker": worker, "round": i}) for i in range(3)
    ]
    big = "x" * (5 << 20)
    report["big"] = [len(v) for v in agreement.gather_values(strategy, "big", big + "y" * worker)]
    agreement.agree(strategy, "arguments", {"batch": 32})
    report["differ"] = message_of(
        agreement.agree, strategy, "arguments", {"batch": 32, "lr": [0.1, 0.2 + worker]}
    )
    agreement.agree(strategy, "arguments", {"batch": 32})
    report["settings"] = message_of(lambda: create(streams=2 + worker))
    start = time.monotonic()
    if worker == 0:
        report["alone"] = message_of(agreement.gather_values, strategy, "alone", 1, 2.0)
    report["alone seconds"] = time.monotonic() - start

    with strategy.scope():
        twins = [tf.Variable(tf.zeros([8]), name=name) for name in ("first", "second")]
    order = (lambda v: v) if worker == 0 else (lambda v: v[::-1])
    swapped = gradient_step(strategy, twins, lambda v: [(tf.ones_like(x), x) for x in order(v)])
    report["swapped"] = message_of(swapped)
    # A gradient that is None on one worker only never reaches the reduction there.
    count = 2 if worker == 0 else 1
    report["missing"] = message_of(
        gradient_step(strategy, twins, lambda v: [(tf.ones_like(x), x) for x in v[:count]])
    )
    right = gradient_step(strategy, twins, lambda v: [(tf.ones_like(x), x) for x in v])
    report["right"] = [[g.numpy().tolist() for g in local] for local in right()]
    return report


def fail_before_the_first_step():
    """Worker 1 fails in its own Python code; worker 0 waits to agree on the gradients."""
    strategy = create()
    with strategy.scope():
        variable = tf.Variable(tf.zeros([8]), name="weights")
    step = gradient_step(strategy, [variable], lambda v: [(tf.ones_like(v[0]), v[0])])
    if _tf_private.worker_index(strategy) == 1:
        raise ValueError("no such directory")
    start = time.monotonic()
    try:
        step()
    finally:
        print(f"waited {time.monotonic() - start:.1f} s", flush=True)


def join_alone():
    """Worker 1 never joins; the pre-flight check, which would say so, is left out."""
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        _tf_private.MultiWorkerMirroredStrategy(resolver, "CPU", 1, timeout_seconds=3)


def lose_a_worker(how):
    """Worker 1 goes away between two steps; worker 0 should end with an error by itself."""
    strategy = create()
    with strategy.scope():
        variable = tf.Variable(tf.zeros([1000]), name="weights")
    step = gradient_step(strategy, [variable], lambda v: [(tf.ones_like(v[0]), v[0])])
    step()
    pids = agreement.gather_values(strategy, "pid", os.getpid())
    print("steps begin", flush=True)
    if _tf_private.worker_index(strategy) == 1:
        time.sleep(2)
        if how == "dies":
            os._exit(3)
        os.kill(pids[0], signal.SIGTERM)  # worker 0 is stuck in its step by now
        print("worker 0 was asked to end", time.time(), flush=True)
    start = time.monotonic()
    try:
        step()
    finally:
        print(f"ended {time.monotonic() - start:.1f} s after the last step began", flush=True)


def leave_early(first, seconds=4):
    """Worker `first` is done and exits seconds before the other: no failure for either."""
    strategy = create()
    strategy.reduce("SUM", tf.constant(1.0), axis=None)
    if _tf_private.worker_index(strategy) != first:
        time.sleep(seconds)
        return float(np.sum(np.ones(10)))
    return 0.0
