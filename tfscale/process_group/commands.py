"""One local process: how it is started, read, signalled with all its children, and ended."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Mapping

from tfscale.process_group.output import LineOutput

_DRAIN_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class Command:
    """One process of a group.

    Args:
        name: `str`, what messages call it, for example ``"worker 0"``.
        argv: sequence of `str`, program and arguments.
        env: mapping, the complete environment. Defaults to `None`: that of this process.
        prefix: `str`, put before its lines. Defaults to none.
        show: `bool`, whether its output is shown. Defaults to `True`.
        raw: `bool`, show output as it comes instead of by whole lines. Defaults to `False`.
        log_file: path that gets all its output. Defaults to `None`.
        background: `bool`, it serves the others: it is stopped when all of those have ended.
            Defaults to `False`.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] | None = None
    prefix: str = ""
    show: bool = True
    raw: bool = False
    log_file: str | None = None
    background: bool = False


def describe_exit_code(code):
    """An exit code with the name of the signal behind it, if there is one."""
    if code == 127:
        return "127 (not found)"
    try:
        name = signal.Signals(code - 128).name if code > 128 else ""
    except ValueError:
        name = ""
    if not name:
        return str(code)
    return f"{code} ({name}{'; out of memory?' if name == 'SIGKILL' else ''})"


class RunningCommand:
    """A command that has been started, its output and its end."""

    def __init__(self, command, write, tail_lines):
        self.command = command
        self.process = None
        self.exit_code = None
        self._ended_at = None
        log_path = command.log_file
        self._log_file = open(log_path, "wb") if log_path else None  # noqa: SIM115
        shown = write if command.show else None
        self.output = LineOutput(shown, command.prefix, command.raw, self._log_file, tail_lines)

    def start(self):
        try:
            self.process = subprocess.Popen(
                self.command.argv,
                env=self.command.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self.exit_code = 127 if isinstance(error, FileNotFoundError) else 126
            self.output.feed(f"cannot start {self.command.argv[0]}: {error.strerror}\n".encode())
            return
        os.set_blocking(self.process.stdout.fileno(), False)

    @property
    def running(self):
        return self.process is not None and self.exit_code is None

    @property
    def reading(self):
        return self.process is not None and not self.process.stdout.closed

    def read(self):
        """Takes what is there; closes the pipe at its end."""
        while self.reading:
            try:
                data = os.read(self.process.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                break
            if not data:
                self.process.stdout.close()
                break
            self.output.feed(data)
            if len(data) < 1 << 16:
                break

    def poll(self):
        """Notes the end of the process; returns whether it has ended just now."""
        if self.running:
            code = self.process.poll()
            if code is not None:
                self.exit_code = 128 - code if code < 0 else code
                self._ended_at = time.monotonic()
                return True
        elif self.reading and time.monotonic() - self._ended_at > _DRAIN_SECONDS:
            self.read()
            self.process.stdout.close()  # A grandchild holds it open.
        return False

    def signal(self, number):
        if self.process is not None:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, number)

    def close(self):
        if self.reading:
            self.read()
            self.process.stdout.close()
        self.output.finish()
        if self._log_file is not None:
            with contextlib.suppress(OSError):  # A full disk, which the output has named.
                self._log_file.close()
