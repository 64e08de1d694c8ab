"""Process groups that end with this process, however it ends."""

import contextlib
import subprocess
import sys
from pathlib import Path


class Guard:
    """Ends the process groups given to it when this process dies, SIGKILL included.

    A small watchdog process does it: SIGTERM, a time of grace, SIGKILL.

    Args:
        grace_seconds: `float`, from SIGTERM to SIGKILL.

    Example:

    >>> child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    >>> with Guard(grace_seconds=1.0) as guard:
    ...     guard.add(child.pid)
    ...     child.kill()
    ...     guard.remove(child.pid)
    """

    def __init__(self, grace_seconds):
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("watchdog.py"))]
            + [str(grace_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            bufsize=1,
            start_new_session=True,
        )

    def add(self, group):
        """Puts the process group with this id under guard."""
        self._tell(f"+{group}")

    def remove(self, group):
        """Lets go of a group that has ended."""
        self._tell(f"-{group}")

    def close(self):
        """Ends the watchdog, which ends the groups that it still has."""
        with contextlib.suppress(OSError):
            self._watchdog.stdin.close()
        self._watchdog.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _tell(self, line):
        with contextlib.suppress(OSError):
            self._watchdog.stdin.write(f"{line}\n")
