"""Checks of optimizer and schedule arguments: each names the argument, its value and the range."""

import numbers

import numpy as np
import tensorflow as tf

from tfscale._keras import keras

_LARGEST = float(np.finfo(np.float32).max)


def number(name, value, *, above=None, at_least=None, below=None):
    """Returns `value` as a `float`, or raises a `ValueError` that says what is allowed."""
    allowed = [
        f"{word} {bound}"
        for word, bound in (("above", above), ("at least", at_least), ("below", below))
        if bound is not None
    ]
    valid = (
        isinstance(value, numbers.Real)
        and not isinstance(value, bool)
        and abs(value) <= _LARGEST  # nor NaN
        and (above is None or value > above)
        and (at_least is None or value >= at_least)
        and (below is None or value < below)
    )
    if not valid:
        if isinstance(value, numbers.Real) and abs(value) > _LARGEST:
            allowed.append("within float32's range")
        raise ValueError(f"{name} must be a number {' and '.join(allowed)}; got {value!r}.")
    return float(value)


def integer(name, value, *, at_least):
    """Returns `value` as an `int`, or raises a `ValueError` that says what is allowed."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < at_least:
        raise ValueError(f"{name} must be an integer of at least {at_least}; got {value!r}.")
    return int(value)


def choice(name, value, allowed):
    """Returns `value` if it is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}.")
    return value


def learning_rate(name, value):
    """Returns a schedule of the Keras in force as it is and a number as a `float`."""
    if isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
        return value
    if callable(value):
        raise ValueError(
            f"{name} must be a number or a keras.optimizers.schedules.LearningRateSchedule of the "
            f"Keras in force ({keras.__name__}); got {value!r} from {type(value).__module__}. "
            "Take keras by `from tfscale import keras`."
        )
    return number(name, value, at_least=0.0)


def momentum(name, value):
    """Returns a schedule of the Keras in force as it is and a number in [0, 1) as a `float`."""
    if not callable(value):
        return number(name, value, at_least=0.0, below=1.0)
    schedule = learning_rate(name, value)
    for each in _known_values(schedule):
        number(f"{name}, a {type(value).__name__},", each, at_least=0.0, below=1.0)
    return schedule


def _known_values(schedule):
    """Values that a schedule takes: its first one, and those that it is made of."""
    inner, steps = getattr(schedule, "schedule", None), [0]
    if inner is not None:  # a LinearWarmup, which ends where the other schedule is first seen
        steps.append(schedule.warmup_steps)
    with tf.init_scope():
        found = [float(schedule(tf.constant(step, tf.int64))) for step in steps]
    for part in (schedule, inner):
        values = getattr(part, "values", None)
        found += values if isinstance(values, (list, tuple)) else []
    return found
