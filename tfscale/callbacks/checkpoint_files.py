"""Checkpoints on disk: complete or absent, the newest few of them."""

import dataclasses
import json
import os
import re
import shutil
import tempfile
import time
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path

# What NumPy raises for a damaged .npz file, and who reads on what it holds.
NPZ_ERRORS = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)
_FORMAT = 1
_POSITION, _VARIABLES = "position.json", "variables"


@dataclasses.dataclass(frozen=True)
class Position:
    """Where a run stood when it was saved, and what has to be the same when it goes on.

    `epoch` and `step` (within the epoch) are those of the next step to run; `global_step`
    counts the global batches that were trained on, so it is also the position in the data.
    """

    epoch: int
    step: int
    global_step: int
    steps_per_epoch: int | None
    state: dict
    workers: int
    replicas: int
    variables: list  # [name, dtype, shape] of the model and its optimizer
    metrics: list  # the same of the metrics; empty unless step > 0
    callbacks: list  # what each of the user's callbacks remembers
    bucket_plan: object = None
    compression: dict | None = None  # see compression_files.py
    stopped: bool = False  # a callback ended the run before its last epoch
    phases: list | None = None  # those of the run, see saved_phases.py
    optimizer: dict | None = None  # as the program sets it, see saved_settings.py
    format: int = _FORMAT


class CheckpointFiles:
    """The checkpoints of one run, in a directory that all workers share.

    Args:
        directory: path; made when the run begins.
        keep: int, how many checkpoints stay.
    """

    def __init__(self, directory, keep):
        if not str(directory):
            raise ValueError("the checkpoint directory is '': give a folder of the run's own")
        if "://" in str(directory):
            raise ValueError(
                f"checkpoint directory {directory}: only mounted file systems are supported, since "
                "a checkpoint is put in place by renaming a folder; mount the bucket, or save "
                "to a disk that the workers share"
            )
        if not isinstance(keep, int) or keep < 1:
            raise ValueError(f"keep={keep!r}: a whole number; at least one checkpoint has to stay")
        self.directory = Path(directory)
        if self.directory.exists() and not self.directory.is_dir():
            raise ValueError(f"checkpoint directory {directory} is a file, not a folder")
        self._keep = keep

    def steps(self):
        """The global steps of the complete checkpoints, oldest first."""
        names = [p.name for p in self.directory.glob("step-*")]
        return sorted(int(m[1]) for n in names if (m := re.fullmatch(r"step-(\d+)", n)))

    def folder(self, global_step):
        return self.directory / f"step-{global_step:08d}"

    def prefix(self, global_step):
        """What `tf.train.Checkpoint.read` takes."""
        return str(self.folder(global_step) / _VARIABLES)

    def latest(self):
        """The `Position` of the newest checkpoint; None if there is none.

        Raises:
            ValueError: if it cannot be read; names the file and the way out.
        """
        steps = self.steps()
        if not steps:
            return None
        path = self.folder(steps[-1]) / _POSITION
        try:
            fields = json.loads(path.read_text())
            if fields["format"] != _FORMAT:
                raise ValueError(f"its format is {fields['format']}, this version's {_FORMAT}")
            for name in ("epoch", "step", "global_step"):
                if not isinstance(fields[name], int) or fields[name] < 0:
                    raise ValueError(f"{name} is {fields[name]!r}")
            if fields["global_step"] != steps[-1]:
                raise ValueError(f"its global_step is {fields['global_step']}")
            return Position(**fields)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path} cannot be read ({error}). {self.way_out()}") from error

    def way_out(self):
        """What to do where the newest checkpoint is of no use."""
        steps = self.steps()
        if len(steps) > 1:
            older = f"resume from the one before it (step {steps[-2]})"
        else:
            older = "start from the beginning"
        return f"Delete {self.folder(steps[-1])} to {older}."

    @contextmanager
    def writing(self, position, remains):
        """Gives the prefix to write variables to; the files take their place at the end.

        A process that is killed in between leaves the checkpoints before it as they were. Other
        workers may add files to `partial(position)` before this ends.

        Args:
            position: `Position`.
            remains: bool, whether the files stay; where they do not, they are written to a
                temporary folder of this machine and removed.
        """
        if not remains:
            with tempfile.TemporaryDirectory(prefix="tfscale-checkpoint-") as folder:
                yield os.path.join(folder, _VARIABLES)
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        partial = self.partial(position)
        partial.mkdir(exist_ok=True)
        try:
            yield str(partial / _VARIABLES)
            (partial / _POSITION).write_text(json.dumps(dataclasses.asdict(position)))
            for path in partial.rglob("*"):
                if path.is_file():
                    _flush_to_disk(path)
            final = self.folder(position.global_step)
            if final.exists():
                self._remove(final)
            partial.rename(final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        for step in self.steps()[: -self._keep]:
            self._remove(self.folder(step))

    def partial(self, position):
        """The folder in which a checkpoint is written; the same on all workers that add to it."""
        state = (position.compression or {}).get("state")
        token = state["token"] if state else os.getpid()
        return self.directory / f".partial-{position.global_step}-{token}"

    def prepare(self):
        """Makes the directory ready, before the first step; for the worker whose files stay.

        Removes what killed processes left behind.

        Raises:
            ValueError: if it cannot be written to: rather now than after an epoch.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            raise ValueError(
                f"checkpoint directory {self.directory} cannot be written to: {error}. Give a "
                "folder on a disk that this process may write to"
            ) from error
        for path in self.directory.glob(".partial-*"):
            shutil.rmtree(path, ignore_errors=True)

    def _remove(self, folder):
        # Renamed first: a folder that is half gone must not look like a checkpoint.
        doomed = self.directory / f".partial-{folder.name}-{os.getpid()}-{time.monotonic_ns()}"
        doomed.mkdir()
        folder.rename(doomed / folder.name)
        shutil.rmtree(doomed, ignore_errors=True)


def _flush_to_disk(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())
