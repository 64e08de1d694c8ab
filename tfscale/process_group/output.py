"""The output of several processes on one screen: whole lines, prefixed, with the last ones kept."""

import codecs
import collections


class LineOutput:
    """Turns the bytes of one process into lines for the screen, and remembers the last ones.

    Args:
        write: function of `str`, which shows text; `None` shows nothing.
        prefix: `str`, put before every line. Defaults to none.
        raw: `bool`, show the text as it comes, so that a progress bar moves. Defaults to whole
            lines only, so that lines of several processes do not mix.
        log_file: binary file that gets every byte. Defaults to none.
        tail_lines: `int`, how many lines are remembered. Defaults to 20.

    Example:

    >>> output = LineOutput(print, prefix="[worker 1] ")
    >>> output.feed(b"loss: 0.5" + b"\\r" + b"loss: 0.4" + b"\\n")
    [worker 1] loss: 0.4
    <BLANKLINE>
    """

    _LONGEST_LINE = 1 << 16

    def __init__(self, write, prefix="", raw=False, log_file=None, tail_lines=20):
        self._write = write
        self._prefix = prefix
        self._raw = raw
        self._log_file = log_file
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""
        self._lines = collections.deque(maxlen=tail_lines)

    def feed(self, data):
        """Takes the next bytes of the process."""
        if self._log_file is not None:
            try:
                self._log_file.write(data)
                self._log_file.flush()
            except OSError as error:
                # A full disk of logs is no reason to lose the job.
                text = f"the log file ends here, {self._log_file.name}: {error.strerror}"
                self._log_file = None
                self._take(f"\n{text}\n" if self._partial else f"{text}\n")
        self._take(self._decoder.decode(data))

    def finish(self):
        """Shows what came without a final newline."""
        self._take(self._decoder.decode(b"", final=True))
        if self._partial:
            self._take("\n")

    @property
    def tail(self):
        """The last lines, without prefix."""
        return (*self._lines, *([_last_state(self._partial)] if self._partial else []))

    def _take(self, text):
        if self._raw and text:
            self._show(text)
        *lines, self._partial = (self._partial + text).split("\n")
        if len(self._partial) > self._LONGEST_LINE:
            lines.append(self._partial)
            self._partial = ""
        lines = [_last_state(line) for line in lines]
        self._lines.extend(lines)
        if lines and not self._raw:
            self._show("".join(f"{self._prefix}{line}\n" for line in lines))

    def _show(self, text):
        if self._write is not None:
            self._write(text)


def _last_state(line):
    """What a terminal shows of a line that was rewritten after carriage returns."""
    return line.rstrip("\r").rpartition("\r")[2]
