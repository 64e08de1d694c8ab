"""Where the peers' virtual environments are, and which methods each of them gives."""

import dataclasses
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = "experiments/allreduce/peers/install.sh"


@dataclasses.dataclass(frozen=True)
class Method:
    """How a method is run.

    Attributes:
        environment: ``"gloo"`` or ``"horovod"``, which install.sh makes.
        module: the worker program.
        wire_bytes: `int`, bytes of one element in its ring all-reduce; None for PowerSGD, whose
            messages depend on the tensors' shapes.
    """

    environment: str
    module: str
    wire_bytes: int | None


METHODS = {
    "gloo": Method("gloo", "torch_worker", 4),
    "gloo+fp16": Method("gloo", "torch_worker", 2),
    "gloo+powersgd": Method("gloo", "torch_worker", None),
    "horovod": Method("horovod", "horovod_worker", 4),
    "horovod+fp16": Method("horovod", "horovod_worker", 2),
}


def python_of(method, folder=None):
    """Returns the interpreter that runs a method, or None if its environment is not there.

    Args:
        method: `str`, one of `METHODS`.
        folder: where ``install.sh`` made the environments. None takes ``TFSCALE_PEERS``, else
            ``.peers/`` of the clone.

    Raises:
        ValueError: for an unknown method.

    Example:
        >>> python_of("gloo")
        PosixPath('.../.peers/gloo/bin/python')
    """
    if method not in METHODS:
        raise ValueError(f"unknown peer {method!r}; choose one of {', '.join(METHODS)}")
    folder = Path(folder or os.environ.get("TFSCALE_PEERS") or ROOT / ".peers")
    environment = folder / METHODS[method].environment
    python = environment / "bin" / "python"
    return python if python.exists() and (environment / "complete").exists() else None


def how_to_install(method):
    """The line for people whose benchmark leaves a peer out."""
    environment = METHODS[method].environment
    return f"{method} is left out: its environment is missing; sh {SCRIPT} {environment} makes it"
