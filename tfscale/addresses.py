"""Addresses of workers: ``host:port`` text, checked before TensorFlow sees it."""

import ipaddress
import re

_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")


def split_address(address):
    """Splits ``"host:port"`` into its parts.

    Args:
        address: `str`, ``host:port``; an IPv6 host stands in brackets, ``[::1]:2222``.

    Returns:
        ``(host, port)``: `str` without brackets, and `int`.

    Raises:
        ValueError: says what is wrong with the address and how to write it.

    Example:

    >>> split_address("[::1]:2222")
    ('::1', 2222)
    """
    text = address.strip()
    if "://" in text:
        scheme, rest = text.split("://", 1)
        raise ValueError(f"has a scheme: write {rest.rstrip('/')!r} without '{scheme}://'")
    if "," in text:
        raise ValueError("has a comma: write a list of addresses, each in its own quotes")
    if re.search(r"\s", text):
        raise ValueError("has a space inside")
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError("has no closing ']' before the port: write [::1]:2222")
        port = rest[1:]
        _check_ipv6(host)
    elif text.count(":") > 1:
        raise ValueError("looks like IPv6 without brackets: write [::1]:2222")
    else:
        host, _, port = text.partition(":")
        if not host:
            raise ValueError("has no host: write host:port, for example 10.0.0.1:2222")
        if not _HOST_NAME.fullmatch(host):
            raise ValueError(f"has the host {host!r}, which is neither a name nor an IP address")
    if not port:
        raise ValueError("has no port: write host:port, for example 10.0.0.1:2222")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise ValueError(f"has the port {port!r}: a port is a number from 1 to 65535")
    return host, int(port)


def join_address(host, port):
    """The inverse of `split_address`: brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_ipv6(host):
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        raise ValueError(f"has {host!r} in brackets, which is not an IPv6 address") from None
