"""The callback `Evaluation`; on two workers in multiprocess/."""

import numpy as np
import pytest

from tests.references_batch_norm import mirrored
from tests.references_evaluation import (
    CLASSES,
    FEATURES,
    batches,
    examples,
    model_with_statistics,
    softmax_model,
)
from tfscale._keras import keras
from tfscale.callbacks.evaluation import Evaluation
from tfscale.evaluation import evaluate


@pytest.mark.slow
def test_the_callback_leads_those_of_keras(tmp_path):
    with mirrored(1).scope():
        keras.utils.set_random_seed(4)
        layers = [keras.Input([FEATURES]), keras.layers.BatchNormalization()]
        model = keras.Sequential([*layers, keras.layers.Dense(CLASSES, "softmax")])
        model.compile(keras.optimizers.SGD(3.0), "sparse_categorical_crossentropy")
    x, y = examples(40)
    held_out = batches(*examples(21, seed=1))
    evaluation_ = Evaluation(held_out)
    best = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "{epoch}.h5"), "val_accuracy", save_best_only=True, save_weights_only=True
    )
    stop = keras.callbacks.EarlyStopping("val_accuracy", patience=3)
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1)
    history = model.fit(
        batches(x, y), epochs=12, verbose=0, callbacks=[evaluation_, best, stop, plateau]
    ).history
    epochs = len(history["val_loss"])
    assert epochs == len(history["loss"]) < 12
    assert stop.best == max(history["val_accuracy"]) and best.best == stop.best
    saved = {int(path.stem) for path in tmp_path.glob("*.h5")}
    peaks = np.maximum.accumulate(history["val_accuracy"])
    assert saved == {1, *(i + 1 for i in range(1, epochs) if peaks[i] > peaks[i - 1])}
    assert float(model.optimizer.learning_rate.numpy()) < 3
    found = evaluate(model, held_out)
    last = [history[name][-1] for name in ("val_loss", "val_accuracy", "val_top_5")]
    assert last == [found["loss"], found["top_1"], found["top_5"]]


def test_every_few_epochs_and_after_the_last():
    model = softmax_model(mirrored(1))
    seen = []
    log = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append("val_loss" in logs)
    )
    held_out = Evaluation(batches(*examples(8)), steps=1, every=2)
    model.fit(batches(*examples(8)), epochs=5, verbose=0, callbacks=[held_out, log])
    assert seen == [False, True, False, True, True]
    with pytest.raises(ValueError, match="every=0"):
        Evaluation(batches(*examples(8)), every=0)
    data = batches(*examples(8))
    for message, wrong in (  # before the first epoch
        ("no end", Evaluation(data.repeat())),
        ("use_ema=True", Evaluation(data, averaged=True)),
        ("steps=0", Evaluation(data, steps=0)),
        ("flip=True mirrors pictures", Evaluation(data, flip=True)),
        ("single examples", Evaluation(data.unbatch())),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(data, verbose=0, callbacks=[log, wrong])
    assert len(seen) == 5


@pytest.mark.slow
def test_evaluating_does_not_change_what_training_does():
    model = model_with_statistics(mirrored(2))
    start, weights = model.get_weights(), []
    for callbacks in ([], [Evaluation(batches(*examples(8, seed=1)))]):
        model.set_weights(start)
        model.fit(batches(*examples(32)), epochs=3, verbose=0, callbacks=callbacks)
        weights.append(model.get_weights())
    for plain, evaluated in zip(*weights, strict=True):
        np.testing.assert_allclose(evaluated, plain, rtol=1e-6, atol=1e-7)
