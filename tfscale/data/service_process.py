"""One process of a data service: the dispatcher, or a data worker; started by `data.service`.

It says in one line that it is ready, and ends when its standard input does: so that none is left
behind when the process that started it is killed.
"""

import os
import sys

import tensorflow as tf

from tfscale.addresses import join_address
from tfscale.data import native, service_address
from tfscale.distribute._tf_private import data_service

_HEARTBEAT_MS = 2_000


def main(role, address, host=""):
    """Serves until the end of standard input.

    Args:
        role: "dispatcher" or "worker".
        address: port of the dispatcher to start, or "host:port" of the one to serve.
        host: `str`, how others reach this worker.
    """
    # Loads the ops that the datasets of a trainer may hold. The dispatcher builds them, too.
    native.available()
    if role == "dispatcher":
        server = data_service.dispatch_server(int(address))
    else:
        service_address.wait_for(address)  # it may have been started together with this one
        service = tf.data.experimental.service
        server = service.WorkerServer(
            service.WorkerConfig(
                dispatcher_address=address,
                worker_address=join_address(host, "%port%"),
                data_transfer_address=join_address(host, "%dts_port%"),
                protocol="grpc",
                heartbeat_interval_ms=_HEARTBEAT_MS,
            )
        )
    print("ready", flush=True)
    sys.stdin.buffer.read()
    del server
    os._exit(0)  # TensorFlow may wait for a reader that is gone


if __name__ == "__main__":
    main(*sys.argv[1:])
