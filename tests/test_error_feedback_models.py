"""Each model has its own velocities and residuals, though its tensors have the names of another's.

One worker has no residuals of its own; between real workers tests/multiprocess looks at them.
"""

import weakref

import numpy as np
import pytest
import tensorflow as tf

from tests.garbage import assert_collected
from tfscale._keras import install, keras
from tfscale.distribute import _tf_private
from tfscale.distribute.all_reduce import Hierarchical2DAllReduce
from tfscale.distribute.compression.protocol import Uncompressed

pytestmark = pytest.mark.slow

X = np.random.RandomState(0).randn(16, 3).astype("float32")


def create(momentum=0.9):
    operation = Hierarchical2DAllReduce(Uncompressed(momentum))
    strategy = _tf_private.MirroredStrategy([f"/device:CPU:{i}" for i in range(2)], operation)
    install(strategy, operation)
    return strategy, operation


def build(strategy, seed):
    with strategy.scope():
        keras.utils.set_random_seed(seed)
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2, name="dense")])
        model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def by_fit(model):
    model.fit(X, X[:, :2], batch_size=8, epochs=1, shuffle=False, verbose=0)


def by_batch(model):
    model.train_on_batch(X, X[:, :2])


def held(state):
    exported = state.export()
    return np.concatenate([*exported.get("residual", []), *exported.get("velocity", []), [0]])


@pytest.mark.parametrize("train", [by_fit, by_batch])
def test_models_trained_in_turns_equal_each_trained_alone(train):
    changes = {2: Uncompressed(0.5), 4: None, 5: Uncompressed(0.9)}

    def run(seeds):
        strategy, operation = create()
        models = [build(strategy, seed) for seed in seeds]
        seen = []
        for turn in range(6):
            if turn in changes:
                operation.set_compression(changes[turn])
            for model in models:
                train(model)
            seen.append(
                [
                    (*(w.copy() for w in model.get_weights()), held(operation.state_of(model)))
                    for model in models
                ]
            )
        assert operation.state.export() == {}
        return list(zip(*seen, strict=True))

    together = run([1, 2])
    for mine, (alone,) in zip(together, (run([1]), run([2])), strict=True):
        for step, (left, right) in enumerate(zip(mine, alone, strict=True)):
            for a, b in zip(left, right, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"turn {step}")
            # Without momentum the velocity is dropped.
            assert np.any(left[-1]) == (step != 4)


def test_a_loop_without_a_model_has_a_state_of_its_own():
    strategy, operation = create()
    model, other = build(strategy, 1), build(strategy, 2)
    by_fit(model)
    before = held(operation.state_of(model))

    @tf.function
    def step(x):
        def replica(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(other(x) ** 2)
            variables = other.trainable_variables
            grads = tape.gradient(loss, variables)
            other.optimizer.apply_gradients(zip(grads, variables, strict=True))

        strategy.run(replica, (x,))

    step(tf.constant(X))
    mine = held(operation.state)
    assert np.any(mine) and not np.any(held(operation.state_of(other)))
    np.testing.assert_array_equal(held(operation.state_of(model)), before)
    # Its step goes on with what it was traced for.
    with operation.for_model(other):
        step(tf.constant(X))
        assert not np.any(held(operation.state))
    assert np.any(held(operation.state) != mine)


def test_what_is_owed_is_paid_by_its_model():
    strategy, operation = create(momentum=0.0)
    model, other, plain = (build(strategy, seed) for seed in (1, 2, 2))
    residual = np.arange(6, dtype=np.float32)
    operation.state_of(model).load([{"tensors": [["dense/kernel", 6, 0]], "residual": [residual]}])
    by_batch(other)
    np.testing.assert_array_equal(held(operation.state_of(model))[:-1], residual)
    before = model.get_weights()[0]
    expected = build(strategy, 1)
    by_batch(expected)
    by_batch(model)
    assert not np.any(held(operation.state_of(model)))
    paid = expected.get_weights()[0] - model.get_weights()[0]
    np.testing.assert_allclose(paid, 0.05 * residual.reshape(3, 2), rtol=1e-4, atol=1e-6)
    assert np.any(before != model.get_weights()[0])
    by_batch(plain)
    for a, b in zip(plain.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_state_goes_with_its_model():
    strategy, operation = create()
    model = build(strategy, 1)
    by_fit(model)
    state = weakref.ref(operation.state_of(model))
    del model
    keras.backend.clear_session()
    assert_collected(state)


def test_variables_of_one_path_in_two_plans_have_each_their_own():
    """Two optimizers in one step, as of a GAN, whose layers have the same name."""
    strategy, operation = create()

    class Pair(keras.Model):
        def __init__(self):
            super().__init__()
            self.parts = [keras.Sequential([keras.layers.Dense(3, name="out")]) for _ in range(2)]
            for part in self.parts:
                part.build([None, 3])

        def compile(self):
            super().compile(keras.optimizers.SGD(0.0))
            self.optimizers = [keras.optimizers.SGD(0.0) for _ in self.parts]

        def train_step(self, x):
            for scale, part, optimizer in zip((1, 1e3), self.parts, self.optimizers, strict=True):
                with tf.GradientTape() as tape:
                    loss = scale * tf.reduce_sum(part(x) ** 2)
                optimizer.minimize(loss, part.trainable_variables, tape=tape)
            return {"loss": loss}

    with strategy.scope():
        model = Pair()
        model.compile()
    model.fit(X, batch_size=8, epochs=1, verbose=0)
    exported = operation.state_of(model).export()
    assert sorted(exported["tensors"])[-2:] == [["out/kernel", 9, 0], ["out/kernel", 9, 1]]
    sizes = {
        tuple(t): np.abs(v).sum()
        for t, v in zip(exported["tensors"], exported["velocity"], strict=True)
    }
    assert sizes["out/kernel", 9, 1] > 100 * sizes["out/kernel", 9, 0] > 0
    # And go on with it under other buckets.
    operation.set_compression(Uncompressed(0.5))
    model.fit(0 * X[:8], batch_size=8, epochs=1, verbose=0)
    after = operation.state_of(model).export()
    for before, now in zip(exported["velocity"], after["velocity"], strict=True):
        if before.size == 9:
            np.testing.assert_allclose(now, 0.5 * before, rtol=1e-6)
