"""The search: trials begun, followed and told, one or several at a time, in one thread."""

import contextlib
import os
import signal
import time
from pathlib import Path

from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from tfscale.process_group.guard import Guard
from tfscale.process_group.signals import caught
from tfscale.tuning import owner as owners
from tfscale.tuning.gpus import divide_gpus
from tfscale.tuning.judging import RunningTrial, SearchError
from tfscale.tuning.program import Program
from tfscale.tuning.progress import Progress
from tfscale.tuning.ranges import flag_text
from tfscale.tuning.report import Report
from tfscale.tuning.run_fields import read_fields
from tfscale.tuning.settings import Settings
from tfscale.tuning.space import Space
from tfscale.tuning.store import FINISHED, Store
from tfscale.tuning.trial_process import TrialProcess

_TICK_SECONDS, _LOOK_AROUND_SECONDS = 0.05, 3.0


def search(space, program, flags=(), settings=None, *, fields=None, notify=print):
    """Searches hyperparameters of a training program; each trial is processes of its own.

    A trial is ``PROGRAM FLAGS --FIELD=VALUE ... --model_dir=HOME/trial-0007``, and is judged by the
    lines that `tfscale.callbacks.EpochLog` writes to ``epochs.jsonl`` there. The results
    (``results.json``, ``results.csv``, ``best.sh``) lie in ``HOME``, the search's `Settings.home`,
    after every trial. Called again with the same arguments it goes on where it was.

    Args:
        space: mapping of field to range, or a function of an Optuna trial that returns ``{field:
            value}``; see `Space`.
        program: sequence of `str`: ``["train.py"]`` or ``["-m", "package.module"]``.
        flags: sequence of `str`, flags of the program that all trials have.
        settings: a `Settings`. Defaults to ``Settings()``.
        fields: `dict` of field to annotation, for checks. Defaults to those of the dataclasses in
            the program's ``CONFIGS``, if it has such.
        notify: function of one line of text, for progress. Defaults to `print`.

    Returns:
        A `Report`: its `rows`, best first, and `best`.

    Raises:
        ValueError: the space, the program, the folder or the storage is not in order, or a search
            on another storage uses the folder; before any trial.
        SearchError: all of the first ``settings.give_up_after`` trials failed, or the metric is
            not among those that the program writes.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, when the trials have been stopped; they will
            be repeated.

    Example:
        report = tfscale.tuning.search(
            {"base_learning_rate": tfscale.tuning.log_uniform(4, 128)},
            ["experiments/train.py"],
            ["--config=quickstart", "--epochs=5", "--noexport"],
            tfscale.tuning.Settings(trials=8, folder="runs/tuning"))
        print(report.best["command"])
    """
    settings = settings or Settings()
    program = Program(program, flags, settings.workers, settings.devices_per_worker, settings.grace)
    if fields is None:
        fields = read_fields(program, program.environment(os.environ))
        if fields is None:
            notify(
                f"{program.words[-1]} has no CONFIGS: the names and ranges of the space cannot be "
                "checked before the first trial"
            )
    space = Space(space, fields, program.fixed_names())
    try:
        settings.home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"--folder={settings.folder}: {settings.home} cannot be made: {error.strerror}; give "
            "another"
        ) from None
    return _Search(space, program, settings, notify).run()


def record_of(space, program, settings):
    """What must be alike in all searches that share their trials, as `Store` takes it."""
    names = ("workers", "devices_per_worker", "metric", "direction", "score", "pruner", "sampler")
    return {
        "space": space.describe(),
        "program": list(program.words),
        "flags": list(program.flags),
        **{name: getattr(settings, name) for name in (*names, "seed")},
    }


class _Search:
    def __init__(self, space, program, settings, notify):
        self._space, self._program, self._settings = space, program, settings
        self._gpus = divide_gpus(os.environ, settings.parallel)
        self._store = Store(settings, record_of(space, program, settings))
        self._report = Report(self._store.study, program, settings)
        self._progress = Progress(settings, notify)
        self._running, self._ended, self._signals = [], 0, []

    def run(self):
        settings = self._settings
        self._progress.begin(self._space.describe(), self._store.trials())
        # A launcher must have time to end its workers before it is killed itself.
        with (
            caught() as self._signals,
            Guard(settings.grace + 5) as self._guard,
            owners.Owner(settings.home, self._store.id) as self._owner,
        ):
            try:
                self._loop()
            finally:
                self._abandon()
                self._report.write()
        if self._signals:
            raise KeyboardInterrupt(signal.Signals(self._signals[0]).name)
        return self._report

    def _loop(self):
        look_around = 0.0
        while not self._signals:
            if time.monotonic() >= look_around or not self._running:
                look_around = time.monotonic() + _LOOK_AROUND_SECONDS
                self._progress.lost(self._store.take_over(self._numbers()))
                self._begin_trials()
                if not self._running and not self._wait_for_others():
                    return
            for running in list(self._running):
                try:
                    self._follow(running)
                except UpdateFinishedTrialError:
                    self._lose(running)
                if running not in self._running:
                    look_around = 0.0
            self._store.beat_when_due(self._numbers())
            time.sleep(_TICK_SECONDS)

    def _numbers(self):
        return [running.number for running in self._running]

    def _begin_trials(self):
        while len(self._running) < self._settings.parallel and self._store.place_left():
            trial = self._store.ask(self._owner)
            try:
                self._running.append(self._begin(trial))
            except BaseException:
                self._store.tell(trial, TrialState.FAIL)
                raise

    def _begin(self, trial):
        settings, program = self._settings, self._program
        values = self._space.draw(trial)
        slot = min({*range(settings.parallel)} - {running.slot for running in self._running})
        folder = settings.home / f"trial-{trial.number:04d}"
        trial.set_user_attr("flags", {name: flag_text(value) for name, value in values.items()})
        trial.set_user_attr("folder", str(folder))
        process = TrialProcess(
            trial.number,
            program.command(values, folder),
            program.environment(os.environ, settings.parallel, self._gpus[slot]),
            folder,
            Path(self._owner.scratch) / f"trial-{trial.number}",
            self._guard,
            settings.grace,
            program.launched,
        )
        process.start()
        self._progress.began(trial)
        return RunningTrial(trial, process, settings, slot)

    def _follow(self, running):
        for epoch, score in running.follow():
            self._progress.epoch(running, epoch, score)
        if running.without and not running.scores:
            self._progress.not_yet(running)
        if running.process.ended:
            self._end(running)

    def _lose(self, running):
        """Drops a trial that another search has taken over, for this one was silent for long."""
        self._running.remove(running)
        running.process.close()
        self._progress.taken_over(running.number)

    def _end(self, running):
        state, value = running.end()
        if not self._store.tell(running.trial, state, value):
            self._lose(running)
            return
        self._running.remove(running)
        self._report.write()
        self._progress.ended(self._store.trials(), running.number)
        self._ended += 1
        first = self._settings.give_up_after
        if self._ended == first and not any(t.state in FINISHED for t in self._store.trials()):
            raise SearchError(
                f"all of the first {first} trials failed; see above why. Mend the program or the "
                "ranges and start again, with another --folder, or these count as trials"
            )

    def _wait_for_others(self):
        """Whether other searches still run trials, which may yet be lost and fall to this one."""
        others = self._store.running_elsewhere(self._numbers())
        for trial in others:
            self._progress.waiting(trial, owners.describe(trial.user_attrs.get("owner")))
        if others:
            time.sleep(0.5)
        return bool(others)

    def _abandon(self):
        """Stops the trials that still run; they will be repeated when the search goes on."""
        if not self._running:
            return
        self._progress.stopping(self._numbers(), self._signals)
        for running in self._running:
            running.process.stop()
        while any(not running.process.ended for running in self._running):
            for running in self._running:
                with contextlib.suppress(ValueError):
                    running.process.look()
                if len(self._signals) > 1:
                    running.process.hurry()
            time.sleep(_TICK_SECONDS)
        for running in self._running:
            running.process.close()
            # Without a failure of its own: so it counts as lost.
            self._store.tell(running.trial, TrialState.FAIL)
        self._running = []
        self._store.take_over([])
