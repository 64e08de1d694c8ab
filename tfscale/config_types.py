"""Field annotations of a run: reading a value from text, and saying what is expected."""

import math
import types
import typing

_TRUE = ("true", "yes", "1", "on")
_FALSE = ("false", "no", "0", "off")
_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def is_flag(annotation):
    """Whether the field is set by its bare name."""
    return annotation is bool


def read_value(text, annotation):
    """Reads `text` as the type of an annotation.

    Args:
        text: `str`.
        annotation: `int`, `float`, `str`, `bool`, `Literal`, ``tuple[X, ...]``, ``tuple[X, Y]``,
            or a union of these with each other and `None`.

    Raises:
        ValueError: the text does not fit.
        TypeError: the annotation cannot be read from text.

    Example:

    >>> read_value("2,3", tuple[int, ...] | None)
    (2, 3)
    """
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return _read_union(text, typing.get_args(annotation))
    if origin is typing.Literal:
        return _read_literal(text, typing.get_args(annotation))
    if origin is tuple:
        return _read_tuple(text, typing.get_args(annotation))
    if annotation is type(None):
        if text.lower() == "none":
            return None
    elif annotation is bool:
        if text.lower() in _TRUE + _FALSE:
            return text.lower() in _TRUE
    elif annotation is int:
        return _read_int(text)
    elif annotation is float:
        value = float(text)
        if not math.isnan(value):
            return value
    elif annotation is str:
        return text
    else:
        raise TypeError(f"a field of type {annotation} cannot be set from the command line")
    raise ValueError(text)


def _read_int(text):
    try:
        return int(text)
    except ValueError:
        value = float(text)  # 1e6 is a whole number, too.
        if not value.is_integer():
            raise ValueError(text) from None
        return int(value)


def _read_union(text, members):
    # Everything is text, so that comes last.
    for member in sorted(members, key=lambda member: (member is str, member is not type(None))):
        try:
            return read_value(text, member)
        except (ValueError, OverflowError):
            continue
    raise ValueError(text)


def _read_literal(text, choices):
    for choice in choices:
        if text == ("none" if choice is None else str(choice)):
            return choice
    raise ValueError(text)


def _read_tuple(text, members):
    text = text.strip()
    if text[:1] + text[-1:] in ("()", "[]"):
        text = text[1:-1]
    words = [word.strip() for word in text.split(",")]
    if words[-1] == "":
        words.pop()  # "3," and "" are tuples of one and none.
    if len(members) == 2 and members[1] is Ellipsis:
        members = members[:1] * len(words)
    if len(members) != len(words):
        raise ValueError(text)
    return tuple(read_value(word, kind) for word, kind in zip(words, members, strict=True))


def describe_type(annotation):
    """What a value of the annotation may be, in words."""
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        others = [describe_type(member) for member in members if member is not type(None)]
        none = ["none"] if type(None) in members else []
        return " or ".join([*others, *none])
    if origin is typing.Literal:
        return "one of " + ", ".join("none" if c is None else str(c) for c in members)
    if origin is tuple:
        if len(members) == 2 and members[1] is Ellipsis:
            return f"values separated by commas, each {describe_type(members[0])}"
        return f"{len(members)} values separated by commas ({value_name(annotation)})"
    return _NAMES.get(annotation, str(annotation))


def value_name(annotation):
    """A short placeholder for usage lines: ``INT``, ``A|B``, ``INT,INT``."""
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return "|".join(value_name(member) for member in members)
    if origin is typing.Literal:
        return "|".join("none" if choice is None else str(choice) for choice in members)
    if origin is tuple:
        if len(members) == 2 and members[1] is Ellipsis:
            return f"{value_name(members[0])},..."
        return ",".join(map(value_name, members))
    if annotation is type(None):
        return "none"
    return getattr(annotation, "__name__", str(annotation)).upper()
