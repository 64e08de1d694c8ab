"""What is searched: ranges by field of a run, checked against the run's dataclass."""

import difflib
import importlib
import math
import sys
import traceback
import types
import typing
from collections.abc import Mapping
from pathlib import Path

from tfscale.config_types import describe_type, read_value
from tfscale.tuning.ranges import Choice, Range, flag_text, read_range

# What the search itself gives to every trial.
RESERVED = "model_dir"


class Space:
    """The hyperparameters of a search.

    Args:
        space: mapping of field to range (`uniform`, `log_uniform`, `integer`, `choice`, or text
            such as ``"log:1:64"``), or a function of an Optuna trial that returns ``{field:
            value}``.
        fields: `dict` of the run's fields and their annotations. None: unknown, not checked.
        fixed: names of the fields that the program's own flags set.

    Raises:
        ValueError: names the field, what is wrong with it, and the nearest name.

    Example:

    >>> space = Space({"momentum": "0.8:0.95"}, {"momentum": float})
    >>> space.describe()
    {'momentum': '0.8:0.95'}
    """

    def __init__(self, space, fields=None, fixed=()):
        self._fields, self._fixed = fields, set(fixed)
        self._function = space if callable(space) else None
        if self._function is None:
            if not isinstance(space, Mapping):
                raise ValueError(
                    f"space: {space!r} is neither a dict of field to range nor a function of an "
                    "Optuna trial"
                )
            if not space:
                raise ValueError("the space is empty: name at least one field and its range")
            self._ranges = {name: self._checked(name, item) for name, item in space.items()}

    def describe(self):
        """The ranges as text by field; of a function, its name."""
        if self._function is not None:
            name = getattr(self._function, "__qualname__", type(self._function).__name__)
            return {"function": f"{getattr(self._function, '__module__', '?')}:{name}"}
        return {name: str(item) for name, item in self._ranges.items()}

    def draw(self, trial):
        """Draws values for an Optuna trial: ``{field: value}``.

        Raises:
            ValueError: the function failed, or gave something that the run cannot take.
        """
        if self._function is None:
            return {name: item.suggest(trial, name) for name, item in self._ranges.items()}
        drawn = self._call(trial)
        if not isinstance(drawn, dict) or not drawn:
            raise ValueError(
                f"the space {self.describe()['function']} returned {drawn!r}; wanted a dict of "
                "field to value"
            )
        for name, value in drawn.items():
            self._check_name(name)
            self._check_value(name, value)
        return drawn

    def _call(self, trial):
        from optuna.exceptions import OptunaError

        try:
            return self._function(trial)
        except OptunaError:
            raise  # Of the storage, or that the trial is another search's by now.
        except Exception as error:
            # The second is the function's own; one written in C has none.
            *_, place = traceback.extract_tb(error.__traceback__)[:2]
            raise ValueError(
                f"the space {self.describe()['function']} failed at line {place.lineno} of "
                f"{place.filename}: {type(error).__name__}: {error}"
            ) from error

    def _checked(self, name, item):
        self._check_name(name)
        annotation = self._fields[name] if self._fields else None
        if isinstance(item, str):
            read = str if annotation is None else lambda text: self._read(name, text)
            kinds = _kinds(annotation)
            try:
                item = read_range(item, whole=int in kinds and float not in kinds, read=read)
            except ValueError as error:
                raise ValueError(f"space, {name}: {error}") from None
        if isinstance(item, Choice):
            for value in item.values:
                self._check_value(name, value)
        elif isinstance(item, Range):
            self._check_range(name, item, annotation)
        else:
            raise ValueError(
                f"space, {name}: {item!r} is no range; wanted uniform(0.8, 0.95), log_uniform(1, "
                "64), integer(0, 5), choice('lars', 'sgd') or their text"
            )
        return item

    def _check_name(self, name):
        if name == RESERVED:
            raise ValueError(f"space: each trial gets a {RESERVED} of its own from the search")
        if name in self._fixed:
            raise ValueError(
                f"space: {name} is fixed by a flag of the program, and has a range as well; "
                "remove one of them"
            )
        if self._fields is not None and name not in self._fields:
            nearest = difflib.get_close_matches(str(name), self._fields, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]!r}?" if nearest else ""
            raise ValueError(
                f"space: the run has no field {name!r}; "
                f"{hint or 'it has ' + ', '.join(self._fields)}"
            )

    def _check_range(self, name, item, annotation):
        kinds = _kinds(annotation)
        if annotation is None or float in kinds or (item.whole and int in kinds):
            return
        wanted = describe_type(annotation)
        advice = "integer(...)" if int in kinds else "choice(...)"
        raise ValueError(
            f"space, {name}: the range {item} gives numbers, and the field is {wanted}; use "
            f"{advice}"
        )

    def _check_value(self, name, value):
        if self._fields is None:
            return
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"space, {name}: {value!r} is no finite number")
        read = self._read(name, flag_text(value))
        if read != (tuple(value) if isinstance(value, list) else value):
            raise ValueError(
                f"space, {name}: {value!r} would reach the run as {read!r}; the field is "
                f"{describe_type(self._fields[name])}"
            )

    def _read(self, name, text):
        try:
            return read_value(text, self._fields[name])
        except ValueError:
            raise ValueError(
                f"space, {name}: {text!r} does not fit; the field is "
                f"{describe_type(self._fields[name])}"
            ) from None


def read_space(words):
    """The space that words of a command line name.

    Args:
        words: sequence of `str`: ``FIELD=RANGE`` each, or one ``MODULE:NAME`` of a dict or a
            function.

    Raises:
        ValueError: says what is wrong with which word.

    Example:

    >>> read_space(["momentum=0.8:0.95", "optimizer=lars,sgd"])
    {'momentum': '0.8:0.95', 'optimizer': 'lars,sgd'}
    """
    if len(words) == 1 and "=" not in words[0] and ":" in words[0]:
        return _load(words[0])
    space = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.removeprefix("--")
        if not equals or not name:
            raise ValueError(
                f"--space: {word!r} is no FIELD=RANGE, such as momentum=0.8:0.95; the program "
                "comes before --space, its own flags after --"
            )
        if name in space:
            raise ValueError(f"--space: {name} has two ranges, {space[name]} and {text}")
        space[name] = text
    return space


def _load(word):
    module, _, name = word.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module)
    except Exception as error:  # The module's own, too.
        raise ValueError(
            f"--space={word}: cannot import {module!r}: {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.pop(0)
    if not hasattr(found, name):
        raise ValueError(f"--space={word}: {module} has no {name!r}")
    return getattr(found, name)


def _kinds(annotation):
    """The types that an annotation allows, unions taken apart."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return {kind for member in typing.get_args(annotation) for kind in _kinds(member)}
    return {annotation} if isinstance(annotation, type) else set()
