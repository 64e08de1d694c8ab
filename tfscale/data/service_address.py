"""Where a data service is, and whether it answers: TensorFlow itself would wait for ever."""

import logging
import os
import socket
import time

from tfscale.addresses import join_address, split_address
from tfscale.rendezvous.proxies import proxy_warning

VARIABLE = "TFSCALE_DATA_SERVICE"
_FIRST_MENTION, _PAUSE = 5.0, 0.2  # seconds

logger = logging.getLogger("tfscale")


def resolve(data_service):
    """Returns the "host:port" of the data service to use, or None.

    Args:
        data_service: "grpc://host:port" or "host:port"; None for what the environment variable
            ``TFSCALE_DATA_SERVICE`` says, which `launch.local --data_service` sets.

    Raises:
        TypeError, ValueError: if it is no such address.

    Example:
        >>> resolve("grpc://10.0.0.7:5050")
        '10.0.0.7:5050'
    """
    name = "data_service"
    if data_service is None:
        name, data_service = f"environment variable {VARIABLE}", os.environ.get(VARIABLE, "")
        if not data_service.strip():
            return None
    if not isinstance(data_service, str):
        raise TypeError(f'{name}={data_service!r}; wanted None or "grpc://host:port"')
    try:
        return join_address(*split_address(data_service.strip().removeprefix("grpc://")))
    except ValueError as error:
        raise ValueError(
            f'{name}={data_service!r} {error}; wanted "grpc://host:port", as '
            "`python -m tfscale.data.service` prints it"
        ) from None


def answers(address, timeout=2.0):
    """Returns whether anything listens at "host:port"."""
    try:
        socket.create_connection(split_address(address), timeout).close()
    except OSError:
        return False
    return True


def wait_for(address, seconds=60.0):
    """Returns when something listens at "host:port".

    A launcher starts the service together with the workers: it may need its time.

    Args:
        address: `str`.
        seconds: `float`, how long to wait. After 5 s a line says so.

    Raises:
        ConnectionError: if nothing does, or a proxy is in between.
    """
    proxy = proxy_warning([split_address(address)[0]], os.environ)
    if proxy:
        raise ConnectionError(f"data service at {address}: {proxy}")
    started, mentioned = time.monotonic(), False
    while not answers(address):
        waited = time.monotonic() - started
        if waited > seconds:
            raise ConnectionError(
                f"no data service answers at {address} after {waited:.0f} s. Is it running "
                "(python -m tfscale.data.service --help) and may this machine reach it? Without "
                f"one, unset {VARIABLE} and data_service"
            )
        if waited > _FIRST_MENTION and not mentioned:
            logger.warning("waiting for the data service at %s, up to %.0f s", address, seconds)
            mentioned = True
        time.sleep(_PAUSE)
