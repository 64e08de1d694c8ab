"""TCP ports of this machine: listening as TensorFlow's server will, and ports kept for a job."""

import contextlib
import random
import socket
from pathlib import Path

# Ports that the system hands out by itself begin higher up, by default at 32768 (Linux) or 49152.
_FIRST, _LAST = 20000, 29999
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class PortReservation:
    """Ports that no other job of this package takes until `close`, or the end of the process.

    The UDP port of the same number is the lock: the system frees it with the process, however
    that ends, and it excludes all users of the machine. The TCP ports themselves stay unbound,
    for TensorFlow's servers.

    Example:

    >>> with reserve_ports(2) as reservation:
    ...     len(reservation.ports)
    2
    """

    def __init__(self, locks):
        self._locks = locks
        self.ports = tuple(lock.getsockname()[1] for lock in locks)

    def close(self):
        for lock in self._locks:
            lock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def reserve_ports(count, first_port=None):
    """Finds `count` free TCP ports and keeps them from other jobs.

    Args:
        count: `int`, how many.
        first_port: `int`, take exactly ``first_port ... first_port + count - 1``. Defaults to
            `None`: any free ones, outside of the range from which the system picks the ports
            of outgoing connections.

    Returns:
        A `PortReservation`.

    Raises:
        OSError: a port asked for is taken (the message names it and the worker), or no free
            ones are left.
    """
    with contextlib.ExitStack() as stack:
        locks = []
        if first_port is None:
            candidates = _candidates()
            random.SystemRandom().shuffle(candidates)
        else:
            candidates = range(first_port, first_port + count)
        for port in candidates:
            if len(locks) == count:
                break
            lock = _lock(port)
            if lock is not None:
                locks.append(stack.enter_context(lock))
            elif first_port is not None:
                raise OSError(
                    f"port {port}, for worker {port - first_port}, is in use by another program "
                    "or job on this machine; choose another first port"
                )
        if len(locks) < count:
            raise OSError(f"only {len(locks)} of {count} free ports found on this machine")
        stack.pop_all()
        return PortReservation(locks)


def _candidates():
    try:
        low, high = map(int, _EPHEMERAL_RANGE.read_text().split())
    except (OSError, ValueError):
        low, high = _LAST + 1, 65535
    candidates = [port for port in range(_FIRST, _LAST + 1) if not low <= port <= high]
    return candidates or list(range(_FIRST, _LAST + 1))


def _lock(port):
    """Locks `port` if it is free, else returns `None`."""
    lock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        lock.bind(("127.0.0.1", port))
    except OSError:
        lock.close()
        return None
    if port_is_free(port):
        return lock
    lock.close()
    return None


def open_listener(host_addresses, port):
    """Listens on `port` the way TensorFlow's server will, which takes every interface.

    Args:
        host_addresses: the ``getaddrinfo`` entries of the worker's own host. If all of them are
            loopback, only loopback listens; the port must be free on every interface still.
        port: `int`.

    Returns:
        A non-blocking listening socket.

    Raises:
        OSError: the port is taken, or not allowed.
    """
    wildcard = _bind_everywhere(port)
    local = [entry for entry in host_addresses if _is_loopback(entry[4][0])]
    if local and len(local) == len(host_addresses):
        wildcard.close()
        family, _, _, _, address = local[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address[0], port))
        except OSError:
            listener.close()
            raise
    else:
        listener = wildcard
    try:
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _bind_everywhere(port):
    families = [(socket.AF_INET, "0.0.0.0")]
    if socket.has_dualstack_ipv6():
        families.insert(0, (socket.AF_INET6, "::"))
    family, host = families[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Connections of an ended job linger on the port for a minute; they are no obstacle.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


def port_is_free(port):
    """Whether TensorFlow's server could take `port` now."""
    try:
        _bind_everywhere(port).close()
    except OSError:
        return False
    return True


def _is_loopback(address):
    return address == "::1" or address.startswith("127.")


def is_local(host_addresses):
    """Whether any of the ``getaddrinfo`` entries belongs to this machine."""
    for family, _, _, _, address in host_addresses:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            try:
                sock.bind((address[0], 0, *address[2:]))
            except OSError:
                continue
            return True
    return False
