"""The fields of a program's run, read in a process of its own: programs load TensorFlow."""

import importlib
import importlib.util
import os
import pickle
import runpy
import subprocess
import sys
import tempfile
import typing
from pathlib import Path

from tfscale.config import parse

_READ = "from tfscale.tuning.run_fields import write_fields; write_fields()"


def read_fields(program, environ, timeout_seconds=300):
    """The annotations of the dataclass that a program's flags make.

    The program lists its runs as a mapping ``CONFIGS`` of name to function, as `tfscale.config`
    takes it; the first one is meant where its flags have no ``--config``.

    Args:
        program: a `Program`; its own flags are checked too.
        environ: mapping, the environment to read it in.
        timeout_seconds: `float`, for its imports.

    Returns:
        `dict` of field to annotation; None if the program has no ``CONFIGS``.

    Raises:
        ValueError: the program cannot be imported, or refuses its flags; has its last lines.

    Example:

    >>> program = Program(("experiments/train.py",), ("--config=quickstart",))
    >>> read_fields(program, program.environment(os.environ))["momentum"]
    <class 'float'>
    """
    with tempfile.TemporaryDirectory(prefix="tfscale-") as folder:
        file = Path(folder) / "fields.pickle"
        command = [sys.executable, "-c", _READ, str(file), str(len(program.words))]
        try:
            done = subprocess.run(
                [*command, *program.words, *program.flags],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=timeout_seconds,
            )
        except subprocess.TimeoutExpired:
            raise ValueError(
                f"{program.words[-1]} was not imported in {timeout_seconds:g} s; what it does "
                "belongs under if __name__ == '__main__'"
            ) from None
        if done.returncode or not file.exists():
            lines = done.stdout.splitlines()[-8:] or ["(silent)"]
            said = "".join(f"\n  | {line}" for line in lines) if len(lines) > 1 else f" {lines[0]}"
            raise ValueError(f"{program.words[-1]} cannot be started:{said}")
        return pickle.loads(file.read_bytes())


def write_fields():
    """The child's part: ``FILE COUNT WORDS... FLAGS...`` on the command line."""
    file, count, *rest = sys.argv[1:]
    words, flags = rest[: int(count)], rest[int(count) :]
    fields, configs = None, None
    # A program that lists no runs is not imported: it might start to train.
    if "CONFIGS" in _source(words):
        configs = _configs(words)
    if configs is not None:
        run = parse(flags, configs, default=next(iter(configs)), program=words[-1])
        fields = typing.get_type_hints(type(run))
    Path(file).write_bytes(pickle.dumps(fields))


def _source(words):
    if words[0] == "-m":
        try:
            spec = importlib.util.find_spec(words[1])
        except ModuleNotFoundError as error:
            if not f"{words[1]}.".startswith(f"{error.name}."):
                raise  # One that its package imports.
            spec = None
        if spec is None or spec.origin is None:
            raise SystemExit(f"no module named {words[1]!r}, from the folder {Path.cwd()}")
        return Path(spec.origin).read_text()
    path = Path(words[0])
    return (path / "__main__.py" if path.is_dir() else path).read_text()


def _configs(words):
    if words[0] == "-m":
        return getattr(importlib.import_module(words[1]), "CONFIGS", None)
    # As Python does for a program that is a file.
    sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
    return runpy.run_path(words[0], run_name="tfscale_tuning").get("CONFIGS")
