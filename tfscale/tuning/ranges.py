"""Ranges from which hyperparameters are drawn, and how they are written as text."""

import dataclasses
import math

_FORMS = "LOW:HIGH or LOW:HIGH:STEP, log:LOW:HIGH, int:LOW:HIGH, logint:LOW:HIGH, or choices A,B,C"


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers between two ends, both included; made by `uniform`, `log_uniform`, `integer`."""

    low: float | int
    high: float | int
    step: float | int | None = None
    log: bool = False
    whole: bool = False

    def __post_init__(self):
        for name, value in (("low", self.low), ("high", self.high), ("step", self.step)):
            if value is None and name == "step":
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value):
                raise ValueError(f"{self}: {name} is {value!r}, which is no finite number")
            if self.whole and value != int(value):
                raise ValueError(f"{self}: {name} is {value!r}, which is no whole number")
        if not self.low < self.high:
            raise ValueError(f"{self}: the low end must be below the high end")
        if not math.isfinite(float(self.high) - float(self.low)):
            raise ValueError(f"{self}: the ends are too far apart for a float")
        if self.log and self.low <= 0:
            raise ValueError(f"{self}: a logarithmic range begins above 0")
        if self.log and self.step is not None:
            raise ValueError(f"{self}: a logarithmic range has no steps")
        if self.step is not None:
            if self.step <= 0:
                raise ValueError(f"{self}: the step must be above 0")
            if self.low + self.step == self.low or self.high - self.step == self.high:
                raise ValueError(f"{self}: the step is too small to change the ends")
            steps = (self.high - self.low) / self.step
            if abs(steps - round(steps)) > 1e-9 * max(1, steps):
                last = self.low + math.floor(steps) * self.step
                raise ValueError(f"{self}: the last step is at {last:g}; end the range there")

    def __str__(self):
        prefix = {(0, 0): "", (1, 0): "log:", (0, 1): "int:", (1, 1): "logint:"}
        ends = [self.low, self.high, *([self.step] if self.step is not None else [])]
        return prefix[self.log, self.whole] + ":".join(f"{end:.12g}" for end in ends)

    def suggest(self, trial, name):
        """Draws a value for `name` from an Optuna trial."""
        if self.whole:
            low, high, step = int(self.low), int(self.high), int(self.step or 1)
            return trial.suggest_int(name, low, high, step=step, log=self.log)
        return trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of several values; made by `choice`."""

    values: tuple

    def __post_init__(self):
        texts = [flag_text(value) for value in self.values]
        if len(texts) < 2:
            raise ValueError(
                f"choice {self}: wanted at least two values; one that is fixed is a flag of the "
                "program"
            )
        twice = next((text for text in texts if texts.count(text) > 1), None)
        if twice is not None:
            raise ValueError(f"choice {self}: {twice} is there twice")

    def __str__(self):
        return ",".join(map(flag_text, self.values))

    def suggest(self, trial, name):
        """Draws a value for `name` from an Optuna trial."""
        # The storage keeps plain values; a tuple goes by its text.
        kept = [_kept(value) for value in self.values]
        return self.values[kept.index(trial.suggest_categorical(name, kept))]


def uniform(low, high, step=None):
    """Any number from `low` to `high`, both included, with equal probability.

    Args:
        low, high: `float`.
        step: `float`, only ``low, low + step, ...``. Defaults to any number.

    Raises:
        ValueError: `low` is not below `high`, or `high` is no whole number of steps away.

    Example:

    >>> str(uniform(0.8, 0.95))
    '0.8:0.95'
    """
    return Range(low, high, step)


def log_uniform(low, high):
    """Any number from `low` to `high`, every factor with equal probability.

        exp(uniform(log(low), log(high)))

    Args:
        low, high: `float`, above 0.

    Raises:
        ValueError: not ``0 < low < high``.

    Example:

    >>> str(log_uniform(1, 64))
    'log:1:64'
    """
    return Range(low, high, log=True)


def integer(low, high, step=None, log=False):
    """A whole number from `low` to `high`, both included.

    Args:
        low, high: `int`.
        step: `int`. Defaults to 1.
        log: `bool`, every factor with equal probability. Defaults to `False`.

    Raises:
        ValueError: an end is no whole number, or `low` is not below `high`.

    Example:

    >>> str(integer(0, 5))
    'int:0:5'
    """
    return Range(low, high, step, log, whole=True)


def choice(*values):
    """One of the values, all equally likely at first.

    Args:
        *values: two at least: `None`, `bool`, numbers, text and tuples of these.

    Raises:
        ValueError: fewer than two values, or one that is there twice.

    Example:

    >>> str(choice("lars", "sgd"))
    'lars,sgd'
    """
    return Choice(values)


def flag_text(value):
    """A value as `tfscale.config` reads it from a flag, to the last bit.

    Example:

    >>> flag_text((2, 9.0)), flag_text(None), flag_text(True)
    ('2,9.0', 'none', 'true')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(map(flag_text, value))
    return repr(float(value)) if isinstance(value, float) else str(value)


def read_range(text, whole=False, read=str):
    """Reads a range or choices from text.

    Args:
        text: `str`: ``0.8:0.95``, ``0:1:0.25`` (steps), ``log:1:64``, ``int:0:5``,
            ``logint:16:512`` or ``lars,sgd``.
        whole: `bool`, the field takes whole numbers only, so that ``int:`` is not needed.
        read: function of `str` that gives the value of a choice. Defaults to the text itself,
            where two texts of one number are one value.

    Raises:
        ValueError: the text has none of these forms.

    Example:

    >>> read_range("log:1:64") == log_uniform(1, 64)
    True
    """
    words = text.split(":")
    kind = words.pop(0) if words[0] in ("log", "int", "logint") else ""
    if not kind and len(words) == 1:
        values = [word.strip() for word in text.split(",")]
        if len(values) < 2 or "" in values:
            raise ValueError(f"{text!r} is no range; wanted {_FORMS}")
        if read is str:
            _refuse_equal_numbers(values)
        return Choice(tuple(read(value) for value in values))
    try:
        numbers = [float(word) for word in words]
        low, high, *step = numbers
    except ValueError:
        raise ValueError(f"{text!r} is no range; wanted {_FORMS}") from None
    if len(step) > 1:
        raise ValueError(f"{text!r} is no range; wanted {_FORMS}")
    whole = whole or "int" in kind
    if whole:
        low, high, *step = (int(n) if n.is_integer() else n for n in numbers)
    return Range(low, high, *(step or [None]), log="log" in kind, whole=whole)


def _refuse_equal_numbers(texts):
    seen = {}
    for text in texts:
        try:
            first = seen.setdefault(float(text), text)
        except ValueError:
            continue
        if first != text:
            raise ValueError(f"choice {','.join(texts)}: {first} and {text} are one number")


def _kept(value):
    return value if isinstance(value, bool | int | float | str | None) else flag_text(value)
