"""Exchange within groups of replicas, on logical devices; between workers: multiprocess/."""

import functools
import gc
import weakref
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tfscale.distribute import replica_groups as module
from tfscale.distribute.replica_groups import replica_groups
from tfscale.layers.group_moments import group_moments, normalize


def mirrored(replicas):
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def per_replica(strategy, values):
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(values[context.replica_id_in_sync_group])
    )


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "tf.function"])
@pytest.mark.parametrize("replicas, size", [(4, 1), (4, 2), (4, 4), (4, None), (3, 3), (2, 2)])
def test_gather_and_sum_stay_inside_the_group(replicas, size, in_function):
    strategy = mirrored(replicas)
    groups = replica_groups(strategy, size)
    values = np.random.default_rng(0).normal(size=(replicas, 5)).astype(np.float32)

    def step(x):
        return strategy.run(lambda x: (groups.gather(x), groups.sum(x)), args=(x,))

    step = tf.function(step) if in_function else step
    gathered, summed = (
        strategy.experimental_local_results(v) for v in step(per_replica(strategy, values))
    )
    size = size or replicas
    for replica in range(replicas):
        first = replica // size * size
        members = values[first : first + size]
        np.testing.assert_array_equal(gathered[replica], members)
        np.testing.assert_allclose(summed[replica], members.sum(axis=0), rtol=1e-6, atol=1e-6)


def test_gather_carries_infinities_and_float64():
    strategy = mirrored(2)
    values = np.array([[np.inf, 1.0], [np.nan, 1 + 1e-15]])
    rows = strategy.run(replica_groups(strategy).gather, args=(per_replica(strategy, values),))
    for row in strategy.experimental_local_results(rows):
        np.testing.assert_array_equal(row, values)


@pytest.mark.parametrize("size", [3, 8])
def test_a_size_that_does_not_divide_shows_the_arithmetic(size):
    with pytest.raises(ValueError, match=f"group_size={size} does not divide 4 replicas"):
        replica_groups(mirrored(4), size)


def test_a_group_that_straddles_a_workers_edge_is_refused(monkeypatch):
    strategy = StubTPUStrategy()
    strategy.num_replicas_in_sync = 6
    monkeypatch.setattr(module._tf_private, "num_workers", lambda strategy: 2)
    assert replica_groups(strategy, 3).group_size == 3
    with pytest.raises(ValueError, match="group of 2 would straddle the edge between worker 0"):
        replica_groups(strategy, 2)


def test_groups_are_made_once_and_go_with_their_strategy():
    strategy = mirrored(2)
    assert replica_groups(strategy) is replica_groups(strategy, 2)
    alive = weakref.ref(replica_groups(strategy))
    del strategy
    gc.collect()
    assert alive() is None


def test_gradients_do_not_flow_through_an_exchange():
    strategy = mirrored(2)

    def replica_fn():
        x = tf.ones([2])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = replica_groups(strategy).sum(x) + x
        return tape.gradient(y, x)

    for gradient in strategy.experimental_local_results(strategy.run(replica_fn)):
        np.testing.assert_array_equal(gradient, [1.0, 1.0])


def test_a_vector_of_unknown_length_is_refused():
    with pytest.raises(ValueError, match=r"known length, got shape \(1, 2\)"):
        replica_groups(mirrored(2)).gather(tf.zeros([1, 2]))


def test_inside_cond_or_an_inner_function_it_says_what_to_do():
    strategy = mirrored(2)
    groups = replica_groups(strategy)

    @tf.function
    def in_cond(flag):
        exchange = functools.partial(groups.sum, tf.ones([1]))
        return strategy.run(lambda: tf.cond(flag, exchange, lambda: tf.ones([1])))

    inner = tf.function(lambda: groups.sum(tf.ones([1])))
    with pytest.raises(RuntimeError, match="cannot exchange statistics from inside a tf.cond"):
        in_cond(tf.constant(True))
    with pytest.raises(RuntimeError, match="wrap strategy.run itself into the tf.function"):
        strategy.run(lambda: inner())


def test_parameter_servers_are_refused():
    strategy = mock.create_autospec(tf.distribute.experimental.ParameterServerStrategy)
    strategy.extended = tf.distribute.get_strategy().extended
    with pytest.raises(ValueError, match="ParameterServerStrategy does not have"):
        replica_groups(strategy, 77)


class StubTPUStrategy(tf.distribute.TPUStrategy):
    """Eight replicas; enough of a strategy to trace a replica's graph without a TPU."""

    num_replicas_in_sync = 8

    def __init__(self):
        class Extended:
            pass

        self._extended = Extended()


def trace_on_tpu(function, groups, length):
    """Nodes of `function` of a ``[length]`` vector, traced in a stub replica."""
    context = mock.Mock(replica_id_in_sync_group=tf.constant(5))

    @tf.function
    def traced(x):
        with mock.patch.object(tf.distribute, "get_replica_context", return_value=context):
            return function(groups, x)

    return traced.get_concrete_function(tf.TensorSpec([length], tf.float32)).graph


def test_tpu_sums_by_cross_replica_sum_with_a_group_assignment():
    groups = replica_groups(StubTPUStrategy(), 4)
    graph = trace_on_tpu(module.ReplicaGroups.sum, groups, 6)
    (op,) = [op for op in graph.get_operations() if op.type == "CrossReplicaSum"]
    assert op.inputs[0].shape == [6]
    np.testing.assert_array_equal(tf.get_static_value(op.inputs[1]), [[0, 1, 2, 3], [4, 5, 6, 7]])


def test_tpu_gathers_in_one_message_of_static_shape():
    groups = replica_groups(StubTPUStrategy(), 2)
    graph = trace_on_tpu(module.ReplicaGroups.gather, groups, 3)
    (op,) = [op for op in graph.get_operations() if op.type == "CrossReplicaSum"]
    assert op.inputs[0].shape == [2, 3]
    np.testing.assert_array_equal(
        tf.get_static_value(op.inputs[1]), [[0, 1], [2, 3], [4, 5], [6, 7]]
    )


def test_tpu_batch_norm_sends_two_messages_of_static_shape():
    def step(groups, x):
        x = tf.reshape(x, [5, 4])
        with tf.GradientTape() as tape:
            tape.watch(x)
            moments = group_moments(x, groups.gather)
            y = normalize(x, tf.ones([4]), tf.zeros([4]), moments, 1e-3, groups.sum)
        return tape.gradient(y, x)

    graph = trace_on_tpu(step, replica_groups(StubTPUStrategy(), 2), 20)
    sums = [op for op in graph.get_operations() if op.type == "CrossReplicaSum"]
    assert [op.inputs[0].shape for op in sums] == [[2, 13], [8]]
    for op in sums:
        groups = tf.get_static_value(op.inputs[1])
        np.testing.assert_array_equal(groups, [[0, 1], [2, 3], [4, 5], [6, 7]])
    assert graph.structured_outputs.shape == [5, 4]


def test_tpu_rows_add_up_to_the_gather():
    # Without a TPU the sum itself is done here, over what each replica would send.
    groups = replica_groups(StubTPUStrategy(), 4)
    values = np.array([[np.inf, -1.0], [2.0, np.nan], [3.0, 0.0], [1e-30, 7.0]], np.float32)
    sent = []

    def collect(input, group_assignment):
        sent.append(input.numpy())
        return input

    with mock.patch.object(tf.raw_ops, "CrossReplicaSum", collect):
        for replica, value in enumerate(values):
            context = mock.Mock(replica_id_in_sync_group=tf.constant(4 + replica))
            with mock.patch.object(tf.distribute, "get_replica_context", return_value=context):
                groups.gather(tf.constant(value))
    np.testing.assert_array_equal(np.sum(sent, axis=0), values)
