"""A line now and then about long work: how far, how fast, how long still."""

import time

EVERY = 5  # seconds


class Progress:
    """Logs how far work has come, every `EVERY` seconds.

    Args:
        log: function of one `str`.
        what: `str`, such as "train".
        total: `int`, pieces of work.
        unit: `str`, plural, such as "records".

    Example:
        ```python
        progress = Progress(print, "train", total=1000, unit="pictures")
        progress(100)  # 5 s later: train: 100 of 1000 pictures, 20.0 a second, 45 s left
        ```
    """

    def __init__(self, log, what, total, unit):
        self._log, self._what, self._total, self._unit = log, what, total, unit
        self._first = self._said = time.monotonic()
        self._before = None  # done at the first call: by an earlier run that was stopped

    def __call__(self, done):
        """Notes that `done` pieces of work are done by now."""
        now = time.monotonic()
        if self._before is None:
            self._before = done
        if now - self._said < EVERY:
            return
        self._said = now
        rate = (done - self._before) / (now - self._first)
        left = f"{_duration((self._total - done) / rate)} left" if rate else "none yet"
        self._log(
            f"{self._what}: {done} of {self._total} {self._unit}, "
            f"{rate:.{0 if rate >= 100 else 1}f} a second, {left}"
        )


def _duration(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
