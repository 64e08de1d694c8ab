"""Proxy variables and gRPC: a proxy that swallows the traffic between workers.

TensorFlow's workers talk gRPC, whose C++ core reads only the lower-case variables
``grpc_proxy``, ``https_proxy``, ``http_proxy``, and for exceptions ``no_grpc_proxy``, or else
``no_proxy``. It sends even loopback traffic to the proxy, does not know ``no_proxy=*``, and
waits for ever when the proxy does not answer (tensorflow/tensorflow#24887, grpc/grpc#11896).
"""

import ipaddress

_PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTION_VARIABLES = ("no_grpc_proxy", "no_proxy")


def proxy_warning(hosts, environ):
    """Says which hosts gRPC would reach through a proxy, and how to exempt them.

    Args:
        hosts: iterable of `str`, names or addresses without ports.
        environ: mapping of environment variables.

    Returns:
        One line of text, or `None` where all is well.

    Example:

    >>> proxy_warning(["10.0.0.2"], {"http_proxy": "http://proxy:3128"})
    "http_proxy is set to 'http://proxy:3128' and gRPC would send the traffic with 10.0.0.2 to \
that proxy, where workers wait for ever; add it: export no_proxy=10.0.0.2"
    """
    proxy = next((name for name in _PROXY_VARIABLES if environ.get(name)), None)
    if proxy is None:
        return None
    captured = [host for host in dict.fromkeys(hosts) if not _is_exempt(host, environ)]
    if not captured:
        return None
    shown = ", ".join(captured[:5]) + (f" and {len(captured) - 5} more" if captured[5:] else "")
    variable = _exception_variable(environ)
    value = _extended(environ.get(variable, ""), captured)
    star = " ('*' means nothing to gRPC)" if "*" in _entries(environ.get(variable, "")) else ""
    # The value may hold a password before the host.
    address = environ[proxy].rpartition("@")[2]
    return (
        f"{proxy} is set to {address!r} and gRPC would send the traffic with {shown} to that "
        f"proxy, where workers wait for ever{star}; add {'them' if captured[1:] else 'it'}: "
        f"export {variable}={value}"
    )


def exempt(hosts, environ):
    """The variables to set so that no proxy stands between the workers.

    Args:
        hosts: iterable of `str`, names or addresses without ports.
        environ: mapping of environment variables; entries already there are kept.

    Returns:
        `dict` of ``no_proxy`` and ``NO_PROXY`` (which other programs read), and
        ``no_grpc_proxy`` where that is set, since gRPC then ignores ``no_proxy``.
    """
    hosts = list(dict.fromkeys(hosts))
    current = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    changes = dict.fromkeys(("no_proxy", "NO_PROXY"), _extended(current, hosts))
    if environ.get("no_grpc_proxy"):
        changes["no_grpc_proxy"] = _extended(environ["no_grpc_proxy"], hosts)
    return changes


def _exception_variable(environ):
    return next((name for name in _EXCEPTION_VARIABLES if environ.get(name)), "no_proxy")


def _entries(value):
    return [entry.strip() for entry in value.split(",") if entry.strip()]


def _extended(value, hosts):
    entries = _entries(value)
    return ",".join([*entries, *(host for host in hosts if host not in entries)])


def _is_exempt(host, environ):
    entries = _entries(environ.get(_exception_variable(environ), ""))
    return any(_matches(host.lower(), entry.lower()) for entry in entries)


def _matches(host, entry):
    """Whether gRPC exempts `host` for `entry`: the name, a suffix of whole labels, or a subnet."""
    suffix = entry.lstrip(".")
    if suffix and (host == suffix or host.endswith("." + suffix)):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
