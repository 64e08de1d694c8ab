"""Compiles bound.c at its first use."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("bound.c")
FLAGS = ("-O3", "-march=native", "-Wall", "-Wextra", "-pthread")


class CannotBuild(RuntimeError):
    """The machine has no C compiler, no libjpeg-turbo, or no SSE2."""


def build(cache_dir):
    """Returns the path of the program, which is kept in `cache_dir` until the source changes.

    Raises:
        CannotBuild: with what is missing.
    """
    compiler = os.environ.get("CC", "gcc")
    if shutil.which(compiler) is None:
        raise CannotBuild(f"bound needs a C compiler, and there is no {compiler!r}: set CC")
    digest = hashlib.sha256(SOURCE.read_bytes() + repr((compiler, FLAGS)).encode()).hexdigest()[:16]
    program = Path(cache_dir) / f"bound-{digest}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        partial = program.with_suffix(f".{os.getpid()}")
        done = subprocess.run(
            [compiler, *FLAGS, "-o", str(partial), str(SOURCE), "-ljpeg"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise CannotBuild(
                "bound needs an x86 machine and libjpeg-turbo's headers (Debian: apt-get install "
                f"libjpeg62-turbo-dev); {compiler} says: {done.stderr.strip()[-500:]}"
            )
        partial.replace(program)
    return str(program)
