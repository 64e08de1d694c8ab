"""A run that has diverged ends with an error and leaves no checkpoint of it."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from tfscale._keras import keras
from tfscale.callbacks.checkpoint import CheckpointAndResume
from tfscale.callbacks.non_finite import StopOnNonFinite

STEPS = 4


class Spoil(keras.callbacks.Callback):
    def __init__(self, after):
        super().__init__()
        self.after = after

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.after:
            weight = self.model.trainable_variables[0]
            weight.assign(weight * np.nan)


def fit(callbacks, rate, epochs=2, bad_batch=None, learn=True):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1, name="head")])
    model.get_layer("head").trainable = learn
    model.compile(keras.optimizers.SGD(rate), "mse")
    x = np.ones([8 * STEPS, 4], np.float32)
    y = np.ones([8 * STEPS, 1], np.float32)
    if bad_batch is not None:
        y[8 * bad_batch] = np.inf
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).repeat()
    return model.fit(data, epochs=epochs, steps_per_epoch=STEPS, verbose=0, callbacks=callbacks)


def test_a_diverged_run_is_named_and_not_saved(tmp_path):
    resume = CheckpointAndResume(tmp_path)
    with pytest.raises(RuntimeError, match=r"epoch 1, step 4, .* head/.* Lower the learning rate"):
        fit([StopOnNonFinite(), resume], rate=1e30)
    assert not list(tmp_path.glob("step-*"))


def test_a_diverged_run_does_not_push_its_sound_checkpoints_out(tmp_path):
    resume = CheckpointAndResume(tmp_path, save_every=1, keep=2)
    with pytest.raises(RuntimeError, match="not saved at epoch 1, step 3: 1 of 2 .*step-00000002"):
        fit([StopOnNonFinite(), Spoil(after=2), resume], rate=0.01)
    assert resume._files.steps() == [1, 2]


def test_weights_lost_after_a_sound_loss_are_found_at_the_end_of_the_epoch(tmp_path):
    with pytest.raises(RuntimeError, match=r"the loss is [\d.]+ at epoch 1, step 4, and 1 of 2"):
        fit([Spoil(after=STEPS - 1), StopOnNonFinite(), CheckpointAndResume(tmp_path)], rate=0.01)
    assert not list(tmp_path.glob("step-*"))


def test_it_looks_in_mid_epoch_too():
    with pytest.raises(RuntimeError, match="epoch 1, step 2,"):
        fit([StopOnNonFinite(every_steps=2)], rate=1e30)


def test_one_bad_loss_is_a_warning_while_the_weights_are_sound(caplog):
    with caplog.at_level(logging.WARNING, "tfscale"):
        history = fit([StopOnNonFinite(every_steps=1)], rate=0.01, bad_batch=1, learn=False)
    assert not np.isfinite(history.history["loss"]).any()
    said = [r.message for r in caplog.records if "the weights are finite" in r.message]
    assert len(said) == 2 and "epoch 1, step 2" in said[0]


def test_a_sound_run_is_left_alone():
    assert len(fit([StopOnNonFinite(every_steps=1)], rate=0.01).history["loss"]) == 2


@pytest.mark.parametrize("every_steps", [0, -1, 1.5, True, None])
def test_every_steps_is_checked(every_steps):
    with pytest.raises(ValueError, match="every_steps="):
        StopOnNonFinite(every_steps)
