"""A group of local processes: started together, watched, and stopped together.

A worker that waits in TensorFlow does not end on SIGTERM (tensorflow/tensorflow#42498), and one
that lost its peer may wait for long. So the first failure stops all: SIGTERM to each worker's
whole process group, a time of grace, SIGKILL.
"""

import selectors
import signal
import sys
import time

from tfscale.process_group.commands import Command, RunningCommand
from tfscale.process_group.group_result import GroupResult
from tfscale.process_group.guard import Guard
from tfscale.process_group.signals import caught

__all__ = ["Command", "GroupResult", "run_group"]

_TICK_SECONDS = 0.05
_UNFINISHED_SECONDS = 30.0


def run_group(
    commands,
    *,
    write=None,
    notify=None,
    grace_seconds=10.0,
    timeout_seconds=None,
    tail_lines=20,
):
    """Runs commands side by side until all have ended, or one has failed.

    Those in the background are stopped when the others have ended.

    Ctrl-C, SIGTERM and SIGHUP stop the group; a second one kills it at once. If this process is
    itself killed, a small watchdog process ends the group.

    Args:
        commands: sequence of `Command`.
        write: function of `str` that shows output. Defaults to standard output.
        notify: function of one line of text about the group itself. Defaults to standard error.
        grace_seconds: `float`, from SIGTERM to SIGKILL. Defaults to 10.
        timeout_seconds: `float`, time limit of the whole. Defaults to none.
        tail_lines: `int`, last lines kept of each command. Defaults to 20.

    Returns:
        A `GroupResult`.

    Example:

    >>> result = run_group([Command("a", ("true",)), Command("b", ("sh", "-c", "exit 3"))])
    >>> result.exit_code, result.failed_first
    (3, 1)
    """
    group = _Group(
        list(commands), write or _write_stdout, notify or _write_stderr, grace_seconds, tail_lines
    )
    with caught() as group.signals, group:
        return group.watch(timeout_seconds)


def _write_stdout(text):
    if sys.stdout is not None:  # It is where a daemon closed it; the job goes on without.
        sys.stdout.write(text)
        sys.stdout.flush()


def _write_stderr(text):
    if sys.stderr is not None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class _Group:
    def __init__(self, commands, write, notify, grace_seconds, tail_lines):
        self._members = [RunningCommand(command, write, tail_lines) for command in commands]
        self._notify = notify
        self._grace_seconds = grace_seconds
        self._guard = None
        self.signals = []
        self._failed_first = self._stopped_by = None
        self._timed_out = False
        self._stopped_at = self._kill_at = None
        self._next_mention = float("inf")
        self._started = time.monotonic()

    def __enter__(self):
        self._guard = Guard(self._grace_seconds)
        return self

    def __exit__(self, *_):
        for member in self._members:
            member.signal(signal.SIGKILL)  # Whatever the workers left behind them.
            if member.process is not None:
                member.process.wait()
                self._guard.remove(member.process.pid)
            member.close()
        self._guard.close()

    def watch(self, timeout_seconds):
        self._start()
        while True:
            self._read_output()
            just_ended = [member for member in self._members if member.poll()]
            self._note_failure()
            running = [member for member in self._members if member.running]
            if running and all(member.command.background for member in running):
                self._stop()
            if not running and not any(member.reading for member in self._members):
                return self._result()
            self._obey_signals(running)
            if timeout_seconds and time.monotonic() - self._started > timeout_seconds:
                self._timed_out = self._stop() or self._timed_out
            if self._kill_at is not None:
                if time.monotonic() >= self._kill_at or len(self.signals) > 1:
                    for member in running:
                        member.signal(signal.SIGKILL)
            else:
                self._mention_unfinished(just_ended, running)

    def _start(self):
        for member in self._members:
            member.start()
            if member.process is None:
                return
            self._guard.add(member.process.pid)

    def _note_failure(self):
        for index, member in enumerate(self._members):
            if member.exit_code and self._stop():
                self._failed_first = index

    def _obey_signals(self, running):
        if self.signals and self._stop():
            self._stopped_by = self.signals[0]
            self._notify(
                f"{signal.Signals(self._stopped_by).name}: stopping {len(running)} workers, which "
                f"have {self._grace_seconds:g} s to end; once more kills them now"
            )

    def _mention_unfinished(self, just_ended, running):
        now = time.monotonic()
        if just_ended:
            self._next_mention = now + _UNFINISHED_SECONDS
        if running and now >= self._next_mention:
            self._next_mention = now + _UNFINISHED_SECONDS
            names = ", ".join(m.command.name for m in running if not m.command.background)
            self._notify(f"some workers have finished, still running: {names}")

    def _result(self):
        return GroupResult(
            names=tuple(member.command.name for member in self._members),
            exit_codes=tuple(member.exit_code or 0 for member in self._members),
            tails=tuple(member.output.tail for member in self._members),
            failed_first=self._failed_first,
            stopped_by=self._stopped_by,
            timed_out=self._timed_out,
            seconds=(self._stopped_at or time.monotonic()) - self._started,
        )

    def _read_output(self):
        with selectors.DefaultSelector() as selector:
            for member in self._members:
                if member.reading:
                    selector.register(member.process.stdout, selectors.EVENT_READ, member)
            if not selector.get_map():
                time.sleep(_TICK_SECONDS)
                return
            for key, _ in selector.select(_TICK_SECONDS):
                key.data.read()

    def _stop(self):
        """Begins to stop the group; returns whether this is the first reason to do so."""
        if self._kill_at is not None:
            return False
        self._stopped_at = time.monotonic()
        self._kill_at = self._stopped_at + self._grace_seconds
        for member in self._members:
            member.signal(signal.SIGTERM)
        return True
