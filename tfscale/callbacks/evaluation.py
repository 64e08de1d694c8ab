"""`Evaluation`: the exact validation of an epoch, the same number on every worker."""

from tfscale._keras.training_state import StepCallback
from tfscale.evaluation import evaluate, prepared


class Evaluation(StepCallback):
    """Puts the exact loss and accuracy over a data set into the logs of an epoch.

        val_loss, val_accuracy (= top 1), val_top_5      see `tfscale.evaluation.evaluate`

    Where there are no more than 5 classes, `val_top_5` is 1.

    Put it first in the list, and give `fit` no `validation_data`: the callbacks behind it, and
    the history, see the numbers as those of any validation. They are equal on all workers to the
    bit, so EarlyStopping, ReduceLROnPlateau and ModelCheckpoint(save_best_only) decide alike
    on all of them.

    Moving statistics that the replicas have of their own are averaged before, as a save does,
    and training goes on from that. Which weights are evaluated does not change which are saved:
    with `averaged`, ModelCheckpoint still saves those of training (`fit` itself puts the
    averages in their place when it ends).

    Args:
        dataset: `tf.data.Dataset` of global batches, or one that the model's strategy has
            distributed; (x, y) or (x, y, weight of 1 or 0).
        steps: `int`, global batches to read; None for all.
        every: `int`, after how many epochs each; the last of the epochs that `fit` was given is
            evaluated in any case. The one after which a callback stops is not: nothing knows of
            it yet.
        averaged: `bool`, evaluate the moving average of the weights (``use_ema=True``).
        flip: `bool`, take the mean of the probabilities of a picture and of its mirror image.

    Raises:
        ValueError: in the constructor, for `every` below 1; in `fit`, see `evaluate`.

    Example:
        evaluation = tfscale.callbacks.Evaluation(eval_data, steps=held_out.steps_per_epoch)
        stop = keras.callbacks.EarlyStopping("val_accuracy", patience=3)
        model.fit(data, epochs=90, callbacks=[evaluation, stop])
    """

    def __init__(self, dataset, steps=None, every=1, averaged=False, flip=False):
        super().__init__()
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every={every!r}: a number of epochs of at least 1")
        self._dataset, self._steps, self._every = dataset, steps, every
        self._options = {"averaged": averaged, "flip": flip}

    def on_train_begin(self, logs=None):
        # Here and not at the end of an epoch, when what is wrong with it has cost an epoch.
        self._data = prepared(self.model, self._dataset, self._steps, **self._options)

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self._every and epoch + 1 != self.params.get("epochs"):
            return
        found = evaluate(self.model, self._data, self._steps, **self._options)
        if logs is not None:
            logs["val_loss"] = found["loss"]
            logs["val_accuracy"] = found["top_1"]
            logs["val_top_5"] = found["top_5"]
