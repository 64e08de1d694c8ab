"""How a group of processes ended, and what to tell people about it."""

import dataclasses
import signal

from tfscale.process_group.commands import describe_exit_code


@dataclasses.dataclass(frozen=True)
class GroupResult:
    """How a group ended.

    Attributes:
        names: of the commands.
        exit_codes: of each; 128 + n for one that signal n ended.
        tails: the last lines of each.
        failed_first: `int`, the command whose failure stopped the group, or `None`.
        stopped_by: number of the signal that stopped the launcher, or `None`.
        timed_out: `bool`, whether the group was stopped at its time limit.
        seconds: `float`, how long the group ran until its end or first failure.
    """

    names: tuple[str, ...]
    exit_codes: tuple[int, ...]
    tails: tuple[tuple[str, ...], ...]
    failed_first: int | None
    stopped_by: int | None
    timed_out: bool
    seconds: float

    @property
    def exit_code(self):
        """0, or that of the first failure; 128 + n after signal n; 124 at the time limit."""
        if self.failed_first is not None:
            return self.exit_codes[self.failed_first]
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        return 124 if self.timed_out else 0

    def describe(self):
        """Why the group failed, for people; empty if it did not."""
        if self.failed_first is not None:
            first = self.failed_first
            others = len(self.names) - 1
            stopped = f"; stopped the other {others}" if others else ""
            lines = [
                f"{self.names[first]} failed first, after {self.seconds:.1f} s, with exit code "
                f"{describe_exit_code(self.exit_codes[first])}{stopped}. Its last lines:",
                *self._quote(first),
            ]
            for index in self._suspects():
                code = describe_exit_code(self.exit_codes[index])
                lines.append(f"{self.names[index]} had trouble too (exit code {code}):")
                lines += self._quote(index)
            return "\n".join(lines)
        if self.stopped_by is not None:
            return f"stopped by {signal.Signals(self.stopped_by).name}, nothing is left running."
        if self.timed_out:
            return f"stopped after {self.seconds:.0f} s, the time limit."
        return ""

    def _quote(self, index):
        return [f"  | {line}" for line in self.tails[index]] or ["  | (no output)"]

    def _suspects(self):
        """Other commands that may hold the cause.

        A worker that fails in Python can take seconds to end, and its peer may notice and end
        before it does.
        """
        for index, (code, tail) in enumerate(zip(self.exit_codes, self.tails, strict=True)):
            own_end = code not in (0, 128 + signal.SIGTERM, 128 + signal.SIGKILL)
            traced = code != 0 and any(line.startswith("Traceback ") for line in tail)
            if index != self.failed_first and (own_end or traced):
                yield index
