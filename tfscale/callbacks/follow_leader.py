"""`FollowLeader`: all workers stop, and set the learning rate, as worker 0 does."""

import itertools
import logging

import tensorflow as tf

from tfscale._keras.training_state import StepCallback
from tfscale.distribute import _tf_private
from tfscale.distribute.agreement import check_timeout, gather_values

_logger = logging.getLogger("tfscale")
# Workers come out of a step at the same time, and what they do after it should be short.
_SECONDS_TO_MEET = 20
_fits = itertools.count(1)


class FollowLeader(StepCallback):
    """Makes the decisions of callbacks the same on all workers: those of worker 0.

    A callback that decides by what only its worker knows (a random number, a metric of its own,
    the clock) would stop one worker while the others wait for its gradients, or give the workers
    learning rates, and so weights, that drift apart. With this callback behind it:

    * at the beginning and the end of each epoch all workers take over the learning rate of
      worker 0, and at the end its decision to stop;
    * a stop within an epoch happens at once if all workers ask for it after the same step, and
      else (the one that asks waits some 20 s for the others, at most half the timeout) is put
      off to the end of the epoch, where that of worker 0 counts;
    * a worker that decided otherwise is named in a warning, on worker 0 and on itself.

    It takes two short messages an epoch and none in a step. What it does not mend: learning
    rates that differ in the middle of an epoch, and collectives that only some workers
    start, such as a ModelCheckpoint(save_best_only) that is led by a metric of each worker's own.
    Lead callbacks by numbers that are equal everywhere: those of `fit`, or of `Evaluation`.

    Put it last in the list, behind all that decide, and before `CheckpointAndResume`, which saves
    what was decided. All workers need it. With one worker it does nothing.

    Args:
        timeout_seconds: float, how long a worker waits for the others at the end of an epoch.

    Raises:
        ValueError: in the constructor, for a timeout not above 0; in `fit`, if a learning rate
            that differs is that of a schedule, which cannot be set.
        TimeoutError: in `fit`, if a worker did not come, for one that hangs or was not given
            this callback; names it.
        RuntimeError: in `fit`, if a worker has ended, for one whose callback raised; names it.

    Example:
        callbacks = [MyStop(), keras.callbacks.ReduceLROnPlateau("my_metric"),
                     tfscale.callbacks.FollowLeader()]
        model.fit(data, epochs=90, callbacks=callbacks)
    """

    def __init__(self, timeout_seconds=120):
        super().__init__()
        check_timeout(timeout_seconds)
        self._timeout = timeout_seconds

    def on_train_begin(self, logs=None):
        strategy = self.model.distribute_strategy
        self._names = _tf_private.worker_names(strategy)
        self._me = _tf_private.worker_index(strategy)
        self._epoch, self._put_off, self._fit = 0, False, next(_fits)

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._put_off = epoch, False
        if len(self._names) > 1:
            (rates,) = self._gather("the learning rate of an epoch", self._rate())
            self._follow_rate(rates)

    def on_train_batch_end(self, batch, logs=None):
        if len(self._names) == 1 or not self.model.stop_training:
            return
        place = f"a stop after step {batch + 1} of epoch {self._epoch + 1}"
        # A name of its own: a worker that has waited in vain counts one meeting more than the rest.
        meeting = f"{place} in fit {self._fit}"
        try:
            # Sooner than those give up who wait for this one at the end of the epoch.
            seconds = min(_SECONDS_TO_MEET, self._timeout / 2)
            gather_values(self.model.distribute_strategy, meeting, True, seconds)
        except TimeoutError:
            # The others wait for this worker in the next step, and would for ever.
            _logger.warning(
                "%s asks for %s and the others do not: it is put off to the end of the epoch, "
                "where worker 0 decides",
                self._names[self._me],
                place,
            )
            self._put_off, self.model.stop_training = True, False

    def on_epoch_end(self, epoch, logs=None):
        if len(self._names) == 1:
            return
        stop = bool(self.model.stop_training) or self._put_off
        stops, rates = self._gather("what the callbacks decided", stop, self._rate())
        for worker in self._differing(stops):
            _logger.warning(
                "%s would %s after epoch %d, and %s would not: all do as the latter. Let the "
                "callbacks decide by a number that is equal on all workers, such as those of "
                "tfscale.callbacks.Evaluation",
                self._names[worker],
                "stop" if stops[worker] else "go on",
                epoch + 1,
                self._names[0],
            )
        self.model.stop_training = stops[0]
        self._follow_rate(rates)

    def _gather(self, what, *values):
        """Each of `values` as a list with that of every worker."""
        strategy = self.model.distribute_strategy
        return zip(*gather_values(strategy, what, values, self._timeout), strict=True)

    def _rate(self):
        return float(tf.convert_to_tensor(self.model.optimizer.learning_rate))

    def _differing(self, values):
        """The workers whose value is not worker 0's, as far as this worker has to know of them."""
        others = [i for i, value in enumerate(values) if value != values[0]]
        return others if self._me == 0 else [i for i in others if i == self._me]

    def _follow_rate(self, rates):
        for worker in self._differing(rates):
            _logger.warning(
                "%s has the learning rate %g in epoch %d, and %s has %g, which all take over. Let "
                "the callbacks decide by a number that is equal on all workers, such as those of "
                "tfscale.callbacks.Evaluation",
                self._names[worker],
                rates[worker],
                self._epoch + 1,
                self._names[0],
                rates[0],
            )
        if rates[self._me] == rates[0]:
            return
        try:
            self.model.optimizer.learning_rate = rates[0]
        except TypeError as error:
            raise ValueError(
                f"the learning rate is {rates[self._me]:g} on {self._names[self._me]} and "
                f"{rates[0]:g} on {self._names[0]}, and comes from a schedule: every worker has to "
                "make the optimizer with the same one"
            ) from error
