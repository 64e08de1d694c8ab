"""Exact evaluation against NumPy and one device: 1, 2 and 4 replicas, any remainder."""

import functools
import types

import numpy as np
import pytest
import tensorflow as tf

from tests.references_batch_norm import mirrored
from tests.references_evaluation import (
    CLASSES,
    EXACT,
    FEATURES,
    batches,
    by_replica,
    examples,
    model_with_statistics,
    oracle,
    probabilities_of,
    softmax_model,
)
from tfscale import evaluation
from tfscale._keras import keras
from tfscale.data import images
from tfscale.data.prepare import prepare_arrays
from tfscale.evaluation import evaluate
from tfscale.evaluation_labels import rank_of_label

replicas_of = pytest.mark.parametrize("replicas", [1, 2, 4])


@functools.cache
def plain_model(replicas):
    return softmax_model(mirrored(replicas))


@replicas_of
def test_every_example_counts_once_whatever_the_remainder(replicas):
    model = plain_model(replicas)
    traces = count_traces(model)
    for count in (16, 17, 3, 1):
        x, y = examples(count)
        expected = oracle(probabilities_of(model, x), y)
        assert evaluate(model, batches(x, y)) == pytest.approx(expected, **EXACT)
    assert traces() == replicas  # once in all


def test_it_is_what_keras_finds_but_for_the_regularizer():
    plain = softmax_model(mirrored(1), metrics=["accuracy"])
    x, y = examples(17)
    loss, accuracy = plain.evaluate(x, y, batch_size=8, verbose=0)
    found = evaluate(plain, batches(x, y))
    assert found["top_1"] == pytest.approx(accuracy, **EXACT)
    assert found["loss"] == pytest.approx(loss - float(plain.losses[0]), rel=1e-5)


def count_traces(model):
    calls, stock = [], model.call
    model.call = functools.wraps(stock)(lambda *a, **k: calls.append(0) or stock(*a, **k))
    return lambda: len(calls)


@replicas_of
def test_batches_that_differ_in_size_and_replicas_that_get_none(replicas):
    model = plain_model(replicas)
    x, y = examples(25)
    cuts = np.cumsum([0, 5, 3, 1, 0, 7, 0, 8, 1])
    parts = [(x[a:b], y[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]
    expected = oracle(probabilities_of(model, x), y)
    # Also with a number of batches that the replicas do not divide.
    for elements in (parts, [*parts, (x[:0], y[:0])]):
        found = evaluate(model, by_replica(model.distribute_strategy, elements))
        assert found == pytest.approx(expected, **EXACT)


@replicas_of
def test_padding_counts_nowhere_even_if_it_is_nan(replicas):
    model = plain_model(replicas)
    strategy = model.distribute_strategy
    x, y = examples(9)

    def padded(a, b):
        rows = np.full([4, FEATURES], np.nan, np.float32)
        labels, weight = np.full([4], -1), np.zeros([4], np.float32)
        rows[: b - a], labels[: b - a], weight[: b - a] = x[a:b], y[a:b], 1
        return rows, labels, weight

    elements = [padded(a, b) for a, b in ((0, 4), (4, 4), (4, 7), (7, 8), (8, 9))]
    expected = oracle(probabilities_of(model, x), y)
    for data in (
        by_replica(strategy, elements),
        # Static shapes, where `next` would drop what does not fill all replicas.
        strategy.distribute_datasets_from_function(
            lambda context: tf.data.Dataset.from_tensor_slices(
                tuple(np.stack(part) for part in zip(*elements, strict=True))
            )
        ),
    ):
        assert evaluate(model, data) == pytest.approx(expected, **EXACT)


@pytest.mark.slow
def test_replicas_agree_on_their_statistics_first():
    strategy = mirrored(4)
    model, plain = model_with_statistics(strategy), model_with_statistics(mirrored(1))
    own = [v for v in model.weights if v.synchronization == tf.VariableSynchronization.ON_READ]
    assert len(own) == 3
    rng = np.random.default_rng(1)
    for variable in own:
        for copy in strategy.experimental_local_results(variable):
            copy.assign(rng.uniform(0.5, 2.0, copy.shape))
    kept = model.get_weights()  # what a save takes, before
    plain.set_weights(kept)
    data = batches(*examples(21))
    assert evaluate(model, data) == pytest.approx(evaluate(plain, data), **EXACT)
    for variable in own:
        copies = [np.asarray(c) for c in strategy.experimental_local_results(variable)]
        for copy in [*copies[1:], variable.numpy()]:  # what a save takes, after
            np.testing.assert_array_equal(copy, copies[0])
    for after, before in zip(model.get_weights(), kept, strict=True):
        np.testing.assert_allclose(after, before, rtol=4e-7)


def test_ranks_with_ties_nan_infinities_and_labels_that_are_none():
    rng = np.random.default_rng(2)
    outputs = rng.integers(0, 4, (200, 6)).astype(np.float32)
    labels = rng.integers(0, 6, 200)
    order = np.argsort(-outputs, axis=1, kind="stable")
    expected = np.argmax(order == labels[:, np.newaxis], axis=1)
    rows = np.eye(6)[labels] * 0.9 + 0.01
    for form in (labels, labels[:, np.newaxis], labels.astype(np.float32), rows):
        found = rank_of_label(tf.constant(outputs), tf.constant(form))
        np.testing.assert_array_equal(found, expected)
    odd = [[np.nan, 1.0], [1.0, np.nan], [np.inf, 1.0], [-np.inf, -np.inf], [0.0, 1], [0.0, 1]]
    never = np.iinfo(np.int64).max
    np.testing.assert_array_equal(
        rank_of_label(tf.constant(odd), tf.constant([1, 0, 0, 1, -1, 2])),
        [never, never, 0, 1, never, never],
    )
    fractions = rank_of_label(tf.zeros([3, 2]), tf.constant([0.7, np.nan, 1.0]))
    np.testing.assert_array_equal(fractions, [never, never, 1])
    # Rows that name no class: of a number that is none, smoothed or not, and of NaN.
    none = np.array([[0, 0], [0.05, 0.05], [np.nan, 1], [np.nan, np.nan], [-1, -2], [0.6, 0.4]])
    for dtype in (np.float32, np.float64):
        found = rank_of_label(tf.zeros([6, 2]), tf.constant(none.astype(dtype)))
        np.testing.assert_array_equal(found, [never] * 4 + [0, 0])
    whole = rank_of_label(tf.zeros([2, 2]), tf.constant([[1, 1], [0, 1]]))
    np.testing.assert_array_equal(whole, [never, 1])


def test_one_hot_rows_of_no_class_are_never_right():
    model = softmax_model(mirrored(2), "categorical_crossentropy")
    x, y = examples(8)
    y[:3] = (-1, CLASSES, 99)
    found = evaluate(model, batches(x, tf.one_hot(y, CLASSES)), top=(1, CLASSES))
    assert found[f"top_{CLASSES}"] == 5 / 8
    assert found["top_1"] == np.mean(model.predict(x, verbose=0).argmax(1) == y)


def test_a_nan_output_is_never_right_though_the_classes_are_few():
    model = softmax_model(mirrored(2), classes=3)
    x, y = examples(8)
    y %= 3
    assert evaluate(model, batches(x, y))["top_5"] == 1.0
    x[3] = np.nan
    found = evaluate(model, batches(x, y))
    assert found["top_5"] == 7 / 8 and found["top_1"] <= 7 / 8 and np.isnan(found["loss"])


def smoothed_function(y_true, y_pred):
    one_hot = tf.one_hot(tf.reshape(tf.cast(y_true, tf.int32), [-1]), CLASSES)
    return keras.losses.categorical_crossentropy(one_hot, y_pred, label_smoothing=0.1)


@pytest.mark.slow
def test_the_loss_is_the_compiled_one():
    strategy, alone = mirrored(2), mirrored(1)
    x, y = examples(13)
    one_hot = np.eye(CLASSES, dtype=np.float32)[y]
    losses, reduction = keras.losses, keras.losses.Reduction
    smoothed = losses.CategoricalCrossentropy(label_smoothing=0.1)
    summed = losses.CategoricalCrossentropy(label_smoothing=0.1, reduction=reduction.SUM)
    for where, loss, labels in (
        (strategy, smoothed, one_hot),
        (alone, summed, one_hot),
        (alone, smoothed_function, y),
    ):
        model = softmax_model(where, loss, loss_weights=[0.5])
        expected = oracle(probabilities_of(model, x), y, smoothing=0.1)
        expected["loss"] *= 0.5
        assert evaluate(model, batches(x, labels)) == pytest.approx(expected, **EXACT)
    assert summed.reduction == reduction.SUM
    logits = softmax_model(alone, losses.SparseCategoricalCrossentropy(True), activation=None)
    expected = oracle(probabilities_of(logits, x), y)
    assert evaluate(logits, batches(x, y)) == pytest.approx(expected, **EXACT)
    regression = softmax_model(alone, "mse", activation=None)
    targets = np.random.default_rng(0).normal(size=(13, CLASSES)).astype(np.float32)
    error = regression.predict(x, verbose=0).astype(np.float64) - targets
    assert evaluate(regression, batches(x, targets), top=()) == pytest.approx(
        {"loss": (error**2).mean(), "examples": 13}, **EXACT
    )


def picture_model(strategy, activation, loss):
    with strategy.scope():
        keras.utils.set_random_seed(5)
        layers = [keras.Input([4, 5, 3]), keras.layers.Flatten()]
        model = keras.Sequential([*layers, keras.layers.Dense(CLASSES, activation)])
        model.compile("sgd", loss)
    return model


@pytest.mark.slow
def test_flip_averages_the_probabilities_of_both_views():
    strategy = mirrored(2)
    rng = np.random.default_rng(6)
    x = rng.normal(size=(11, 4, 5, 3)).astype(np.float32)
    y = rng.integers(0, CLASSES, 11)
    model = picture_model(strategy, "softmax", "sparse_categorical_crossentropy")
    views = [model.predict(view, verbose=0).astype(np.float64) for view in (x, x[:, :, ::-1])]
    expected = oracle(np.mean(views, axis=0), y)
    assert evaluate(model, batches(x, y), flip=True) == pytest.approx(expected, **EXACT)
    assert evaluate(model, batches(x, y)) == pytest.approx(oracle(views[0], y), **EXACT)
    from_logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    logits = picture_model(mirrored(1), None, from_logits)
    assert evaluate(logits, batches(x, y), flip=True) == pytest.approx(expected, **EXACT)
    undeclared = picture_model(mirrored(1), None, "mse")
    targets = np.eye(CLASSES, dtype=np.float32)[y]
    with pytest.raises(ValueError, match="examples are negative or do not add up to 1"):
        evaluate(undeclared, batches(x, targets), flip=True)
    with pytest.raises(ValueError, match="flip=True mirrors pictures"):
        evaluate(plain_model(1), batches(*examples(4)), flip=True)


@pytest.mark.slow
def test_eval_dataset_with_and_without_padding(tmp_path):
    rng = np.random.default_rng(8)
    names = [str(i) for i in range(CLASSES)]
    for count in (17, 3):  # a remainder, and fewer than replicas
        labels = rng.integers(0, CLASSES, count)
        pixels = rng.integers(0, 256, (count, 12, 12, 3)).astype(np.uint8)
        prepare_arrays(zip(pixels, labels, strict=True), str(tmp_path), f"of_{count}", names)
    models = []
    for replicas in (1, 4):
        with mirrored(replicas).scope():
            keras.utils.set_random_seed(9)
            layers = [keras.Input([8, 8, 3]), keras.layers.Conv2D(4, 3, activation="relu")]
            layers += [keras.layers.GlobalMaxPooling2D(), keras.layers.Dense(CLASSES, "softmax")]
            model = keras.Sequential(layers)
            model.compile("sgd", "sparse_categorical_crossentropy")
            models.append(model)
    one_device, model = models
    for count, paddings in ((17, (False, True)), (3, (False,))):
        data = functools.partial(
            images.eval_dataset, str(tmp_path), 8, 8, split=f"of_{count}", threads=1
        )
        expected = evaluate(one_device, data())
        assert expected["examples"] == count
        for pad in paddings:
            split = model.distribute_strategy.distribute_datasets_from_function(
                functools.partial(data, pad_remainder=pad)
            )
            assert evaluate(model, split) == pytest.approx(expected, **EXACT)


def test_what_cannot_be_evaluated_is_named():
    model, x, y = plain_model(2), *examples(8)

    def refused(match, data, model=model, error=ValueError, **options):
        with pytest.raises(error, match=match):
            evaluate(model, data, **options)

    refused("steps=3, but the dataset ended after 1 batches", batches(x, y), steps=3)
    refused("steps=0: a number of batches", batches(x, y), steps=0)
    refused("the dataset has no end: give steps", batches(x, y).repeat())
    endless = model.distribute_strategy.experimental_distribute_dataset(batches(x, y).repeat())
    refused("the dataset has no end: give steps", endless)
    refused("the dataset has no example", batches(x[:0], y[:0]))
    refused("dataset is a tuple", (x, y), error=TypeError)
    refused(r"elements of the dataset are \(x, y\)", tf.data.Dataset.from_tensor_slices(x).batch(4))
    refused(r"top=\(0, 5\)", batches(x, y), top=(0, 5))
    refused("are single examples, .* dataset.batch", tf.data.Dataset.from_tensor_slices((x, y)))
    text = np.array(["a"] * 8)
    refused("y and weight tensors of numbers, not .*string", batches(x, text))
    ragged = tf.ragged.constant([[0]] * 8, tf.int64)
    refused("y and weight tensors of numbers, not .*Ragged", batches(x, ragged))
    doubled = tf.data.Dataset.from_tensors((x, y, np.ones([8, 2])))
    refused(r"weights of shape \(8, 2\) are not one for each example", doubled)
    another = mirrored(1).experimental_distribute_dataset(batches(x, y))
    message = r"by another strategy, .* \(replicas: 1\), than .*MirroredStrategy \(replicas: 2\)"
    refused(message, another)  # it would count twice
    weighted = tf.data.Dataset.from_tensor_slices((x, y, np.linspace(0, 1, 8))).batch(4)
    refused("6 examples have a weight other than 0 and 1", weighted)
    refused(r"labels of shape \(None, 3\)", batches(x, np.zeros([8, 3])))
    binary = softmax_model(mirrored(1), "binary_crossentropy", "sigmoid", classes=1)
    refused("not .batch, classes. with 2 classes or more", batches(x, y % 2), binary)
    scalar = softmax_model(mirrored(1), lambda y, p: tf.reduce_mean(p))
    refused("gives one number for a batch and none for each example", batches(x, y), scalar)
    refused("has no loss to evaluate", batches(x, y), keras.Sequential([keras.layers.Dense(3)]))
    refused("expected a Keras model", batches(x, y), types.SimpleNamespace(), error=TypeError)


@pytest.mark.parametrize(
    "loss, shape, top, match",
    [
        ("categorical_crossentropy", [], (1,), r"\(None,\) .* expected a row of 7 .*, or sparse_"),
        ("CategoricalCrossentropy", [1], (), r"\(None, 1\) .* expected a row of 7 .*, or sparse_"),
        (["categorical_crossentropy"], [5], (), r"\(None, 5\) .* a row of 7 for each example$"),
        (keras.losses.SparseCategoricalCrossentropy(), [7], (1,), r"7\) .* class numbers \[batch"),
        ("mse", [5], (1,), r"labels of shape \(None, 5\) with outputs of shape \(None, 7\): exp"),
    ],
)
def test_labels_that_do_not_fit_are_named_before_any_is_read(loss, shape, top, match):
    def read():
        raise AssertionError("it reads")
        yield

    spec = (tf.TensorSpec([None, FEATURES]), tf.TensorSpec([None, *shape]))
    data = tf.data.Dataset.from_generator(read, output_signature=spec)
    for replicas, distributed in ((1, False), (2, True)):
        model = softmax_model(mirrored(replicas), loss)
        distribute = model.distribute_strategy.experimental_distribute_dataset
        with pytest.raises(ValueError, match=match) as caught:
            evaluate(model, distribute(data) if distributed else data, top=top)
        assert "in user code" not in str(caught.value)


def test_a_subclassed_model_has_no_shapes_before_it_is_called():
    class Plain(keras.Model):
        def call(self, x, training=None):
            return x

    model = Plain()
    model.compile(loss="sparse_categorical_crossentropy")
    x, y = np.eye(4, dtype=np.float32), np.arange(4)
    assert evaluate(model, batches(x, y))["top_1"] == 1
    with pytest.raises(ValueError, match=r"labels of shape \(None, 3\) with outputs of shape"):
        evaluate(model, batches(x, np.zeros([4, 3], np.float32)), top=(2,))


def test_steps_of_an_endless_dataset_and_a_new_loss():
    model = softmax_model(mirrored(2))
    x, y = examples(16)
    data = batches(x, y, 4).repeat()
    expected = oracle(probabilities_of(model, x[:12]), y[:12])
    for _ in range(2):  # from the beginning each time
        assert evaluate(model, data, steps=3) == pytest.approx(expected, **EXACT)
    model.compile("sgd", smoothed_function)
    smoothed = oracle(probabilities_of(model, x[:12]), y[:12], smoothing=0.1)
    assert evaluate(model, data, steps=3) == pytest.approx(smoothed, **EXACT)
    assert len(evaluation._steps[model]) == 1
