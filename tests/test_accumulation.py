"""Gradient accumulation: the whole batch in parts, with one update and one exchange."""

import doctest
import functools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tfscale import accumulation, keras
from tfscale._keras import same_step
from tfscale._keras.accumulated_step import AccumulatedStep, Split
from tfscale.accumulation import accumulate_gradients
from tfscale.distribute.strategy import create_strategy
from tfscale.layers.sync_batch_norm import GroupedSyncBatchNormalization
from tfscale.optimizers.lars import LARS
from tfscale.optimizers.schedules import PiecewiseLinear
from tfscale.precision import scale_loss_optimizer

# Weights, metrics and losses here are about 1, so this is 1e-6 of them.
EXACT = dict(rtol=1e-6, atol=1e-6)
BATCH = 16  # of 37 examples: 16, 16 and 5


@functools.cache
def strategy_of(replicas):
    """One for each number of replicas: two that share devices would disturb each other."""
    if replicas == 1:
        return create_strategy("one_device")
    return create_strategy("mirrored", devices_per_worker=replicas)


def data(examples=37):
    random = np.random.RandomState(0)
    x = random.randn(examples, 4).astype("float32")
    y = x @ np.array([[1.0], [2], [-1], [0.5]], "float32")
    labels = (np.arange(examples) % 3).astype("int32")
    weights = np.linspace(0.1, 2, examples).astype("float32")
    return x, (y, labels), (weights, weights[::-1].copy())


def two_heads():
    """An averaged loss and a weighted one, with a penalty."""
    inputs = keras.Input([4])
    x = keras.layers.Dense(8, "tanh", kernel_regularizer=keras.regularizers.L2(0.01))(inputs)
    heads = [keras.layers.Dense(1, name="a"), keras.layers.Dense(3, "softmax", name="b")]
    return keras.Model(inputs, [head(x) for head in heads])


def sgd():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def train(replicas, micro_batches, validate=False):
    """Fits two heads to 37 examples; what training leaves behind."""
    keras.utils.set_random_seed(1)
    with strategy_of(replicas).scope():
        model = two_heads()
        model.compile(
            sgd(),
            ["mse", "sparse_categorical_crossentropy"],
            loss_weights=[1.0, 0.5],
            metrics={"b": ["accuracy"]},
            weighted_metrics={"a": [keras.metrics.RootMeanSquaredError(name="rmse")]},
        )
    assert accumulate_gradients(model, micro_batches) is model
    x, y, weights = data()
    validation = {"validation_data": (x, y), "validation_batch_size": BATCH} if validate else {}
    history = model.fit(
        x, y, sample_weight=weights, batch_size=BATCH, shuffle=False, verbose=0, **validation
    ).history
    return model, history


def one_head(replicas, micro_batches, optimizer=sgd, loss="mse", compiled=None, **layer):
    """The same for one head; `layer` goes to its hidden layer."""
    keras.utils.set_random_seed(1)
    with strategy_of(replicas).scope():
        hidden = keras.layers.Dense(3, "tanh", **layer)
        model = keras.Sequential([keras.Input([4]), hidden, keras.layers.Dense(1)])
        model.compile(optimizer(), loss, **(compiled or {}))
    x, (y, _), _ = data()
    accumulate_gradients(model, micro_batches)
    return model, model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0).history


def left_behind(trained):
    model, history = trained
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    variables = [*model.variables, *inner.variables()]  # of both kinds of optimizers
    return {f"{i} {v.name}": v.numpy() for i, v in enumerate(variables)} | history


def assert_same(got, want, **tolerance):
    got, want = left_behind(got), left_behind(want)
    # Names carry a number that counts the models of the process.
    assert len(got) == len(want)
    for (name, a), b in zip(got.items(), want.values(), strict=True):
        np.testing.assert_allclose(a, b, **(tolerance or EXACT), err_msg=name)


@functools.cache
def whole_batch():
    return train(1, 1, validate=True)


@functools.cache
def whole_batch_of_one_head():
    return one_head(1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("replicas, micro_batches", [(1, 3), (2, 4), (4, 2)])
def test_equals_the_whole_batch_on_one_device(replicas, micro_batches):
    model, history = train(replicas, micro_batches, validate=replicas == 1)
    plain, whole = whole_batch()
    assert_same((model, history), (plain, {name: whole[name] for name in history}))
    assert model.optimizer.iterations.numpy() == 3
    assert model.distribute_strategy.num_replicas_in_sync == replicas


@pytest.mark.slow
def test_steps_per_execution_and_eager():
    plain = whole_batch_of_one_head()
    assert_same(one_head(2, 3, compiled={"steps_per_execution": 3}), plain)
    assert_same(one_head(2, 3, compiled={"run_eagerly": True}), plain)


@pytest.mark.slow
def test_optimizers_count_whole_batches():
    schedule = PiecewiseLinear([0, 3], [2.0, 0.5])
    momentum = PiecewiseLinear([0, 3], [0.9, 0.5])
    lars = functools.partial(LARS, schedule, momentum, use_ema=True, global_clipnorm=1.0)
    legacy = functools.partial(keras.optimizers.legacy.SGD, 0.05, momentum=0.9)
    for optimizer in (lars, legacy):
        assert_same(one_head(1, 3, optimizer), one_head(1, 1, optimizer))


def test_one_number_for_a_batch_is_taken_for_a_mean_with_a_warning(caplog):
    def mean(y, y_pred):
        return tf.reduce_mean(tf.square(y - y_pred))

    plain = whole_batch_of_one_head()
    assert "gives one number" not in caplog.text
    assert_same(one_head(1, 2, loss=mean), plain)
    assert caplog.text.count("the loss 'mean' gives one number for a batch") == 1


def test_activity_penalties_and_summed_losses():
    penalty = {"activity_regularizer": keras.regularizers.L2(0.3)}
    loss = keras.losses.MeanSquaredError(reduction="sum")

    def slow():
        return keras.optimizers.SGD(0.05 / BATCH)

    assert_same(one_head(1, 3, slow, loss, **penalty), one_head(1, 1, slow, loss, **penalty))


# ---------------------------------------------------------------- batch norm


def normed(group_size=None):
    keras.utils.set_random_seed(2)
    layers = [keras.Input([4]), keras.layers.Dense(6, "tanh")]
    layers += [GroupedSyncBatchNormalization(group_size, momentum=0.8), keras.layers.Dense(1)]
    return keras.Sequential(layers)


def by_parts(x, y, rows, rate):
    """One step of SGD on one device: `rows[part][group]` are normalised together."""
    model = normed()
    norm = model.layers[1]
    statistics = [[v.numpy() for v in norm.variables[2:]] for _ in rows[0]]
    total = [np.zeros(v.shape, "float32") for v in model.trainable_variables]
    for part in rows:
        for group, members in enumerate(part):
            for variable, value in zip(norm.variables[2:], statistics[group], strict=True):
                variable.assign(value)
            with tf.GradientTape() as tape:
                error = model(x[members], training=True) - y[members]
                loss = tf.reduce_sum(tf.square(error)) / len(x)
            gradients = tape.gradient(loss, model.trainable_variables)
            total = [t + g.numpy() for t, g in zip(total, gradients, strict=True)]
            statistics[group] = [v.numpy() for v in norm.variables[2:]]
    weights = [v.numpy() - rate * t for v, t in zip(model.trainable_variables, total, strict=True)]
    return weights, statistics


@pytest.mark.slow
@pytest.mark.parametrize("replicas, group_size", [(1, None), (4, 2)])
def test_batch_norm_normalises_each_part_by_itself(replicas, group_size):
    """A part is joined over the replicas of a group."""
    x, (y, _), _ = data(16)
    strategy, per_replica, size = strategy_of(replicas), 16 // replicas, group_size or replicas
    rows = [
        [
            np.concatenate(
                [np.arange(per_replica // 2) + r * per_replica + part * per_replica // 2
                 for r in range(first, first + size)]
            )
            for first in range(0, replicas, size)
        ]
        for part in range(2)
    ]  # fmt: skip
    weights, statistics = by_parts(x, y, rows, rate=0.5)
    with strategy.scope():
        model = normed(group_size)
        model.compile(keras.optimizers.SGD(0.5), "mse")
    accumulate_gradients(model, 2).fit(x, y, batch_size=16, shuffle=False, verbose=0)
    for got, want in zip(model.trainable_variables, weights, strict=True):
        np.testing.assert_allclose(got.numpy(), want, **EXACT)
    for i, variable in enumerate(model.layers[1].variables[2:]):
        for replica, copy in enumerate(strategy.experimental_local_results(variable)):
            np.testing.assert_allclose(np.asarray(copy), statistics[replica // size][i], **EXACT)


# ---------------------------------------------------------------- float16


@pytest.fixture
def float16():
    keras.mixed_precision.set_global_policy("mixed_float16")
    yield
    keras.mixed_precision.set_global_policy("float32")


def one_weight(replicas, micro_batches):
    with strategy_of(replicas).scope():
        inputs = keras.Input([1])
        outputs = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(inputs)
        model = keras.Model(inputs, outputs)
        optimizer = scale_loss_optimizer(keras.optimizers.SGD(0.01), initial_scale=128)
        model.compile(optimizer, "mse")
    return accumulate_gradients(model, micro_batches)


def test_float16_checks_the_sum_of_the_scaled_gradients_once(float16):
    x, y = np.ones([8, 1], "float32"), np.zeros([8, 1], "float32")
    model = one_weight(2, 2)
    model.fit(x, y, batch_size=8, epochs=3, verbose=0)
    assert model.optimizer.dynamic_counter.numpy() == 3  # finite steps, not parts
    want = (1 - 0.01 * 2) ** 3  # gradient of w^2
    assert model.get_weights()[0][0, 0] == pytest.approx(want, rel=2e-3)
    before = model.get_weights()[0]
    x[5] = 200.0  # overflows in the first part of the second replica
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    assert float(model.optimizer.loss_scale) == 64
    assert model.optimizer.skipped_in_a_row.numpy() == 1
    assert model.optimizer.iterations.numpy() == 3
    np.testing.assert_array_equal(model.get_weights()[0], before)


def test_half_precision_gradients_are_summed_in_float32(float16):
    # 2048 + 1 is 2048 in float16. The gradients of the parts are 2048 / 8 and seven times 1 / 8.
    keras.mixed_precision.set_global_policy("float16")
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(1.0), keras.losses.MeanAbsoluteError())
    model.set_weights([np.zeros([1, 1])])
    x, y = np.ones([8, 1], "float16"), np.full([8, 1], -60000, "float16")
    x[0] = 2048
    accumulate_gradients(model, 8).fit(x, y, batch_size=8, shuffle=False, verbose=0)
    want = np.float16(-(2048 + 7) / 8)
    assert model.get_weights()[0][0, 0] == want != np.float16(-2048 / 8)


# ---------------------------------------------------------------- what a step does


class Counted(tf.distribute.ReductionToOneDevice):
    def __init__(self):
        super().__init__()
        self.traced = []

    def batch_reduce_implementation(self, reduce_op, pairs, options):
        self.traced.append(len(pairs))
        return super().batch_reduce_implementation(reduce_op, pairs, options)


def test_one_exchange_of_the_gradients_a_step():
    counted = Counted()
    strategy = create_strategy("mirrored", devices_per_worker=2, cross_device_ops=counted)
    x, (y, _), _ = data(16)
    seen = []
    for micro_batches in (1, 4):
        with strategy.scope():
            model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3, "tanh")])
            model.compile(sgd(), "mse")
        counted.traced.clear()
        batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(16, drop_remainder=True)
        accumulate_gradients(model, micro_batches).fit(batches, verbose=0)
        seen.append([n for n in counted.traced if n == 2])  # kernel and bias
    # TensorFlow traces twice where the trace makes variables.
    assert seen == [[2, 2], [2, 2]]


def test_a_variable_without_gradient_is_left_alone_and_embeddings_are_exact():
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding = keras.layers.Embedding(6, 2)
            self.head = keras.layers.Dense(1)

        def build(self, shape):
            self.unused = self.add_weight(name="unused", shape=[2], initializer="ones")
            self.built = True

        def call(self, inputs):
            rows = self.embedding(inputs)
            if tf.reduce_sum(rows) > 1e6:  # AutoGraph's
                rows = -rows
            return self.head(tf.reduce_sum(rows, axis=1))

    def run(micro_batches):
        keras.utils.set_random_seed(1)
        model = Net()
        model(np.zeros([1, 3], "int32"))
        model.compile(keras.optimizers.AdamW(0.1, weight_decay=0.0), "mse")
        accumulate_gradients(model, micro_batches)
        x = np.arange(24).reshape(8, 3) % 5
        history = model.fit(x, x.sum(1), batch_size=8, epochs=2, verbose=0, shuffle=False).history
        return model, history

    got = run(4)
    assert_same(got, run(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got[0].unused.numpy(), [1, 1])


def test_it_can_be_changed_and_taken_back():
    x, (y, _), _ = data(16)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile(sgd(), "mse")
    accumulate_gradients(model, 4).fit(x, y, batch_size=8, verbose=0)
    accumulate_gradients(model, 2)
    assert model.train_step.micro_batches == 2
    model.train_on_batch(x, y)
    model.compile(sgd(), "mae")
    assert isinstance(model.train_step, AccumulatedStep)
    accumulate_gradients(model, 1)
    assert "train_step" not in vars(model)
    model.fit(x, y, batch_size=8, verbose=0)
    accumulate_gradients(model, 4)
    copy = keras.models.clone_model(model)
    assert "train_step" not in vars(copy)


@pytest.mark.slow
def test_xla_runs_the_parts_and_names_what_it_cannot():
    x, (y, _), _ = data(32)

    def run(micro_batches, batch_size=16, drop_remainder=True, **compiled):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile(sgd(), "mse", **compiled)
        batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size, drop_remainder)
        return model, accumulate_gradients(model, micro_batches).fit(batches, verbose=0).history

    assert_same(run(4, jit_compile=True), run(1))
    with pytest.raises(ValueError, match="multiple of 3"):
        run(3, jit_compile=True)
    with pytest.raises(ValueError, match="an unknown number of examples.*drop_remainder=True"):
        run(4, drop_remainder=False, jit_compile=True)


def test_where_exchanges_may_stand_in_a_loop(monkeypatch):
    name = "strategy_supports_no_merge_call"
    monkeypatch.setattr(tf.__internal__.distribute, name, lambda: True)
    assert_same(one_head(1, 4), whole_batch_of_one_head())


def peak_of_fit(micro_batches):
    """By how many MB this process grows at most; activations of the whole batch take 256 MB."""
    layers = [keras.Input([1]), keras.layers.Dense(1 << 12, "tanh"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.01), "mse")
    x = np.zeros([1 << 14, 1], "float32")
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak back
    before = status("VmHWM")
    accumulate_gradients(model, micro_batches).fit(x, x, batch_size=len(x), verbose=0)
    return status("VmHWM") - before


def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith(name)]
    return int(value) / 1024


def test_the_activations_of_one_part_are_in_memory_at_a_time():
    parts, whole = peak_of_fit(16), peak_of_fit(1)
    assert whole > 256 and parts < whole / 4, (whole, parts)


# ---------------------------------------------------------------- the split


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("examples, parts", [(12, 4), (14, 4), (5, 5), (7, 1), (2, 3)])
def test_parts_are_consecutive_and_complete(examples, parts, known):
    split = Split(examples if known else tf.constant(examples), 2 * examples, parts)
    values = tf.range(examples)[:, tf.newaxis] * tf.constant([[1, 10]])
    ks = range(parts)
    rows = [split.rows(values, tf.constant(k)).numpy() for k in ks]
    np.testing.assert_array_equal(np.concatenate(rows), values)
    sizes = [len(r) for r in rows]
    assert sizes == [int(split.size(tf.constant(k))) for k in ks]
    assert sizes == sorted(sizes, reverse=True) and max(sizes) - min(sizes) <= 1
    weights = [split.part(tf.constant(k)) for k in ks]
    assert sum(float(w.share) for w in weights) == pytest.approx(0.5)
    assert sum(float(w.share_of_replica) for w in weights) == pytest.approx(1.0)


def test_a_replica_without_examples_has_its_share_of_the_penalties():
    split = Split(tf.constant(0), tf.constant(6), tf.constant(3))
    parts = [split.part(tf.constant(k)) for k in range(3)]
    assert [float(p.share) for p in parts] == [0, 0, 0]
    assert sum(float(p.share_of_replica) for p in parts) == pytest.approx(1.0)


# ---------------------------------------------------------------- errors


def simple(kind=keras.Sequential, optimizer="sgd", compiled=True, layers=()):
    model = kind([keras.Input([4]), *layers, keras.layers.Dense(1)])
    if compiled:
        model.compile(optimizer, "mse")
    return model


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "2", None])
def test_bad_numbers_are_named(value):
    with pytest.raises(ValueError, match=f"micro_batches must be an integer .* got {value!r}"):
        accumulate_gradients(simple(), value)


def test_models_that_cannot_be_split_are_named():
    class OwnStep(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    class OwnLoss(keras.Sequential):
        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs)

    class OwnGradients(keras.optimizers.SGD):
        def compute_gradients(self, *args, **kwargs):
            return super().compute_gradients(*args, **kwargs)

    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    unbuilt.compile("sgd", "mse")
    replaced = simple()
    replaced.train_step = lambda data: {}
    cases = [
        (simple(compiled=False), "compile model .* before accumulate_gradients"),
        (unbuilt, "has no weights yet"),
        (simple(OwnStep), r"\(OwnStep\) has its own train_step"),
        (simple(OwnLoss), r"\(OwnLoss\) has its own compute_loss"),
        (replaced, "has its own train_step"),
        (simple(optimizer=OwnGradients()), "OwnGradients has its own compute_gradients"),
    ]
    for model, words in cases:
        with pytest.raises(ValueError, match=words):
            accumulate_gradients(model, 2)
    model = accumulate_gradients(simple(), 2)
    model.compile(OwnGradients(), "mse")
    with pytest.raises(ValueError, match="OwnGradients has its own compute_gradients"):
        model.fit(np.ones([4, 4]), np.ones([4, 1]), verbose=0)


def test_a_model_of_keras_3_is_named():
    keras_3 = pytest.importorskip("keras")
    with pytest.raises(TypeError, match="Keras 3"):
        accumulate_gradients(keras_3.Sequential([keras_3.layers.Dense(1)]), 2)


def test_batches_that_cannot_be_split_are_named():
    x = np.ones([12, 4], "float32")
    batches = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
    with pytest.raises(ValueError, match="8 micro-batches, but .* has 6 examples"):
        accumulate_gradients(simple(), 8).fit(batches.batch(6, drop_remainder=True), verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="(?s)8 micro-batches.*6"):
        accumulate_gradients(simple(), 8).fit(batches.batch(6), verbose=0)
    sparse = batches.map(lambda x, y: (tf.sparse.from_dense(x), y)).batch(6)
    with pytest.raises(TypeError, match="first axis is the examples"):
        accumulate_gradients(simple(), 2).fit(sparse, verbose=0)
    masked = [keras.layers.Reshape([4, 1]), keras.layers.Masking()]
    model = simple(layers=masked)
    with pytest.raises(ValueError, match="averages over the unmasked entries"):
        accumulate_gradients(model, 2).fit(x, np.ones([12, 4, 1]), verbose=0)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(ignore_class=2))
    with pytest.raises(ValueError, match="a loss with ignore_class"):
        accumulate_gradients(model, 2).fit(x, np.arange(12) % 3, verbose=0)


def test_workers_compare_the_number_of_parts_before_the_first_trace_of_each():
    seen = []
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    same_step.install(strategy, lambda *arguments: seen.append(arguments))
    with strategy.scope():
        model = simple()
    for parts in (1, 1, 2, 2):
        accumulate_gradients(model, parts).make_train_function()
        model.make_train_function(force=True)
    assert seen == [(strategy, "the training step", {"micro_batches": n}) for n in (1, 2)]


def test_examples_run():
    results = doctest.testmod(accumulation)
    assert results.attempted > 0 and results.failed == 0
