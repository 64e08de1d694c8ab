"""The dispatcher of a tf.data service, with settings that the public configuration leaves out."""

import tensorflow as tf
from tensorflow.core.protobuf import service_config_pb2

_GONE_MS, _CHECK_MS = 10_000, 5_000


def dispatch_server(port):
    """Starts a `tf.data.experimental.service.DispatchServer` that gives memory back.

    With dynamic sharding TensorFlow keeps what it has prepared for an iterator that nobody reads
    any more, about five elements each, until the data workers end, unless
    ``gc_dynamic_sharding_jobs`` is set.

    Args:
        port: `int`.

    Raises:
        tf.errors.OpError: if the port is taken.
    """
    return tf.data.experimental.service.DispatchServer(
        service_config_pb2.DispatcherConfig(
            port=port,
            protocol="grpc",
            worker_timeout_ms=_GONE_MS,
            client_timeout_ms=6 * _GONE_MS,
            job_gc_check_interval_ms=_CHECK_MS,
            job_gc_timeout_ms=_GONE_MS,
            gc_dynamic_sharding_jobs=True,
        )
    )
