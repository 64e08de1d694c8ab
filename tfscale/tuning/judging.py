"""A running trial: its scores epoch by epoch, and its verdict."""

import math
import time

from optuna.trial import TrialState


class SearchError(RuntimeError):
    """The search cannot go on: all of its first trials failed, or the metric is not there."""


class RunningTrial:
    """An Optuna trial and the processes that run it.

    Args:
        trial: the `optuna.Trial`.
        process: its `TrialProcess`, started.
        settings: a `Settings`.
        slot: `int`, its share of the machine.

    Attributes:
        scores: `dict` of epoch, from 1, to the metric.
        epochs: `int`, how many the run will have; None before it says so.
        without: `list` of the epochs that were not evaluated.
    """

    def __init__(self, trial, process, settings, slot):
        self.trial, self.process, self.slot = trial, process, slot
        self.scores, self.epochs, self.without = {}, None, []
        self._settings = settings
        self._started = time.monotonic()
        self._failure, self._pruned = None, False

    @property
    def number(self):
        return self.trial.number

    def follow(self):
        """Takes what the processes say; stops a trial that is poor, lost or too long.

        Returns:
            `list` of the new ``(epoch, score)``.

        Raises:
            SearchError: the run does not write the metric.
        """
        new = []
        try:
            while lines := self.process.look():  # Once more: a bad line comes after good ones.
                for epoch, epochs, metrics in lines:
                    if self._take(epoch, epochs, metrics):
                        new.append((epoch, self.scores[epoch]))
        except ValueError as error:
            self._fail(str(error))
        limit = self._settings.trial_timeout
        if limit and not self.process.ended and time.monotonic() - self._started > limit:
            self._fail(f"not done after {limit:g} s (--trial_timeout)")
        return new

    def end(self):
        """Ends what is left of the processes, and writes down what is known.

        Returns:
            ``(state, value)`` as Optuna is told.
        """
        self.process.close()
        self.trial.set_user_attr("seconds", round(time.monotonic() - self._started, 2))
        self.trial.set_user_attr("epochs", self.epochs)
        self.trial.set_user_attr("last_epoch", max([*self.scores, *self.without], default=0))
        if self._pruned:
            return TrialState.PRUNED, None
        failure = self._failure or self._own_failure()
        if failure is None:
            return TrialState.COMPLETE, self._value()
        self.trial.set_user_attr(
            "failure",
            {
                "reason": failure,
                "log": str(self.process.log),
                "last_lines": self.process.last_lines,
            },
        )
        return TrialState.FAIL, None

    def _take(self, epoch, epochs, metrics):
        if self._pruned:
            return False  # How far it still gets is chance, by which the sampler must not draw.
        metric, self.epochs = self._settings.metric, epochs
        if metric not in metrics:
            if self._may_yet_come(epoch, metrics):
                if epoch not in self.without:
                    self.without.append(epoch)
                return False
            raise SearchError(
                f"the program writes no metric {metric!r} for its epochs; "
                + (f"--metric is one of {', '.join(metrics)}" if metrics else "it writes none")
            )
        score = metrics[metric]
        if not math.isfinite(score):
            self._fail(f"{metric} is not finite at epoch {epoch}")
            return False
        if epoch in self.scores:
            # A run that resumed by itself does some again, on a GPU not to the bit: the scores by
            # which it was judged stay. One that has begun anew is another run.
            if epoch == min(self.scores) and score != self.scores[epoch]:
                self._fail(
                    f"it wrote epoch {epoch} again with {metric} {score:.4g}, after "
                    f"{self.scores[epoch]:.4g} by which it was judged; give each fit but the first "
                    "its initial_epoch"
                )
            return False
        self.scores[epoch] = score
        self.trial.report(score, epoch)
        # After the last epoch nothing is left to be saved.
        judged = self.process.stopping or self._failure is not None
        if not judged and epoch < epochs and self.trial.should_prune():
            self._pruned = True
            self.process.stop()
        return True

    def _may_yet_come(self, epoch, metrics):
        """Whether this epoch was only not evaluated, as with ``validation_freq=2``."""
        is_evaluated = any(name.startswith("val_") for name in metrics)
        waits = self._settings.metric.startswith("val_") and metrics and not is_evaluated
        return waits and (epoch < self.epochs or self.scores)

    def _fail(self, reason):
        if self.process.stopping or self._failure is not None:
            return
        self._failure = reason
        if not self.process.ended:
            self.process.stop()

    def _own_failure(self):
        if self.process.exit_code:
            return self.process.explain()
        if self.without and not self.scores:
            return f"it ended after {len(self.without)} epochs without {self._settings.metric!r}"
        if not self.scores:
            return (
                "it ended without an epoch in epochs.jsonl of its --model_dir, where "
                "tfscale.callbacks.EpochLog writes them"
            )
        return None

    def _value(self):
        if self._settings.score == "last":
            return self.scores[max(self.scores)]
        return (max if self._settings.maximize else min)(self.scores.values())
