"""The merging of moving statistics over groups of replicas."""

import numpy as np
import pytest
import tensorflow as tf

from tests.references_batch_norm import (
    mirrored,
    random_batches,
    train_step,
)
from tfscale._keras import keras
from tfscale.layers import moving_statistics as module
from tfscale.layers.moving_statistics import merge_moving_statistics
from tfscale.layers.sync_batch_norm import GroupedSyncBatchNormalization


@pytest.mark.parametrize(
    "replicas, size, in_function",
    [(4, 2, False), (4, 1, True), (3, 1, False), (2, 1, False)],
)
@pytest.mark.slow
def test_merged_statistics_are_the_groups_mean_and_survive_a_save(replicas, size, in_function):
    strategy = mirrored(replicas)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((257,)),
                GroupedSyncBatchNormalization(size, momentum=0.0),
                keras.layers.BatchNormalization(momentum=0.0),
            ]
        )
    layer = model.layers[0]
    xs, dys = random_batches((4,) * replicas, (257,), loc=np.pi)
    train_step(strategy, layer, xs, dys)
    variables = [v for v in model.non_trainable_weights]
    local = [np.stack(strategy.experimental_local_results(v)) for v in variables]
    assert np.ptp(local[0], axis=0).max() > 0.01
    (tf.function(merge_moving_statistics) if in_function else merge_moving_statistics)(model)
    for variable, before in zip(variables, local, strict=True):
        held = np.stack(strategy.experimental_local_results(variable))
        for value in held:
            np.testing.assert_array_equal(value, held[0])
        np.testing.assert_allclose(held[0], before.mean(axis=0, dtype=np.float64), rtol=4e-7)
        # What is saved is what is held.
        np.testing.assert_array_equal(variable.numpy(), held[0])
        np.testing.assert_array_equal(variable.read_value(), held[0])


@pytest.mark.parametrize("replicas", [2, 3, 4, 5, 6, 7, 8, 12, 64, 100])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounded_values_add_up_exactly_in_any_order(replicas, dtype):
    x = np.random.default_rng(0).normal(size=1000).astype(dtype)
    rounded = module._round_for_sums(tf.constant(x), replicas).numpy()
    bits = replicas.bit_length() - np.finfo(dtype).nmant
    np.testing.assert_allclose(rounded, x, rtol=2.0 ** (bits - 1), atol=0)
    partial = np.zeros_like(rounded)
    for count in range(1, replicas + 1):
        partial = (partial + rounded).astype(dtype)
        np.testing.assert_array_equal(partial / dtype(count), rounded)


def test_rounding_keeps_what_is_not_finite():
    x = tf.constant([np.inf, -np.inf, np.nan, 0.0, -0.0])
    np.testing.assert_array_equal(module._round_for_sums(x, 100), x)


def test_merging_with_one_replica_changes_nothing():
    model = keras.Sequential([keras.Input((3,)), GroupedSyncBatchNormalization()])
    model(np.random.default_rng(0).normal(size=(5, 3)), training=True)
    before = model.get_weights()
    merge_moving_statistics(model)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
