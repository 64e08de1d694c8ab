"""Programs that measure on demand, kept alive and at rest between their turns.

Each is started once, as to import a framework takes longer than to measure it. Between its turns
a program is stopped (SIGSTOP) with all that it has started: it uses no CPU, and fills no buffer
whose content would cost nothing in its next turn. Turns go there and back: a, b, c, c, b, a, ...,
so that a machine that slows down slows all, and none is always measured behind the same other.
"""

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import time

FOREIGN = ("TF_", "TFSCALE_", "OMP_", "PYTHON", "DALI_", "XLA_")


@dataclasses.dataclass(frozen=True)
class Command:
    """A program that talks as `measuring.serve` does.

    Attributes:
        name: `str`.
        argv: `list` of `str`.
        variables: `dict`, environment variables besides those of this process.
        folder: `str`, where it runs.
        warm_up: `int`, batches that it takes before its first turn.
    """

    name: str
    argv: list[str]
    variables: dict[str, str]
    folder: str
    warm_up: int = 0


class ProgramFailed(RuntimeError):
    """A program ended or said nothing for too long; the text has its last lines."""


class Program:
    """A program that is at rest, but for the time of `start` and `measure`.

    Args:
        command: `Command`.
        log: `str`, path of the file for what it prints.
        timeout: `float`, seconds without an answer after which it has failed, beyond those that
            it was asked to measure for.

    Attributes:
        facts: `dict`, its first answer.
    """

    def __init__(self, command, log, timeout=300.0):
        self.name, self._log, self._timeout = command.name, log, timeout
        variables = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
        with open(log, "wb") as errors:
            # A group of its own, to stop and go with its children. Where this process is killed,
            # the system wakes the group and hangs it up (SIGHUP), so that none stays at rest.
            self._process = subprocess.Popen(
                command.argv,
                env={**variables, **command.variables},
                cwd=command.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,
            )
        self._heard = b""
        self.facts = self._answer(0)
        if command.warm_up:
            self._ask(command.warm_up, 0)
        self._signal(signal.SIGSTOP)

    def measure(self, drain, seconds):
        """Returns what it did in `seconds`, after `drain` batches that do not count."""
        self._signal(signal.SIGCONT)
        try:
            return self._ask(drain, seconds)
        finally:
            self._signal(signal.SIGSTOP)

    def close(self):
        """Asks it to end; `kill` waits for it."""
        self._signal(signal.SIGCONT)
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def kill(self, patience=10.0):
        """Ends it, by force after `patience` seconds, and with it what it has started."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()

    def _ask(self, drain, seconds):
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{drain} {seconds}\n".encode())
            self._process.stdin.flush()
        return self._answer(seconds)

    def _answer(self, seconds):
        deadline = time.monotonic() + self._timeout + seconds
        while b"\n" not in self._heard:
            ready, _, _ = select.select([self._process.stdout], [], [], 1.0)
            if ready:
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    self._process.wait()
                    self._fail(f"ended with code {self._process.returncode}")
                self._heard += data
            elif time.monotonic() > deadline:
                self._fail(f"no answer in {self._timeout + seconds:.0f} s")
        line, _, self._heard = self._heard.partition(b"\n")
        return json.loads(line)

    def _fail(self, what):
        with open(self._log, errors="replace") as file:
            tail = file.read().splitlines()[-20:]
        self._signal(signal.SIGKILL)
        raise ProgramFailed("\n".join([f"{self.name}: {what}", *tail]))

    def _signal(self, number):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


@contextlib.contextmanager
def started(commands, logs, say, timeout=300.0):
    """Starts programs one after the other; gives ``(programs, failures)``, ends them afterwards.

    Args:
        commands: `list` of `Command`.
        logs: `str`, folder for what they print.
        say: function of one `str`, for progress.
        timeout: see `Program`.
    """
    programs, failures = [], []
    try:
        for command in commands:
            say(f"starting {command.name} ...")
            try:
                programs.append(
                    Program(command, os.path.join(logs, f"{command.name}.log"), timeout)
                )
            except ProgramFailed as failure:
                failures.append(str(failure))
        yield programs, failures
    finally:
        for program in programs:
            program.close()
        for program in programs:
            program.kill()


def in_turns(programs, failures, repeats, seconds, drain, say):
    """Measures all programs in turns; returns ``{name: [answer, ...]}``.

    One that fails is left out from then on, and named in `failures`.
    """
    samples = {program.name: [] for program in programs}
    for repeat in range(repeats):
        for program in programs if repeat % 2 == 0 else reversed(programs):
            if program.name not in samples:
                continue
            try:
                sample = program.measure(drain, seconds)
            except ProgramFailed as failure:
                failures.append(str(failure))
                del samples[program.name]
                continue
            samples[program.name].append(sample)
            rate = sample["images"] / sample["cpu_seconds"]
            say(f"repeat {repeat + 1}/{repeats} {program.name}: {rate:.0f} images per CPU-second")
    return samples
