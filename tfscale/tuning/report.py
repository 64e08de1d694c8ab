"""What a search has found: rows, a table, files, and the best run as a ready command."""

import csv
import dataclasses
import io
import json
import os
import shlex
import socket
import sys
from pathlib import Path

import optuna
from optuna.trial import TrialState

from tfscale.tuning.program import Program
from tfscale.tuning.progress import best_of, duration, short
from tfscale.tuning.storage import open_storage, storage_file
from tfscale.tuning.store import counts

_ORDER = {"complete": 0, "pruned": 1, "running": 2, "waiting": 3, "failed": 4}
_STATES = {TrialState.FAIL: "failed"}


class Report:
    """The results of a search as they are now.

    Args:
        study: the `optuna.Study`.
        program: the `Program`.
        settings: the `Settings`.

    Example:

    >>> report.best["command"]
    'python train.py --momentum=0.91 --model_dir=runs/tuning/best-0007'
    """

    def __init__(self, study, program, settings):
        self.study = study
        self._program, self._settings = program, settings

    @property
    def rows(self):
        """One `dict` for each trial, best first: number, state, value, flags, epochs, ..."""
        trials = [trial for trial in self._trials() if counts(trial)]
        sign = -1 if self._settings.maximize else 1

        def place(row):
            value = row["value"]
            return _ORDER[row["state"]], value is None, sign * (value or 0), row["number"]

        return sorted(map(self._row, trials), key=place)

    @property
    def best(self):
        """The row of the best complete trial, with its `command`; None if there is none yet."""
        trial = best_of(self._trials(), self._settings.maximize)
        if trial is None:
            return None
        # Of its own: the run of a trial that was the best before must not be taken for this one's.
        folder = self._settings.home / f"best-{trial.number:04d}"
        command = self._program.ready_command(trial.user_attrs["flags"], folder)
        return {**self._row(trial), "command": command}

    def table(self):
        """The rows as text, for people."""
        names = self._names()
        head = ["trial", self._settings.metric, *names, "epochs", "time", "state"]
        lines = [head] + [self._cells(row, names) for row in self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(head) - 1)]
        return "\n".join(
            "  ".join([*(c.rjust(w) for c, w in zip(line, widths, strict=False)), line[-1]])
            for line in lines
        )

    def write(self):
        """Writes ``results.json``, ``results.csv`` and ``best.sh`` into the search's home."""
        settings, rows, best = self._settings, self.rows, self.best
        folder = settings.home
        results = {
            "name": settings.name,
            "metric": settings.metric,
            "direction": settings.direction,
            **self.study.user_attrs["record"],
            "best": best,
            "trials": rows,
        }
        _replace(folder / "results.json", json.dumps(results, indent=1) + "\n")
        names = self._names()
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        head = ["trial", "state", settings.metric]
        writer.writerow([*head, *names, "epochs", "seconds", "folder", "reason"])
        for row in rows:
            flags = [row["flags"].get(name, "") for name in names]
            value = "" if row["value"] is None else repr(row["value"])
            last = [len(row["scores"]), row["seconds"], row["folder"], row["reason"]]
            writer.writerow([row["number"], row["state"], value, *flags, *last])
        _replace(folder / "results.csv", text.getvalue())
        if best is not None:
            header = f"# trial {best['number']}: {settings.metric} {best['value']:.6g}"
            place = f"cd {shlex.quote(os.getcwd())}"
            # This Python has what the program needs; another on the path may not.
            start = f'PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"'
            script = ["#!/bin/sh", header, place, start, f'{best["command"]} "$@"']
            _replace(folder / "best.sh", "\n".join(script) + "\n")

    def _trials(self):
        return self.study.get_trials(deepcopy=False)

    def _names(self):
        flags = [trial.user_attrs.get("flags", {}) for trial in self._trials()]
        return list(dict.fromkeys(name for one in flags for name in one))

    def _row(self, trial):
        attributes = trial.user_attrs
        failure = attributes.get("failure") or {}
        reason = failure.get("reason")
        if trial.state == TrialState.FAIL and reason is None:
            reason = "its search died each time that it ran"
        return {
            "number": trial.number,
            "state": _STATES.get(trial.state, trial.state.name.lower()),
            "value": trial.value,
            "flags": attributes.get("flags", {}),
            "params": trial.params,
            "scores": trial.intermediate_values,
            "epochs": attributes.get("epochs"),
            "seconds": attributes.get("seconds"),
            "folder": attributes.get("folder"),
            "repeats": attributes.get("repeats"),
            "reason": reason,
            "log": failure.get("log"),
            "last_lines": failure.get("last_lines"),
        }

    def _cells(self, row, names):
        value = "-" if row["value"] is None else f"{row['value']:.4g}"
        done, epochs = len(row["scores"]), row["epochs"]
        state = row["state"]
        if row["reason"]:
            state += f": {row['reason']}; {row['log'] or row['folder']}"
        return [
            str(row["number"]),
            value,
            *(short(row["flags"].get(name, "-")) for name in names),
            f"{done}/{epochs}" if epochs else str(done),
            "-" if row["seconds"] is None else duration(row["seconds"]),
            state,
        ]


def existing(settings):
    """The `Report` of a search that was made before, and its `Settings`.

    Args:
        settings: a `Settings` with its folder, storage and name.

    Raises:
        ValueError: there is no such search.
    """
    none = (
        f"{settings.folder} holds no search named {settings.name!r}; check --folder, --name and "
        "--storage"
    )
    if settings.storage is None and not storage_file(settings).exists():
        raise ValueError(none)
    try:
        study = optuna.load_study(study_name=settings.name, storage=open_storage(settings))
        record = study.user_attrs["record"]
    except KeyError:
        raise ValueError(none) from None
    names = {item.name for item in dataclasses.fields(settings)}
    settings = dataclasses.replace(settings, **{k: v for k, v in record.items() if k in names})
    program = Program(
        record["program"], record["flags"], settings.workers, settings.devices_per_worker
    )
    return Report(study, program, settings), settings


def _replace(path, text):
    # Other searches in this folder write it too.
    partial = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.partial")
    partial.write_text(text)
    partial.replace(path)
