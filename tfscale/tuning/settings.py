"""How a search goes about: one frozen dataclass, whose fields are the command line's flags."""

import dataclasses
import math
from pathlib import Path
from typing import Literal

# A search that has been silent for so long is taken for dead, and its trials are repeated.
HEARTBEAT_SECONDS, SILENCE_SECONDS = 10, 60

_NAME = "search"


def _field(default, help):  # noqa: A002
    return dataclasses.field(default=default, metadata={"help": help})


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a search; ``python -m tfscale.tuning --help`` explains them.

    Raises:
        ValueError: a field is out of range.

    Example:

    >>> Settings(trials=20, parallel=2, workers=2).direction
    'maximize'
    """

    folder: str = _field(
        "runs/tuning", "gets the trials' run folders, the storage, results, plots and the log files"
    )
    storage: str | None = _field(
        None, "URL of the database, for several machines; none = sqlite:///FOLDER/trials.db"
    )
    name: str = _field(
        _NAME, f"name of the search in the storage; files of another than {_NAME!r} lie apart"
    )
    metric: str = _field("val_accuracy", "what is compared, by its name in epochs.jsonl")
    direction: Literal["auto", "maximize", "minimize"] = _field(
        "auto", "auto = minimize a metric named ...loss or ...error, maximize any other"
    )
    score: Literal["last", "best"] = _field("last", "the epoch whose value counts")
    trials: int = _field(20, "how many, of all searches on this storage together")
    parallel: int = _field(1, "trials at a time, which share the cores and the GPUs")
    workers: int = _field(1, "processes of each trial, by tfscale-launch local")
    devices_per_worker: int | None = _field(
        None, "devices of each worker; none = what the program finds"
    )
    pruner: Literal["median", "hyperband", "none"] = _field(
        "median",
        "stops poor trials early. median: worse at its best epoch so far than the median of the "
        "others at this epoch; hyperband: only the best third goes on, with several starting "
        "budgets",
    )
    prune_after: int = _field(5, "trials that median lets finish before it stops any")
    prune_from: int = _field(1, "epoch from which on trials are stopped")
    sampler: Literal["tpe", "random"] = _field(
        "tpe", "tpe: ten random trials, then more of what was good"
    )
    seed: int = _field(0, "of the drawing; the same seed draws the same values")
    trial_timeout: float | None = _field(None, "seconds after which a trial is stopped as failed")
    give_up_after: int = _field(
        3, "so many failures at the start, and nothing else, end the search"
    )
    plots: bool = _field(True, "draw plots at the end, where matplotlib is installed")
    grace: float = _field(10.0, "seconds from SIGTERM to SIGKILL when a trial is stopped")

    def __post_init__(self):
        whole = ("trials", "parallel", "workers", "prune_from", "give_up_after")
        for name in (*whole, "devices_per_worker"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name}={value} is out of range: it must be at least 1")
        for name in ("grace", "trial_timeout"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"--{name}={value} is out of range: wanted seconds above 0")
        for name in ("prune_after", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"--{name}={getattr(self, name)} is out of range: at least 0")
        for name in ("folder", "name", "metric"):
            if not getattr(self, name):
                raise ValueError(f"--{name} is empty")
        if "/" in self.name:
            raise ValueError(f"--name={self.name} holds a slash; its files lie in search-NAME")
        if self.direction == "auto":
            down = self.metric.endswith(("loss", "error"))
            object.__setattr__(self, "direction", "minimize" if down else "maximize")

    @property
    def maximize(self):
        return self.direction == "maximize"

    @property
    def home(self):
        """The path of what is this search's alone: run folders, results, plots."""
        folder = Path(self.folder)
        # Searches of several names may share a folder, but not the numbers of their trials.
        return folder if self.name == _NAME else folder / f"search-{self.name}"
