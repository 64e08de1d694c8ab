"""Rates and sizes as people write them: ``200mbit``, ``4mib``."""

import re

_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_BYTES = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def parse_rate(text):
    """Returns bits per second, or None for ``none``: a link that is not shaped.

    Args:
        text: `str`, a number and ``bit``, ``kbit``, ``mbit`` or ``gbit`` (per second, powers
            of 1000), or ``none``.

    Raises:
        ValueError: for anything else, bytes per second included: ``tc`` calls those ``mbps``.

    Example:
        >>> parse_rate("1.5gbit")
        1500000000
    """
    text = str(text).strip().lower()
    if text == "none":
        return None
    bits = _value(text, _BITS)
    if bits < 1000:
        raise ValueError(
            f"rate {text!r} is not a rate: write a number and kbit, mbit or gbit (bits a second, "
            "at least 1kbit), for example 200mbit or 1.5gbit, or none for links without a limit"
        )
    return bits


def format_rate(bits_per_second):
    """Returns ``"191.2 Mbit/s"``; None is ``"unshaped"``."""
    if bits_per_second is None:
        return "unshaped"
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits_per_second >= size:
            return f"{bits_per_second / size:.4g} {unit}"
    return f"{bits_per_second:.4g} bit/s"


def parse_bytes(text):
    """Returns a number of bytes from ``4mib``, ``512kib`` or ``1000``.

    Raises:
        ValueError: for anything else, or less than one byte.
    """
    size = _value(str(text).strip().lower(), _BYTES)
    if size < 1:
        raise ValueError(
            f"{text!r} is not a size: write a number of bytes or one with kib, mib or gib, for "
            "example 4mib"
        )
    return size


def format_bytes(size):
    """Returns ``"4mib"`` for what divides evenly, else the number: `parse_bytes` reads it back."""
    for unit in ("gib", "mib", "kib"):
        if size % _BYTES[unit] == 0 and size:
            return f"{size // _BYTES[unit]}{unit}"
    return str(size)


def _value(text, units):
    """What a number and its unit come to, rounded; 0 for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]*)", text)
    return round(float(match[1]) * units[match[2]]) if match and match[2] in units else 0
