"""The training program of a search: its command for given values, and its environment."""

import dataclasses
import importlib.util
import os
import shlex
import sys
from pathlib import Path

from tfscale.cores import LOCAL_WORKERS, available_cores
from tfscale.tuning.ranges import flag_text
from tfscale.tuning.space import RESERVED

_ROOT = Path(__file__).resolve().parent.parent.parent


@dataclasses.dataclass(frozen=True)
class Program:
    """A training program that takes ``--name=value`` flags, ``--model_dir`` among them.

    Args:
        words: ``("train.py",)`` or ``("-m", "package.module")``.
        flags: sequence of `str`, the same for all trials.
        workers: `int`, processes of each trial.
        devices_per_worker: `int`, or None: the program's own choice.
        grace: `float`, seconds from SIGTERM to SIGKILL of its workers.

    Raises:
        ValueError: there is no such program, or the flags hold what the search sets itself.

    Example:

    >>> Program(("experiments/train.py",), ("--epochs=3",)).ready_command({}, "runs/best")
    'python experiments/train.py --epochs=3 --model_dir=runs/best'
    """

    words: tuple
    flags: tuple = ()
    workers: int = 1
    devices_per_worker: int | None = None
    grace: float = 10.0

    def __post_init__(self):
        object.__setattr__(self, "words", tuple(self.words))
        object.__setattr__(self, "flags", tuple(self.flags))
        if RESERVED in self.fixed_names():
            raise ValueError(f"--{RESERVED} is given to each trial by the search; leave it out")
        if len(self.words) == 2 and self.words[0] == "-m":
            return
        if len(self.words) != 1 or self.words[0].startswith("-"):
            raise ValueError(
                f"program {shlex.join(self.words)!r}: wanted a Python file, or -m and a module"
            )
        path = Path(self.words[0])
        if not path.exists():
            raise ValueError(f"no such program: {path}, from the folder {Path.cwd()}")
        if path.suffix != ".py" and not (path / "__main__.py").exists():
            raise ValueError(f"{path} is neither a Python file nor a folder with __main__.py")

    @property
    def launched(self):
        """Whether a launcher starts it."""
        return self.workers > 1 or self.devices_per_worker is not None

    def fixed_names(self):
        """The fields that `flags` set, ``--noname`` as both of its readings."""
        names = [word[2:].partition("=")[0] for word in self.flags if word.startswith("--")]
        return {*names, *(name[2:] for name in names if name.startswith("no"))}

    def command(self, values, model_dir):
        """The command line of one trial, as a list."""
        flags = [*self.flags, *(f"--{name}={flag_text(v)}" for name, v in values.items())]
        flags.append(f"--model_dir={model_dir}")
        if not self.launched:
            return [sys.executable, *self.words, *flags]
        devices = self.devices_per_worker
        options = [f"--workers={self.workers}", f"--grace={self.grace:g}"]
        options += [f"--devices_per_worker={devices}"] if devices else []
        return [sys.executable, "-m", _launcher(), *options, *self.words, "--", *flags]

    def ready_command(self, values, model_dir):
        """The command line for people: from the present folder, with the Python on their path."""
        words = self.command(values, model_dir)[1:]
        words = [word for word in words if word != f"--grace={self.grace:g}"]
        outside = self.launched and _launcher() == "launch.local" and Path.cwd() != _ROOT
        prefix = f"PYTHONPATH={shlex.quote(str(_ROOT))} " if outside else ""
        return f"{prefix}{shlex.join(['python', *words])}"

    def environment(self, environ, parallel=1, gpus=None):
        """The environment of a trial that has a share of this machine.

        Args:
            environ: mapping, that of the search; what it sets wins over what is chosen here.
            parallel: `int`, trials at a time.
            gpus: `list` of `str`, the GPUs of this trial. None: there are none to divide.
        """
        env = {name: value for name, value in environ.items() if name != "TF_CONFIG"}
        paths = [str(Path.cwd()), str(_ROOT), environ.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
        env.setdefault("PYTHONUNBUFFERED", "1")
        env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        if gpus is not None:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        if parallel > 1:
            # A launcher counts its own workers only.
            processes = parallel * self.workers
            cores = max(1, available_cores() // processes)
            env.setdefault(LOCAL_WORKERS, str(processes))
            env.setdefault("OMP_NUM_THREADS", str(cores))
            env.setdefault("TF_NUM_INTRAOP_THREADS", str(cores))
            # An op that waits for another device must not hold the only thread.
            threads = max(cores, (self.devices_per_worker or 1) + 1)
            env.setdefault("TF_NUM_INTEROP_THREADS", str(threads))
        return env


def _launcher():
    """The module of the local launcher: of the clone that this package lies in, or installed."""
    if (_ROOT / "launch" / "local.py").exists():
        return "launch.local"
    if importlib.util.find_spec("tfscale.launch") is not None:
        return "tfscale.launch.local"
    raise ValueError(
        "trials of several workers need the launcher, which is installed as tfscale.launch: "
        "pip install tfscale again, or take --workers=1 without --devices_per_worker"
    )
