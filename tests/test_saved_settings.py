"""Which settings of an optimizer hold after a restore, and what is said of them."""

import pytest
import tensorflow as tf

from tfscale import keras
from tfscale.callbacks.saved_settings import OptimizerSettings


def restored(make, before, after, caplog, tmp_path):
    """An optimizer made with `after` that has read a checkpoint of one with `before`; the log."""
    saved, optimizer = make(**before), make(**after)
    for each in saved, optimizer:
        each.apply_gradients([(tf.constant(1.0), tf.Variable(1.0, name="w"))])
    path = tf.train.Checkpoint(optimizer=saved).write(str(tmp_path / "saved"))
    then, now = OptimizerSettings(saved), OptimizerSettings(optimizer)
    now.check(then.values, path)
    now.restore(lambda: tf.train.Checkpoint(optimizer=optimizer).read(path), then.values)
    return optimizer, caplog.text


@pytest.mark.parametrize("make", [keras.optimizers.SGD, keras.optimizers.legacy.SGD])
def test_what_the_program_changed_holds(make, caplog, tmp_path):
    before = {"learning_rate": 0.1, "momentum": 0.9, "clipnorm": 1.0}
    after = {"learning_rate": 0.1, "momentum": 0.5}
    optimizer, said = restored(make, before, after, caplog, tmp_path)
    assert float(optimizer.momentum) == 0.5
    assert "from here on momentum=0.5 (was 0.9), clipnorm=None (was 1)" in said


def test_a_setting_of_the_loss_scale_is_named(caplog, tmp_path):
    def make(growth):
        inner = keras.optimizers.SGD(0.1)
        return keras.mixed_precision.LossScaleOptimizer(inner, dynamic_growth_steps=growth)

    _, said = restored(make, {"growth": 5}, {"growth": 7}, caplog, tmp_path)
    assert "dynamic_growth_steps=7 (was 5)" in said


def test_a_schedule_that_does_not_tell_its_settings_is_left_alone(caplog, tmp_path):
    class Own(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1

    def make():
        return keras.optimizers.SGD(Own())

    optimizer, said = restored(make, {}, {}, caplog, tmp_path)
    assert said == "" and OptimizerSettings(optimizer).values == {}
