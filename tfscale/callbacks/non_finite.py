"""`StopOnNonFinite`: a run whose weights became NaN or infinite ends with an error."""

import logging

import numpy as np
import tensorflow as tf

from tfscale._keras.training_state import StepCallback

_logger = logging.getLogger("tfscale")


class StopOnNonFinite(StepCallback):
    """Ends a run whose weights are NaN or infinite; it would never recover.

        loss not finite, all weights finite      a warning: one bad batch, or float16's range
        weights not finite                       RuntimeError

    Looked at are the mean loss of the epoch so far and, if that is not finite and at the end of
    each epoch, the trainable variables. These are the same on all workers, so that all end or none.
    `CheckpointAndResume` looks at them as well, so that no checkpoint holds such weights.

    Args:
        every_steps: int, how often to look, besides the end of each epoch. Looking waits for
            the device.

    Raises:
        ValueError: in the constructor, for `every_steps` below 1.
        RuntimeError: in `fit`: names the epoch, the step, the loss and the variables.

    Example:
        model.fit(dataset, epochs=5, callbacks=[tfscale.callbacks.StopOnNonFinite()])
    """

    def __init__(self, every_steps=100):
        super().__init__()
        if isinstance(every_steps, bool) or not isinstance(every_steps, int) or every_steps < 1:
            raise ValueError(f"every_steps={every_steps!r}: a whole number of at least 1")
        self._every = every_steps
        self._epoch = self._looked_at = self._step = 0
        self._warned = None

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._looked_at, self._step = epoch, 0, 0

    def on_train_batch_end(self, batch, logs=None):
        self._step = batch + 1
        if self._step // self._every > self._looked_at // self._every:
            self._look(logs)

    def on_epoch_end(self, epoch, logs=None):
        # The last step may have spoilt the weights after a loss that was still a number.
        self._look(logs, weights=True)

    def _look(self, logs, weights=False):
        self._looked_at = self._step
        loss = (logs or {}).get("loss")
        is_sound = loss is None or np.all(np.isfinite(np.asarray(loss)))
        if is_sound and not weights:
            return
        place = f"epoch {self._epoch + 1}, step {self._step}"
        lost = lost_weights(self.model)
        if lost:
            shown = "" if loss is None else f"the loss is {float(np.mean(loss))} at {place}, and "
            raise RuntimeError(
                f"{shown}{lost}: the training has diverged. Lower the learning rate, lengthen the "
                "warm-up, or look for bad values in the data; then start from the last sound "
                "checkpoint or anew."
            )
        if not is_sound and self._warned != self._epoch:
            self._warned = self._epoch
            _logger.warning(
                "the mean loss of this epoch is %s at %s, but the weights are finite: some batch "
                "gave a loss that is not",
                float(np.mean(loss)),
                place,
            )


def lost_weights(model):
    """Says how many trainable variables hold NaN or infinite values; None if all are sound."""
    variables = model.trainable_variables
    lost = [v.name for v in variables if not bool(tf.reduce_all(tf.math.is_finite(v)))]
    if not lost:
        return None
    return (
        f"{len(lost)} of {len(variables)} trainable variables hold NaN or infinite values, first "
        f"{lost[0]}"
    )
