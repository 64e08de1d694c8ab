"""The Keras seam: the choice of Keras, and fit and evaluate equal to one device."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfscale._keras import check_model, install, keras
from tfscale._keras.choice import require_legacy_keras
from tfscale._keras.example_loss import per_example_loss
from tfscale._keras.replica_invariance import count_examples
from tfscale.accumulation import accumulate_gradients
from tfscale.losses import average_loss


def devices(count):
    """A strategy over `count` logical CPUs, with the seam installed; None is one device."""
    if count == 1:
        return tf.distribute.get_strategy()
    return STRATEGIES[count]


# Two MirroredStrategies that share devices break each other's collectives on CPUs, so each
# test process keeps to one strategy for each number of devices.
STRATEGIES = {}


@pytest.fixture(autouse=True, scope="module")
def strategies():
    for count in (2, 4):
        cross = tf.distribute.ReductionToOneDevice()
        STRATEGIES[count] = tf.distribute.MirroredStrategy(
            [f"/cpu:{i}" for i in range(count)], cross_device_ops=cross
        )
        install(STRATEGIES[count])
        install(STRATEGIES[count])  # idempotent


def data(n):
    x = np.random.RandomState(0).randn(32, 4).astype("float32")[:n]
    return x, x @ np.array([1.0, 2, 3, 4], "float32")


def linear(regularizer=None):
    inputs = keras.Input([4])
    return keras.Model(
        inputs,
        keras.layers.Dense(1, kernel_initializer="ones", kernel_regularizer=regularizer)(inputs),
    )


def fit(replicas, n, make=linear, optimizer=None, batch_size=16, epochs=1, **compiled):
    x, y = data(n)
    with devices(replicas).scope():
        model = make()
        compiled = {"loss": "mse", **compiled}
        model.compile((optimizer or (lambda: keras.optimizers.SGD(0.1)))(), **compiled)
    history = model.fit(x, y, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0)
    return model, {k: v[-1] for k, v in history.history.items()}


def assert_same(got, want, rtol=1e-5):
    (model, logs), (plain, plain_logs) = got, want
    for a, b in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=rtol, atol=1e-6, err_msg=a.name)
    assert logs.keys() == plain_logs.keys()
    for name in logs:
        np.testing.assert_allclose(logs[name], plain_logs[name], rtol=rtol, err_msg=name)


# ---------------------------------------------------------------- the choice of Keras


def test_unset_variable_becomes_legacy():
    environ = {}
    require_legacy_keras(environ)
    assert environ == {"TF_USE_LEGACY_KERAS": "1"}


@pytest.mark.parametrize("value", ["0", "false", "no"])
def test_keras_3_is_refused_with_the_remedy(value):
    with pytest.raises(ImportError, match="(?s)asks for Keras 3.*20585.*set it to 1"):
        require_legacy_keras({"TF_USE_LEGACY_KERAS": value})


def test_tf_keras_is_the_same_keras():
    assert tf.keras.Model is keras.Model


@pytest.mark.slow
def test_model_of_the_other_keras_is_named():
    code = """
import os; os.environ.pop("TF_USE_LEGACY_KERAS", None)
import tensorflow as tf
tf.keras.Sequential            # resolves tf.keras to Keras 3
model = tf.keras.Sequential([tf.keras.layers.Input([4]), tf.keras.layers.Dense(1)])
from tfscale._keras import check_model, keras
assert keras.__name__ == "tf_keras"
check_model(keras.Sequential())
try:
    check_model(model)
except TypeError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "tf.keras is Keras 3 in this process" in run.stderr, run.stderr
    assert "is a model of Keras 3; tfscale works with tf_keras" in run.stdout


def test_not_a_model():
    with pytest.raises(TypeError, match="expected a Keras model .* got builtins.int"):
        check_model(3)


# ---------------------------------------------------------------- uneven batches


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("n, first_weight", [(19, 0.9549), (17, 1.1864)])
def test_uneven_last_batch_equals_one_device(replicas, n, first_weight):
    got = fit(replicas, n, metrics=["mae"])
    assert abs(got[0].get_weights()[0][0, 0] - first_weight) < 5e-5
    assert_same(got, fit(1, n, metrics=["mae"]))


def test_stock_strategy_keeps_the_stock_weights():
    # 2 + 1 examples weigh 1/2 each: 0.9035 where one device gives 0.9549.
    stock = tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    x, y = data(19)
    with stock.scope():
        model = linear()
        model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
    assert abs(model.get_weights()[0][0, 0] - 0.9035) < 5e-5


@pytest.mark.parametrize("replicas", [2, 4])
def test_empty_replicas_and_batch_norm_give_no_nan(replicas):
    def make():
        return keras.Sequential(
            [
                keras.Input([4]),
                keras.layers.BatchNormalization(synchronized=True),
                keras.layers.Dense(1, kernel_initializer="ones"),
            ]
        )

    model, logs = fit(replicas, 17, make)
    assert all(np.isfinite(w).all() for w in model.get_weights())
    assert np.isfinite(logs["loss"])


@pytest.mark.parametrize("clip", [{"clipnorm": 1.0}, {"global_clipnorm": 1.0}, {}])
@pytest.mark.slow
def test_regulariser_and_clipping(clip):
    def make():
        return linear(keras.regularizers.L2(0.1))

    def optimizer():
        return keras.optimizers.SGD(0.1, momentum=0.9, **clip)

    assert_same(fit(4, 19, make, optimizer, epochs=2), fit(1, 19, make, optimizer, epochs=2))


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.slow
def test_several_outputs_weights_and_reductions(replicas):
    """Two averaged losses and a summed one, loss weights, sample weights, a penalty."""

    def run(replicas):
        x, y = data(19)
        with devices(replicas).scope():
            inputs = keras.Input([4])
            heads = [
                keras.layers.Dense(1, name=name, kernel_initializer="ones", kernel_regularizer="l2")
                for name in "abc"
            ]
            model = keras.Model(inputs, [head(inputs) for head in heads])
            losses = [
                "mse",
                keras.losses.MeanAbsoluteError(),
                keras.losses.MeanSquaredError(reduction="sum"),
            ]
            model.compile(
                keras.optimizers.SGD(0.01),
                losses,
                loss_weights=[1.0, 0.5, 0.05],
                weighted_metrics=["mae"],
            )
        weights = np.linspace(0.1, 2, 19).astype("float32")
        logs = model.fit(
            x, [y] * 3, sample_weight=[weights, weights[::-1].copy(), weights],
            batch_size=16, shuffle=False, verbose=0,
        ).history  # fmt: skip
        evaluated = model.evaluate(x, [y] * 3, batch_size=16, verbose=0, return_dict=True)
        return model, {k: v[-1] for k, v in logs.items()} | {
            "val_" + k: v for k, v in evaluated.items()
        }

    assert_same(run(replicas), run(1))


def test_masked_entries_do_not_count():
    def run(replicas):
        rng = np.random.RandomState(1)
        x = rng.randn(19, 5, 3).astype("float32")
        for i in range(19):
            x[i, i % 4 + 1 :] = 0.0
        x[12:16] = 0.0  # all that the last of four replicas has
        y = rng.randn(19, 5, 1).astype("float32")
        with devices(replicas).scope():
            model = keras.Sequential(
                [
                    keras.Input([5, 3]),
                    keras.layers.Masking(),
                    keras.layers.Dense(1, kernel_initializer="ones"),
                ]
            )
            model.compile(keras.optimizers.SGD(0.1), "mse")
        logs = model.fit(x, y, batch_size=16, shuffle=False, verbose=0).history
        return model, {k: v[-1] for k, v in logs.items()}

    assert_same(run(4), run(1))


def with_loss(loss, x, y, replicas, micro_batches=1):
    """Weights and logs of training, uneven at the end, with a model of three outputs."""
    with devices(replicas).scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
        model.set_weights([np.linspace(-1, 1, 12).reshape(4, 3), np.zeros(3)])
        model.compile(keras.optimizers.SGD(0.01), loss)
    accumulate_gradients(model, micro_batches)
    logs = model.fit(x, y, batch_size=16, shuffle=False, verbose=0).history
    return model, {k: v[-1] for k, v in logs.items()}


def test_ignored_classes_do_not_count():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=2)
    x, labels = data(19)[0], np.arange(19) % 3
    labels[8:16] = 2  # all that the second replica has of a batch
    one = with_loss(loss, x, labels, 1)
    assert_same(with_loss(loss, x, labels, 2), one)
    with pytest.raises(ValueError, match="sparse_categorical_crossentropy makes a mask.*evaluate"):
        per_example_loss(one[0], tf.constant(labels[:2]), one[0](x[:2]))


@pytest.mark.parametrize("replicas, micro_batches", [(2, 1), (1, 3)])
def test_an_unreduced_loss_is_reported_as_by_one_device(replicas, micro_batches):
    x, y = data(19)
    y = np.stack([y, y / 2, -y], axis=1)
    loss = keras.losses.MeanSquaredError(reduction="none")
    assert_same(with_loss(loss, x, y, replicas, micro_batches), with_loss(loss, x, y, 1))


def test_steps_per_execution_and_eager():
    for options in ({"steps_per_execution": 2}, {"run_eagerly": True}):
        assert_same(fit(2, 19, **options), fit(1, 19))


@pytest.mark.slow
def test_metrics_stay_in_range_over_many_steps():
    """Accuracy within [0, 1] and one iteration a step, whatever the number of replicas."""

    def run(replicas):
        x, y = data(32)
        labels = (y > 0).astype("float32")
        with devices(replicas).scope():
            inputs = keras.Input([4])
            out = keras.layers.Dense(1, "sigmoid", kernel_initializer="zeros")(inputs)
            model = keras.Model(inputs, out)
            model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=["accuracy"])
        logs = model.fit(x, labels, batch_size=8, epochs=50, shuffle=False, verbose=0).history
        return model, {k: v[-1] for k, v in logs.items()}

    got = run(4)
    assert 0 <= got[1]["accuracy"] <= 1
    assert got[0].optimizer.iterations.numpy() == 200
    assert_same(got, run(1), rtol=1e-4)


@pytest.mark.slow
def test_logs_of_a_batch_are_those_of_one_device():
    """Metrics that are plain means and others, in a step of Keras's and in one of the user's."""

    class OwnStep(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
            return self.compute_metrics(x, y, self(x), None)

    class Logs(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.seen = []

        def on_train_batch_end(self, batch, logs=None):
            self.seen.append(dict(logs))

    def run(replicas, kind):
        x, y = data(19)
        with devices(replicas).scope():
            inputs = keras.Input([4])
            model = kind(inputs, keras.layers.Dense(1, kernel_initializer="ones")(inputs))
            metrics = ["mae", keras.metrics.RootMeanSquaredError(name="rmse"), "mse"]
            model.compile(keras.optimizers.SGD(0.1), "mse", metrics)
        logs = Logs()
        model.fit(x, y, batch_size=16, shuffle=False, verbose=0, callbacks=[logs])
        return logs.seen

    for kind in (keras.Model, OwnStep):
        for got, want in zip(run(4, kind), run(1, kind), strict=True):
            assert list(got) == list(want)
            for name in want:
                np.testing.assert_allclose(got[name], want[name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("drop_remainder, fetched, static", [
    (True, "inside", True), (False, "inside", False), (True, "outside", False)
])  # fmt: skip
def test_a_static_length_is_trusted_where_the_batch_is_fetched_inside(
    drop_remainder, fetched, static
):
    strategy, (x, y) = devices(2), data(32)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(16, drop_remainder=drop_remainder)
    iterator = iter(strategy.experimental_distribute_dataset(batches))
    seen = []

    @tf.function
    def step(argument):
        batch = next(argument) if fetched == "inside" else argument
        strategy.run(lambda x, y: seen.append(count_examples(y)), args=batch)

    step(iterator if fetched == "inside" else next(iterator))
    assert all(isinstance(n, int) == static for n in seen)


# ---------------------------------------------------------------- own training loops


@pytest.mark.parametrize("n", [16, 19, 17])
@pytest.mark.slow
def test_own_training_loop_with_average_loss(n):
    x, y = data(n)
    strategy = devices(4)
    with strategy.scope():
        model = linear(keras.regularizers.L2(0.1))
        optimizer = keras.optimizers.SGD(0.1)
    loss_object = keras.losses.MeanSquaredError(reduction="none")
    batches = strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices((x, y[:, None])).batch(16)
    )

    @tf.function
    def step(batch):
        def replica(x, y):
            with tf.GradientTape() as tape:
                loss = average_loss(loss_object(y, model(x, training=True)))
                loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))
            optimizer.minimize(loss, model.trainable_variables, tape=tape)
            return loss

        return strategy.reduce("SUM", strategy.run(replica, batch), axis=None)

    for batch in batches:
        step(batch)
    plain, _ = fit(1, n, lambda: linear(keras.regularizers.L2(0.1)))
    for a, b in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_average_loss_is_the_mean_on_one_device():
    losses = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert float(average_loss(losses)) == 3.5
    assert float(average_loss(losses, [1.0, 0.0, 0.0])) == 0.5
    assert float(average_loss(tf.zeros([0]))) == 0.0
    with pytest.raises(ValueError, match='reduction="none"'):
        average_loss(tf.constant(1.0))
