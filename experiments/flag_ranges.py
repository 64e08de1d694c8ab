"""What the flags of the experiments may hold: kinds for argparse's ``type=``, which names the flag.

So what cannot be trained with is found before the data are made, and what would be trained twice
is not counted twice.
"""

import argparse
import math


def _kind(convert, holds, wanted):
    """Returns a function of a flag's text that returns the value, or says what it is not."""

    def read(text):
        try:
            value = convert(text)
        except ValueError:
            value = math.nan  # in no range
        if not holds(value):
            raise argparse.ArgumentTypeError(f"{text!r} is no {wanted}")
        return value

    return read


def whole(lowest):
    """Returns the kind of whole numbers from `lowest` on."""
    return _kind(int, lambda value: value >= lowest, f"whole number from {lowest} on")


COUNT = whole(1)
POSITIVE = _kind(float, lambda value: 0 < value < math.inf, "finite number above 0")
NOT_NEGATIVE = _kind(float, lambda value: 0 <= value < math.inf, "finite number from 0 on")
SHARE = _kind(float, lambda value: 0 <= value <= 1, "number from 0 to 1")
SHARE_ABOVE_0 = _kind(float, lambda value: 0 < value <= 1, "number above 0 and at most 1")
BELOW_1 = _kind(float, lambda value: 0 <= value < 1, "number from 0 to below 1")


def listed(kind, may_repeat=False):
    """Returns the kind of lists with commas; of tuples of what `kind` returns.

    Args:
        kind: of this module.
        may_repeat: `bool`, whether a value may be there twice. A list of what is to be run
            (default) may not: a run would count twice.
    """

    def read(text):
        try:
            values = tuple(kind(part) for part in text.split(","))
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(
                f"{text!r}: expected numbers with commas between them, but {error}"
            ) from None
        if not may_repeat:
            _check_once(text, values)
        return values

    return read


def names(allowed):
    """Returns the kind of lists with commas of some of the names `allowed`, each once."""

    def read(text):
        values = tuple(text.split(","))
        if unknown := [name for name in values if name not in allowed]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} not among {', '.join(allowed)}")
        _check_once(text, values)
        return values

    return read


def _check_once(text, values):
    for value in values:
        if values.count(value) > 1:
            raise argparse.ArgumentTypeError(f"{text!r} has {value} twice; name each once")
