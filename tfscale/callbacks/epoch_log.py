"""`EpochLog`: the scores of each epoch in a file that other programs can follow."""

from pathlib import Path

import numpy as np

from tfscale._keras import keras
from tfscale.callbacks.epoch_file import append, keep_epochs


class EpochLog(keras.callbacks.Callback):
    """Writes the logs of each epoch as one line of JSON, by worker 0 only.

        {"epoch": 2, "epochs": 15, "metrics": {"loss": 0.41, "val_accuracy": 0.93}}

    A hyperparameter search reads it while the run goes on (``python -m tfscale.tuning --help``).
    Put it after the callbacks that add to the logs. A resumed run removes the lines of the epochs
    that it does again. A value that is not finite is null.

    Args:
        path: of the file; its folder is made.
        epochs: int, how many the run will have, all its calls of `fit` together; those of the
            present `fit` by default.

    Example:
        model.fit(..., callbacks=[tfscale.callbacks.EpochLog("runs/a/epochs.jsonl")])
    """

    def __init__(self, path, epochs=None):
        super().__init__()
        self._path = Path(path)
        self._epochs = epochs

    def on_train_begin(self, logs=None):
        self._active = self.model.distribute_strategy.extended.should_checkpoint
        self._first = True

    def on_epoch_begin(self, epoch, logs=None):
        # Not in on_train_begin: where a resumed run starts is known only now.
        if self._active and self._first:
            self._first = False
            keep_epochs(self._path, epoch)

    def on_epoch_end(self, epoch, logs=None):
        if self._active:
            values = {name: np.asarray(value) for name, value in (logs or {}).items()}
            metrics = {name: float(v) for name, v in values.items() if v.ndim == 0}
            append(self._path, epoch + 1, self._epochs or self.params["epochs"], metrics)
