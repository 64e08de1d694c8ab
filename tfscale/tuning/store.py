"""The trials of a search in Optuna's storage: drawn, told, and repeated when they were lost.

Several searches, on one machine or many, may use one storage at a time.
"""

import json
import time
import uuid
import warnings

import numpy as np
import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from tfscale.tuning import owner as owners
from tfscale.tuning.settings import HEARTBEAT_SECONDS, SILENCE_SECONDS
from tfscale.tuning.storage import alone, open_storage, shown

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
# How often a trial is repeated whose search died: it may be what kills them.
_MOST_REPEATS = 3


class Store:
    """The study of a search.

    Args:
        settings: a `Settings`.
        record: `dict` for JSON of what must be alike in all searches on one study.

    Attributes:
        study: the `optuna.Study`.
        id: `str` that no other study has.

    Raises:
        ValueError: the storage cannot be opened, or its study has another record, or none as no
            search made it; names the difference. Or the folder has results of trials that are
            not in the storage.

    Example:

    >>> store = Store(Settings(folder="runs/a"), {"space": {"momentum": "0.8:0.95"}})
    >>> store.place_left()
    True
    """

    def __init__(self, settings, record):
        self._settings = settings
        self._heard = time.monotonic()
        self._nameless = {}
        with alone(settings):
            self._storage = open_storage(settings)
            self.study = self._open()
            before = self.study.user_attrs.get("record")
            if before is None:
                self._refuse_foreign()
                _refuse_lost(settings)
            elif before != record:
                if any(trial.state in (*FINISHED, TrialState.RUNNING) for trial in self.trials()):
                    raise ValueError(_difference(settings, before, record))
                # A first try with a mistake in it: nothing is lost.
                optuna.delete_study(study_name=settings.name, storage=self._storage)
                self.study = self._open()
            self.study.set_user_attr("record", record)
            if "id" not in self.study.user_attrs:
                self.study.set_user_attr("id", uuid.uuid4().hex)
            self.id = self.study.user_attrs["id"]
        self._study_id = self._storage.get_study_id_from_name(settings.name)

    def trials(self):
        """All trials, as Optuna's frozen ones."""
        return self.study.get_trials(deepcopy=False)

    def place_left(self):
        """Whether a trial waits to be repeated, or there are fewer than wanted."""
        trials = self.trials()
        waiting = any(trial.state == TrialState.WAITING for trial in trials)
        return waiting or sum(map(counts, trials)) < self._settings.trials

    def ask(self, owner):
        """Begins a trial, whose values are still to be drawn.

        What is drawn depends on the seed, on how many were drawn before, and on the trials that
        have finished: a search that was killed and resumed draws what it would have drawn.
        """
        with warnings.catch_warnings():
            # The heartbeat is ours to send, as there is no Study.optimize.
            warnings.simplefilter("ignore")
            trial = self.study.ask()
        trial.set_user_attr("owner", owner.card)
        self.beat([trial.number])
        drawn = trial.user_attrs.get("drawn")
        if drawn is None:
            drawn = sum(
                earlier.number < trial.number and "repeats" not in earlier.user_attrs
                for earlier in self.trials()
            )
            trial.set_user_attr("drawn", drawn)
        self.study.sampler = _sampler(self._settings, drawn)
        return trial

    def tell(self, trial, state, value=None):
        """Ends a trial; returns whether it was still this search's.

        One that was silent for long, such as on a laptop that slept, may have lost it to another.
        """
        try:
            self.study.tell(trial, value, state=state)
        except (ValueError, UpdateFinishedTrialError):
            return False
        return True

    def beat(self, numbers):
        """Says of running trials that this search lives."""
        for number in numbers:
            self._storage.record_heartbeat(
                self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)
            )
        self._heard = time.monotonic()

    def beat_when_due(self, numbers):
        if time.monotonic() - self._heard >= HEARTBEAT_SECONDS:
            self.beat(numbers)

    def take_over(self, mine):
        """Fails the trials of searches that have died, and queues all lost ones once more.

        Args:
            mine: numbers of the trials that this search runs.

        Returns:
            `list` of the lost trials that were queued.
        """
        self.beat(mine)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna calls it experimental.
            optuna.storages.fail_stale_trials(self.study)
        by_owner = {}
        for trial in self.running_elsewhere(mine):
            card = trial.user_attrs.get("owner")
            if card is None:
                self._fail_nameless(trial)
            else:
                by_owner.setdefault(card["lock"], (card, []))[1].append(trial.number)
        for card, numbers in by_owner.values():
            with owners.found_dead(card) as dead:
                for number in numbers if dead else ():
                    self.tell(number, TrialState.FAIL)
        # Not two searches the same one; on several machines both may, which costs a trial.
        with alone(self._settings):
            return self._queue_lost()

    def running_elsewhere(self, mine):
        """The trials that other searches run, or ran when they died."""
        running = (trial for trial in self.trials() if trial.state == TrialState.RUNNING)
        return [trial for trial in running if trial.number not in mine]

    def _fail_nameless(self, trial):
        """One whose search died, if it did, before it could say who it was."""
        seen = self._nameless.setdefault(trial.number, time.monotonic())
        if time.monotonic() - seen > SILENCE_SECONDS:
            self.tell(trial.number, TrialState.FAIL)

    def _queue_lost(self):
        trials = self.trials()
        queued = {trial.user_attrs.get("repeats") for trial in trials}
        lost = [trial for trial in trials if is_lost(trial) and trial.number not in queued]
        for trial in lost:
            attributes = {"repeats": trial.number, "times": trial.user_attrs.get("times", 0) + 1}
            if "drawn" in trial.user_attrs:
                attributes["drawn"] = trial.user_attrs["drawn"]
            self.study.enqueue_trial(trial.params, user_attrs=attributes)
        return lost

    def _refuse_foreign(self):
        directions = [direction.name.lower() for direction in self.study.directions]
        if directions != [self._settings.direction] or self.trials():
            raise ValueError(
                f"the storage {shown(self._settings)} has a study {self._settings.name!r} that "
                f"no search of tfscale made (its direction: {', '.join(directions)}; its trials: "
                f"{len(self.trials())}); give another --name or --storage"
            )

    def _open(self):
        return optuna.create_study(
            storage=self._storage,
            study_name=self._settings.name,
            direction=self._settings.direction,
            pruner=_pruner(self._settings),
            load_if_exists=True,
        )


def is_lost(trial):
    """Whether a trial ended with its search, not by itself, and is to be repeated."""
    failed = trial.state == TrialState.FAIL and "failure" not in trial.user_attrs
    return failed and trial.user_attrs.get("times", 0) < _MOST_REPEATS


def counts(trial):
    """Whether a trial is one of those wanted: not one that is repeated under another number."""
    return not is_lost(trial)


def _refuse_lost(settings):
    """A storage that was removed or emptied must not cost the results that it had."""
    file = settings.home / "results.json"
    if not file.exists():
        return
    try:
        states = [row["state"] for row in json.loads(file.read_bytes())["trials"]]
    except (ValueError, KeyError, TypeError):
        states = ["complete"]  # It is somebody's.
    if "complete" in states or "pruned" in states:
        raise ValueError(
            f"{file} has results that are not in the storage {shown(settings)}, which is new or "
            "was emptied: put that back to go on with the search; or give another --folder, or "
            "move the results away, for a new one"
        )


def _pruner(settings):
    if settings.pruner == "none":
        return optuna.pruners.NopPruner()
    if settings.pruner == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=settings.prune_from)
    return optuna.pruners.MedianPruner(settings.prune_after, settings.prune_from)


def _sampler(settings, drawn):
    seed = int(np.random.SeedSequence([settings.seed, drawn]).generate_state(1)[0])
    kind = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    return kind[settings.sampler](seed=seed)


def _difference(settings, before, record):
    changed = [name for name in {**before, **record} if before.get(name) != record.get(name)]
    texts = "; ".join(f"{n} was {before.get(n)!r}, is {record.get(n)!r}" for n in changed)
    return (
        f"{settings.folder} holds a search {settings.name!r} with other settings: {texts}. Give "
        "the same to go on with it, or another --folder or --name for a new one"
    )
