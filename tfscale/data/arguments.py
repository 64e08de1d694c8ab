"""Checks of arguments: each error names the argument, its value, and what is allowed."""

import math
import numbers

import tensorflow as tf

INT64 = -(2**63), 2**63 - 1


def integer(name, value, low=None, high=None):
    """Returns `value` as an `int`.

    Raises:
        TypeError: if it is no integer; True, 8.0 and "8" are none.
        ValueError: if it is outside ``[low, high]``, where None is no bound.

    Example:
        >>> integer("quality", 95, 1, 100)
        95
    """
    wanted = "an integer"
    if high is not None:
        wanted += f" in [{low}, {high}]"
    elif low is not None:
        wanted += f" of at least {low}"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}={value!r} is no integer; wanted {wanted}")
    if (low is not None and value < low) or (high is not None and value > high):
        raise ValueError(f"{name}={value!r}; wanted {wanted}")
    return int(value)


def number(name, value, interval):
    """Returns `value` as a `float`, if it lies in `interval`, a string such as "(0, 1]".

    Raises:
        TypeError: if it is no number.
        ValueError: if it is outside, or not finite.

    Example:
        >>> number("crop_fraction", 0.875, "(0, 1]")
        0.875
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}={value!r} is no number; wanted one in {interval}")
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = value >= low if interval[0] == "[" else value > low
    below = value <= high if interval[-1] == "]" else value < high
    if not (above and below and math.isfinite(value)):
        raise ValueError(f"{name}={value!r} is outside {interval}")
    return float(value)


def ascending(name, value, interval):
    """Returns `value` as a pair (low, high) of numbers in `interval`, the smaller one first.

    Raises:
        TypeError: if it is no pair of numbers.
        ValueError: if one is outside the interval, or the larger one comes first.

    Example:
        >>> ascending("area_range", (0.5, 1), "(0, 1]")
        (0.5, 1.0)
    """
    if isinstance(value, str) or not hasattr(value, "__len__") or len(value) != 2:
        raise TypeError(f"{name}={value!r} is no pair; wanted (low, high) in {interval}")
    low, high = (number(f"{name}[{i}]", end, interval) for i, end in enumerate(value))
    if low > high:
        raise ValueError(f"{name}={value!r}: {low} > {high}; wanted (low, high), low <= high")
    return low, high


def choice(name, value, allowed):
    """Raises `ValueError` unless `value` is one of `allowed`.

    Example:
        >>> choice("on_error", "skip", ("raise", "skip"))
        'skip'
    """
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is none of {', '.join(map(repr, allowed))}")
    return value


def height_and_width(image_size):
    """Returns (height, width) of an `int` or a pair.

    Raises:
        TypeError, ValueError: unless they are integers of at least 1.

    Example:
        >>> height_and_width(224)
        (224, 224)
    """
    if isinstance(image_size, tuple | list):
        if len(image_size) != 2:
            raise ValueError(f"image_size={image_size!r} is neither an integer nor (height, width)")
        return tuple(integer(f"image_size[{i}]", side, 1) for i, side in enumerate(image_size))
    return (integer("image_size", image_size, 1),) * 2


def input_context(value):
    """Returns a `tf.distribute.InputContext`: `value`, or that of a single worker for None.

    Raises:
        TypeError: if it is something else.
    """
    if value is None:
        return tf.distribute.InputContext()
    if not isinstance(value, tf.distribute.InputContext):
        raise TypeError(
            f"input_context={value!r} is no tf.distribute.InputContext; wanted the argument that "
            "strategy.distribute_datasets_from_function gives to its function, or None"
        )
    return value
