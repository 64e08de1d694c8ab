"""The rows of an experiment in a JSON file: read and checked at once, added to run by run."""

import contextlib
import fcntl
import inspect
import json
import math
import os
from pathlib import Path

from experiments.outputs import write_whole

ADVICE = "remove it, or keep the results elsewhere"


class Results:
    """The rows of a JSON file, a list of `dict`: read at once, written anew with each row.

    Args:
        path: of the file; it need not be there.
        settings: `dict` that all rows have in common and that `add` puts into each; a file with
            other settings is refused. None (the default) to ask for nothing.
        form: `dict`, what every row has to have, and of which kind: `str`, `int`, `float` (a
            finite number), a function that says whether such a number will do (`from_0_to_1`,
            `above_0`), a tuple of kinds, a set of names, ``[kind]`` (a list that is not empty), or
            a `dict` again. Defaults to none.
        key: names that tell the rows apart; none may be there twice. Defaults to arm and seed.

    Attributes:
        path: `Path`.
        rows: `list` of `dict`.

    Raises:
        ValueError: if the file holds no such rows, the same run twice, or rows of other settings;
            with the row.
        OSError: if it can't be read.

    Example:
        >>> results = Results("results/digits.json", {"epochs": 3}, {"accuracy": from_0_to_1})
        >>> if not results.has(arm="dense", seed=0):
        ...     results.add({"arm": "dense", "seed": 0, "accuracy": train("dense", 0)})
    """

    def __init__(self, path, settings=None, form=None, key=("arm", "seed")):
        # As JSON gives them back: tuples become lists.
        self.path, self._settings = Path(path), json.loads(json.dumps(settings or {}))
        self._key = key
        self._form = {name: str if name == "arm" else float for name in key} | (form or {})
        self._load()

    def _load(self):
        self.rows = []
        for number, row in enumerate(_read(self.path)):
            if found := _misfit(row, self._form):
                raise ValueError(f"{self.path}, row {number} {found}; {ADVICE}")
            if named := self._repeated(row):
                raise ValueError(f"{self.path}, row {number} has {named} once more; {ADVICE}")
            for name, value in self._settings.items():
                if row.get(name) != value:
                    raise ValueError(
                        f"{self.path} holds a run with other settings: row {number} has "
                        f"{name}={row.get(name)!r}, this run {value!r}. Give the same, or keep "
                        "the results elsewhere"
                    )
            self.rows.append(row)

    def has(self, **key):
        """Whether there is a row with these values, such as ``has(arm="dense", seed=0)``."""
        return any(all(row.get(k) == v for k, v in key.items()) for row in self.rows)

    def missing(self, arms, seeds):
        """Returns ``[(seed, arm), ...]`` of the runs that are not there, arms in turn.

        So a machine that is slow for an hour is slow for all arms.
        """
        return [
            (seed, arm) for seed in range(seeds) for arm in arms if not self.has(arm=arm, seed=seed)
        ]

    def add(self, row):
        """Adds a row, with the settings, and writes the file: whole, or not at all.

        What another program has added to the file meanwhile stays in it, and is in `rows` then.

        Raises:
            ValueError: for a number that JSON does not have (NaN, infinity), which it names; for
                a run that is there; if the file no longer holds such rows.
        """
        row = {**row, **self._settings}
        for name, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name}={value} cannot be written as JSON; give None: {row}")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _alone_in(self.path.parent):
            self._load()
            if named := self._repeated(row):
                raise ValueError(f"{self.path} has a run of {named} already")
            self.rows.append(row)
            write_whole(self.path, json.dumps(self.rows, indent=1, allow_nan=False) + "\n")

    def _repeated(self, row):
        """The key of a row as text if another has it, else None."""
        key = {name: row.get(name) for name in self._key}
        return ", ".join(f"{k}={v}" for k, v in key.items()) if self.has(**key) else None


@contextlib.contextmanager
def _alone_in(folder):
    """Holds the lock of a folder; ends with the process, whatever becomes of it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # A file system without locks.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read(path):
    if not path.exists():
        return []
    try:
        rows = json.loads(path.read_text(), parse_constant=_refuse)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); {ADVICE}") from error
    if not isinstance(rows, list):
        raise ValueError(f"{path} does not hold a list of results; {ADVICE}")
    return rows


def _refuse(name):
    raise ValueError(f"{name} is no number there")


def _misfit(row, form):
    """Says how a row differs from the form; None if it does not."""
    if not isinstance(row, dict):
        return f"is {row!r}, no run"
    for name, kind in form.items():
        if name not in row or (row[name] is None and not _fits(None, kind)):
            return f"lacks its {name}"
        if not _fits(row[name], kind):
            return f"has {name}={row[name]!r}, which is not of its kind{_said(kind)}"
    return None


def _said(kind):
    if isinstance(kind, set):
        return f": {', '.join(sorted(kind))}"
    return f": {kind.__name__.replace('_', ' ')}" if inspect.isfunction(kind) else ""


def _fits(value, kind):
    if isinstance(kind, tuple):
        return any(_fits(value, one) for one in kind)
    if isinstance(kind, list):
        return isinstance(value, list) and value != [] and all(_fits(v, kind[0]) for v in value)
    if isinstance(kind, dict):
        return isinstance(value, dict) and all(
            name in value and _fits(value[name], one) for name, one in kind.items()
        )
    if isinstance(kind, set):
        return isinstance(value, str) and value in kind
    if inspect.isfunction(kind):
        return _fits(value, float) and kind(value)
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    return value is None if kind is None else type(value) is kind


def from_0_to_1(value):
    """The kind of shares, such as accuracies."""
    return 0 <= value <= 1


def above_0(value):
    """The kind of times and speeds."""
    return value > 0


def check_arms(results, arm_of):
    """Raises ValueError for a row whose arm is not the one that its other fields tell of.

    Args:
        results: `Results`.
        arm_of: function of a row that returns the name of its arm.
    """
    for number, row in enumerate(results.rows):
        if row["arm"] != arm_of(row):
            raise ValueError(
                f"{results.path}, row {number} has arm={row['arm']!r}, but its other fields are "
                f"those of {arm_of(row)!r}; {ADVICE}"
            )


def check_rate(runs, arm, rate):
    """Raises ValueError if there are runs of an arm with another rate than the search's.

    Args:
        runs: `Results`, whose rows have ``learning_rate``.
        arm: `str`.
        rate: `float`, what the search beside the runs gives.
    """
    for row in runs.rows:
        if row["arm"] == arm and not math.isclose(row["learning_rate"], rate, rel_tol=1e-6):
            raise ValueError(
                f"{runs.path} has a run of {arm} with learning rate {row['learning_rate']:g}, but "
                f"the search beside it gives {rate:g}; remove the one or the other"
            )
