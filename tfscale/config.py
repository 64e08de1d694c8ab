"""A run is a frozen dataclass made by a Python function, with fields set from the command line.

The function is the record of a run and can call another and change three fields; the command
line changes single fields by name, checked against their annotations.
"""

import dataclasses
import difflib
import sys
import typing
from pathlib import Path

from tfscale.config_types import describe_type, is_flag, read_value, value_name


def field(default, help):
    """A dataclass field with a default and the text that ``--help`` shows for it.

    Args:
        default: the field's value where nothing is given.
        help: `str`, one line: what it is, with its unit.
    """
    return dataclasses.field(default=default, metadata={"help": help})


def override(config, argv):
    """Returns `config` with the fields changed that `argv` names.

    Args:
        config: a dataclass instance. Fields may be `int`, `float`, `str`, `bool`, `Literal`,
            tuples of these, and optional ones of all (the text ``none`` gives `None`).
        argv: `list` of `str`: ``--name=value`` or ``--name value``; for a `bool`, ``--name``,
            ``--noname`` or ``--name=false``. The last of several for one field wins.

    Raises:
        ValueError: names the flag, the bad value, what is expected, and the nearest name.

    Example:

    >>> @dataclasses.dataclass(frozen=True)
    ... class Run:
    ...     epochs: int = field(10, "passes over the data")
    >>> override(Run(), ["--epochs=3"])
    Run(epochs=3)
    """
    types = _types(config)
    changes = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            raise ValueError(f"{word!r} is not a flag; flags are written --name=value")
        flag, equals, text = word[2:].partition("=")
        name = flag
        if flag not in types and is_flag(types.get(flag.removeprefix("no"))):
            name = flag.removeprefix("no")
            if equals:
                raise ValueError(f"--{flag} takes no value, but has {text!r}")
            equals, text = "=", "false"
        if name not in types:
            raise ValueError(f"no flag --{flag}{_nearest(flag, types)}")
        if not equals:
            if is_flag(types[name]):
                text = "true"
            elif not words or words[0].startswith("--"):
                raise ValueError(f"--{name} needs a value: {describe_type(types[name])}")
            else:
                text = words.pop(0)
        try:
            changes[name] = read_value(text, types[name])
        except ValueError:
            raise ValueError(
                f"--{name} has the value {text!r}; expected is {describe_type(types[name])}"
            ) from None
    return dataclasses.replace(config, **changes)


def parse(argv, configs, default=None, program="train.py"):
    """Makes the run that ``--config=NAME`` names and applies the other flags to it.

    Args:
        argv: `list` of `str`, without the program's name.
        configs: mapping of name to a function without arguments that returns a dataclass; the
            first line of its docstring appears in ``--help``.
        default: `str`, the name used without ``--config``. Defaults to `None`: one is required.
        program: `str`, what the usage line shows; a path is shortened.

    Returns:
        The dataclass instance.

    Raises:
        SystemExit: 0 after ``--help``; 2 with one line on standard error after a mistake.

    Example:

    >>> @dataclasses.dataclass(frozen=True)
    ... class Run:
    ...     epochs: int = field(10, "passes over the data")
    >>> parse(["--config=short", "--epochs=3"], {"short": Run})
    Run(epochs=3)
    """
    program = _short_path(program)
    try:
        name, rest = _take_config(list(argv))
        wants_help = "--help" in rest or "-h" in rest
        if name is None:
            name = default if default is not None or len(configs) > 1 else next(iter(configs))
        if name is None and not wants_help:
            raise ValueError(f"--config=NAME is needed; there are: {', '.join(configs)}")
        if name is not None and name not in configs:
            nearest = difflib.get_close_matches(name, configs, n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise ValueError(f"no config {name!r}; there are: {', '.join(configs)}{hint}")
        if wants_help:
            print(help_text(configs, name, program))
            raise SystemExit(0)
        return override(configs[name](), rest)
    except ValueError as error:
        print(f"{program}: {error} (see --help)", file=sys.stderr, flush=True)
        raise SystemExit(2) from None


def help_text(configs, name=None, program="train.py"):
    """The text of ``--help``: the configs, and the flags with the values of config `name`.

    Args:
        configs, program: as in `parse`.
        name: `str`, the config whose values are shown. Defaults to `None`: the first.
    """
    shown = name if name is not None else next(iter(configs))
    config = configs[shown]()
    width = max(map(len, configs))
    lines = [f"usage: {program} [--config=NAME] [--FLAG=VALUE ...]", "", "configs:"]
    for key, function in configs.items():
        summary = (function.__doc__ or "").strip().partition("\n")[0]
        mark = " (default)" if key == name else ""
        lines.append(f"  {key:<{width}}  {summary}{mark}".rstrip())
    lines += ["", f"flags, with their values in {shown!r}:"]
    types = _types(config)
    for item in _fields(config):
        kind = types[item.name]
        form = f"--[no]{item.name}" if is_flag(kind) else f"--{item.name}={value_name(kind)}"
        text = item.metadata.get("help", "")
        current = _show(getattr(config, item.name))
        lines += [f"  {form}", f"      {text} [{current}]".replace("  [", "  [")]
    return "\n".join(lines)


def describe(config):
    """The fields and values of a config as one aligned table; ``*`` marks what is not default.

    Example:

    >>> @dataclasses.dataclass(frozen=True)
    ... class Run:
    ...     epochs: int = 10
    ...     seed: int = 0
    >>> print(describe(Run(epochs=3)))
      epochs  3  *
      seed    0
    """
    rows = []
    for item in _fields(config):
        value = getattr(config, item.name)
        changed = item.default is not dataclasses.MISSING and value != item.default
        rows.append((item.name, _show(value), "*" if changed else ""))
    names = max(len(name) for name, _, _ in rows)
    values = max(len(value) for _, value, _ in rows)
    return "\n".join(f"  {n:<{names}}  {v:<{values}}  {mark}".rstrip() for n, v, mark in rows)


def _fields(config):
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise TypeError(f"a config is a dataclass instance, not {config!r}")
    return [item for item in dataclasses.fields(config) if item.init]


def _types(config):
    hints = typing.get_type_hints(type(config))
    return {item.name: hints[item.name] for item in _fields(config)}


def _take_config(words):
    """Takes ``--config`` out of the words; the last one wins."""
    name, rest = None, []
    while words:
        word = words.pop(0)
        flag, equals, text = word.partition("=")
        if flag != "--config":
            rest.append(word)
        elif equals:
            name = text
        elif words and not words[0].startswith("--"):
            name = words.pop(0)
        else:
            raise ValueError("--config needs a name")
    return name, rest


def _nearest(flag, types):
    names = [*types, *(f"no{name}" for name, kind in types.items() if is_flag(kind)), "config"]
    nearest = difflib.get_close_matches(flag.replace("-", "_"), names, n=1)
    return f"; did you mean --{nearest[0]}?" if nearest else f"; there are: {', '.join(types)}"


def _show(value):
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "nothing"
    return str(value) if value != "" else "nothing"


def _short_path(program):
    path = Path(program)
    try:
        return str(path.relative_to(Path.cwd())) if path.is_absolute() else program
    except ValueError:
        return path.name
