"""The two training loops: Keras's `fit`, and `official.core`'s `Trainer` under orbit."""

import contextlib
import os
import time

import orbit
from official.core import base_trainer, config_definitions

from tfscale import keras


class Curve:
    """What a run has reached after each part of its steps, and how fast it ran.

    Attributes:
        accuracies: `list` of `float`, one a part.
        seconds: `list` of `float`, of the steps of each part alone.
    """

    def __init__(self, score):
        self._score = score
        self.accuracies, self.seconds = [], []
        self.begin()

    def begin(self):
        self._start = time.monotonic()

    def end(self):
        self.seconds.append(time.monotonic() - self._start)
        self.accuracies.append(self._score())

    def images_per_second(self, images_per_part):
        """Without the first part, in which graphs are traced; None where there is no other."""
        rest = self.seconds[1:]
        return len(rest) * images_per_part / sum(rest) if rest else None


class _Parts(keras.callbacks.Callback):
    def __init__(self, curve):
        super().__init__()
        self._curve = curve

    def on_epoch_begin(self, epoch, logs=None):
        self._curve.begin()

    def on_epoch_end(self, epoch, logs=None):
        self._curve.end()


def fit(model, optimizer, loss, task, dataset, strategy, settings, curve):
    """Trains by `model.fit`, a part of the steps as an epoch."""
    with strategy.scope():
        model.compile(optimizer, loss)
    model.fit(
        dataset,
        epochs=settings.evaluations,
        steps_per_epoch=settings.steps // settings.evaluations,
        verbose=0,
        callbacks=[_Parts(curve)],
    )


def orbit_loop(model, optimizer, loss, task, dataset, strategy, settings, curve):
    """Trains by their task's `train_step`, in their `Trainer`, under orbit's `Controller`."""
    config = config_definitions.ExperimentConfig(task=task.task_config)
    with strategy.scope():
        trainer = base_trainer.Trainer(
            config, task, model, optimizer, train=True, evaluate=False, train_dataset=dataset
        )
        # For `tfscale.evaluation` alone. Before the trainer is made, it would take the loss that
        # Keras keeps count of for a metric of the outputs.
        model.compile(loss=loss)
    part = settings.steps // settings.evaluations
    controller = orbit.Controller(
        strategy=strategy, trainer=trainer, global_step=trainer.global_step, steps_per_loop=part
    )
    for number in range(1, settings.evaluations + 1):
        curve.begin()
        # It prints two lines for each part, between those of our progress.
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
            controller.train(steps=number * part)
        curve.end()


LOOPS = {"tfscale": fit, "official": orbit_loop}
