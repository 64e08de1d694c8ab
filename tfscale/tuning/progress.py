"""What a search shows while it runs: lines that also make sense in a log file."""

import signal

from optuna.trial import TrialState

from tfscale.tuning.storage import shown
from tfscale.tuning.store import FINISHED, counts


class Progress:
    """Says how a search gets on.

        trial 7  base_learning_rate=12.31 momentum=0.912
        trial 7  epoch 2/5  val_accuracy 0.8512
        trial 7  0.9107 after 5 epochs in 41 s: the best so far  [8 of 20, 11 min left]

    Args:
        settings: a `Settings`.
        notify: function of one line of text.
    """

    def __init__(self, settings, notify):
        self._settings, self._notify = settings, notify
        self._mentioned = set()

    def begin(self, space, trials):
        settings = self._settings
        each = f"each {settings.workers} worker{'s' if settings.workers > 1 else ''}"
        if settings.devices_per_worker:
            each += f" x {settings.devices_per_worker}"
        self._notify(
            f"search {settings.name!r} in {settings.home}: {settings.trials} trials, "
            f"{settings.parallel} at a time, {each}; {settings.direction} {settings.metric}; "
            f"storage {shown(settings)}"
        )
        self._notify(f"space: {_pairs(space)}")
        done = sum(trial.state.is_finished() and counts(trial) for trial in trials)
        if done:
            self._notify(f"going on: {done} trials are done{self._best(trials)}")

    def began(self, trial):
        repeats = trial.user_attrs.get("repeats")
        again = "" if repeats is None else f"  (trial {repeats} once more)"
        self._notify(f"trial {trial.number}  {_pairs(trial.user_attrs['flags'])}{again}")

    def epoch(self, running, epoch, score):
        first = self._settings.prune_from  # 1 by default, also where runs have a single epoch
        asked = first > 1 and self._settings.pruner != "none"
        if asked and running.epochs <= first and "too late" not in self._mentioned:
            self._mentioned.add("too late")
            self._notify(
                f"--prune_from={first} stops no trial of {running.epochs} epochs: name an earlier "
                "epoch, or --pruner=none"
            )
        self._notify(
            f"trial {running.number}  epoch {epoch}/{running.epochs}  {self._settings.metric} "
            f"{score:.4g}"
        )

    def not_yet(self, running):
        """Once in a search: the first epochs may have no validation, and a program none at all."""
        if "not yet" not in self._mentioned:
            self._mentioned.add("not yet")
            self._notify(
                f"trial {running.number}  epoch {running.without[0]} has no "
                f"{self._settings.metric!r}, nor any other val_ metric; if none comes, the search "
                "ends with this trial"
            )

    def ended(self, trials, number):
        trial = next(trial for trial in trials if trial.number == number)
        seconds = duration(trial.user_attrs["seconds"])
        if trial.state == TrialState.COMPLETE:
            last, epochs = trial.user_attrs["last_epoch"], trial.user_attrs["epochs"]
            early = f" of {epochs}" if last < epochs else ""
            text = f"{trial.value:.4g}{', ended by itself' if early else ''} after {last}{early} "
            text += f"epoch{'s' if max(last, epochs) > 1 else ''} in {seconds}"
        elif trial.state == TrialState.PRUNED:
            text = f"pruned at epoch {trial.last_step} with {trial.value:.4g}, in {seconds}"
        else:
            failure = trial.user_attrs["failure"]
            text = f"failed after {seconds}: {failure['reason']}; its output: {failure['log']}"
        best = best_of(trials, self._settings.maximize)
        if best is not None and best.number == number:
            text += ": the best so far"
        else:
            text += self._best(trials)
        self._notify(f"trial {number}  {text}  [{self._place(trials)}]")
        if trial.state == TrialState.FAIL:
            for line in trial.user_attrs["failure"]["last_lines"][-5:]:
                self._notify(f"  | {line}")

    def lost(self, trials):
        for trial in trials:
            self._notify(f"trial {trial.number}  was lost with its search and will be repeated")

    def taken_over(self, number):
        self._notify(
            f"trial {number}  is dropped: this search was silent for so long that another one has "
            "taken it over"
        )

    def waiting(self, trial, owner):
        if trial.number not in self._mentioned:
            self._mentioned.add(trial.number)
            self._notify(f"waiting for trial {trial.number} of {owner}")

    def stopping(self, numbers, signals):
        name = f"{signal.Signals(signals[0]).name}: " if signals else ""
        self._notify(
            f"{name}stopping trial {', '.join(map(str, numbers))}, which will be repeated when the "
            f"search goes on; {self._settings.grace:g} s to end, once more kills at once"
        )

    def _best(self, trials):
        best = best_of(trials, self._settings.maximize)
        return "" if best is None else f"; best so far {best.value:.4g}, trial {best.number}"

    def _place(self, trials):
        done = [trial for trial in trials if trial.state.is_finished() and counts(trial)]
        place = f"{len(done)} of {self._settings.trials}"
        left = self._settings.trials - len(done)
        times = [t.user_attrs["seconds"] for t in done if t.state in FINISHED]
        if left > 0 and times:
            # Trials of other searches run meanwhile, too.
            at_a_time = max(1, sum(trial.state == TrialState.RUNNING for trial in trials) + 1)
            at_a_time = min(left, max(at_a_time, self._settings.parallel))
            place += f", {duration(left * sum(times) / len(times) / at_a_time)} left"
        return place


def best_of(trials, maximize):
    """The best complete trial, the first of equals; None if there is none."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    sign = -1 if maximize else 1
    return min(complete, key=lambda trial: (sign * trial.value, trial.number), default=None)


def duration(seconds):
    """Seconds for people.

    >>> duration(75)
    '1 min 15 s'
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


def short(text):
    """A flag's text with the digits that people need.

    >>> short("12.345678"), short("16384"), short("lars")
    ('12.35', '16384', 'lars')
    """
    try:
        return text if text.lstrip("-").isdecimal() else f"{float(text):.4g}"
    except ValueError:
        return text


def _pairs(texts):
    return "  ".join(f"{name}={short(text)}" for name, text in texts.items())
