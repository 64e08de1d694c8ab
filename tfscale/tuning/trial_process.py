"""One trial as a group of processes: started, followed epoch by epoch, stopped, explained."""

import re
import shutil
import signal
import time
from pathlib import Path

from tfscale.callbacks.epoch_file import FILE_NAME, EpochReader
from tfscale.process_group.commands import Command, RunningCommand, describe_exit_code

_HURRY_SECONDS = 2.0
# What launchers put before the lines of workers.
_PREFIX = re.compile(r"^(\[worker \d+\] |tfscale-launch: |\| |\s)+")
_ERROR = re.compile(r"(error: |[\w.]*(Error|Exception|Interrupt|Exit)\b)")


class TrialProcess:
    """The processes of a trial.

    Args:
        number: `int`, of the trial.
        command: `list` of `str`, its command line.
        env: mapping, its environment.
        folder: path of the run folder, which is made; what lies there already is moved aside.
        scratch: path of a folder that is made, its ``TMPDIR``, and removed by `close`.
        guard: `Guard` that ends it if this process dies.
        grace_seconds: `float`, from SIGTERM to SIGKILL.
        launched: `bool`, whether the command is a launcher, which ends its workers itself.

    Attributes:
        folder, log: paths, of the run and of all its output.
        exit_code: `int` once it has ended; 128 + n if signal n ended it.
    """

    def __init__(self, number, command, env, folder, scratch, guard, grace_seconds, launched):
        self.folder = Path(folder)
        _move_aside(self.folder)
        self.folder.mkdir(parents=True)
        self.log = self.folder / "output.log"
        self._scratch = Path(scratch)
        self._scratch.mkdir()
        self._guard, self._launched = guard, launched
        # A launcher that was killed before it has ended its workers would leave that to others.
        self._grace = grace_seconds + (_HURRY_SECONDS if launched else 0)
        self._kill_at, self._hurried = None, False
        self._epochs = EpochReader(self.folder / FILE_NAME)
        self._running = RunningCommand(
            Command(
                name=f"trial {number}",
                argv=tuple(command),
                env={**env, "TMPDIR": str(self._scratch)},
                show=False,
                log_file=str(self.log),
            ),
            write=None,
            tail_lines=20,
        )

    def start(self):
        self._running.start()
        if self._running.process is not None:
            self._guard.add(self._running.process.pid)

    def look(self):
        """Takes its output; returns its new epochs as `EpochReader.new` does.

        Raises:
            ValueError: what it wrote next is no epoch; those before have been returned.
        """
        self._running.read()
        # First, so that nothing is missed that was written just before the end.
        self._running.poll()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._running.signal(signal.SIGKILL)
        # One that was killed may have left half a line, which explains nothing.
        return self._epochs.new(ended=self.ended and not self.exit_code)

    @property
    def ended(self):
        return not self._running.running and not self._running.reading

    @property
    def exit_code(self):
        return self._running.exit_code

    @property
    def stopping(self):
        return self._kill_at is not None

    @property
    def last_lines(self):
        return [line[:500] for line in self._running.output.tail]

    def stop(self):
        """Asks it to end; `look` kills it after the time of grace."""
        if not self.stopping:
            self._kill_at = time.monotonic() + self._grace
            self._running.signal(signal.SIGTERM)

    def hurry(self):
        """Ends it without grace."""
        if self._hurried:
            return
        self._hurried = True
        # The second signal makes a launcher kill its workers.
        self._running.signal(signal.SIGTERM if self._launched else signal.SIGKILL)
        self._kill_at = time.monotonic() + _HURRY_SECONDS

    def close(self):
        """Ends what is left of it and removes its scratch folder."""
        self._running.signal(signal.SIGKILL)
        if self._running.process is not None:
            self._running.process.wait()
            self._guard.remove(self._running.process.pid)
        self._running.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def explain(self):
        """Why it ended as it did, in one line: its own last error, or its exit code."""
        return explain(self.exit_code, self.last_lines)


def explain(exit_code, lines):
    """Why a program ended, in one line.

    Args:
        exit_code: `int`.
        lines: its last lines.

    Example:

    >>> explain(1, ["Traceback ...", "  | ValueError: no such file", "TFSCALE_TRACEBACK=1 ..."])
    'ValueError: no such file'
    """
    lines = [text for line in lines if (text := _PREFIX.sub("", line).rstrip())]
    errors = [line for line in lines if _ERROR.match(line)]
    said = (errors or lines or [""])[-1][:300]
    code = f"exit code {describe_exit_code(exit_code)}"
    if exit_code > 128:
        return f"{code}; last said: {said}" if said else code
    return said or code


def _move_aside(folder):
    """A run folder of an earlier search, whose storage was removed, must not be gone on with."""
    if not folder.exists():
        return
    number = 1
    while (other := folder.with_name(f"{folder.name}-old{number}")).exists():
        number += 1
    folder.rename(other)
