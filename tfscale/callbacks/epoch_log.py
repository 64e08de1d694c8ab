"""`EpochLog`: the scores of each epoch in a file that other programs can follow."""

from pathlib import Path

from tfscale._keras import keras
from tfscale.callbacks.epoch_file import append, keep_epochs
from tfscale.callbacks.progress import scalars


class EpochLog(keras.callbacks.Callback):
    """Writes the logs of each epoch as one line of JSON, by worker 0 only.

        {"epoch": 2, "epochs": 15, "metrics": {"loss": 0.41, "val_accuracy": 0.93}}

    A hyperparameter search reads it while the run goes on (``python -m tfscale.tuning --help``).
    Put it after the callbacks that add to the logs. A `fit` removes the lines of its epochs and of
    those after them, from a run before: a run of several calls gives each but the first its
    `initial_epoch`, or a search fails it, as it has judged the scores that are gone. A value that
    is not finite is null; one that is no number is left out.

    Args:
        path: of the file; its folder is made.
        epochs: int, how many the run will have, all its calls of `fit` together; those of the
            present `fit` by default.

    Raises:
        ValueError: in `fit`, before its first step, if the file has a line that is no epoch's.

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
            metrics = scalars(logs)
            append(self._path, epoch + 1, self._epochs or self.params["epochs"], metrics)
