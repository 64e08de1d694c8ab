"""TensorFlow's runtime: has it started, and the key-value store that its cluster shares."""

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import device as device_lib
from tensorflow.python.ops import resource_variable_ops


def runtime_started():
    """True once TensorFlow has initialised its devices; they can't be configured after that."""
    return context.context()._context_handle is not None


def same_device(left, right):
    """True if two device strings name the same device, as far as both are specified."""
    left, right = (device_lib.DeviceSpec.from_string(d) for d in (left, right))
    return left.make_merged_spec(right) == right.make_merged_spec(left)


def raw_variable(initial_value, device, dtype=tf.float32):
    """Returns a variable of one device that no strategy mirrors; may be called while tracing.

    Args:
        initial_value: NumPy array or list; its shape is the variable's.
        device: `str`.
        dtype: `tf.DType`.
    """
    # Under a strategy's scope tf.Variable would become one copy for each replica.
    with tf.init_scope(), tf.device(device):
        value = tf.constant(initial_value, dtype)
        return resource_variable_ops.ResourceVariable(value, trainable=False)


def has_key_value_store():
    """True if this process joined a cluster whose coordination service holds keys and values."""
    return runtime_started() and context.context().coordination_service is not None


def heartbeat_seconds():
    """Returns how long a member of this process's cluster may stay silent before it is lost."""
    # 0 means the service's own default.
    return (context.context().coordination_service.heartbeat_timeout_in_ms or 10_000) / 1000


def worker_errors(counts):
    """Returns what the coordination service says of each worker that it has given up.

    Safe in worker 0 only, where the service lives: elsewhere TensorFlow holds Python's
    interpreter lock until worker 0 answers, if ever, and so no thread could limit the wait.

    Args:
        counts: list of ``(job, number of tasks)``, in worker order.

    Returns:
        `dict` of worker index to text.

    Raises:
        tf.errors.OpError: if the service is gone.
    """
    states = context.context().get_task_states(counts)
    return {index: error.message for index, error in enumerate(states) if error is not None}


def put_key(key, value):
    """Stores a string in the coordination service."""
    context.context().set_config_key_value(key, value)


def get_key(key, timeout_seconds):
    """Returns the string of `key`, or None if it did not appear within `timeout_seconds`.

    Raises:
        tf.errors.OpError: if the cluster has failed meanwhile.
    """
    try:
        milliseconds = max(1, int(timeout_seconds * 1000))
        return context.context().get_config_key_value(key, timeout_in_ms=milliseconds)
    except (tf.errors.DeadlineExceededError, tf.errors.NotFoundError):
        return None


def delete_key(key):
    """Removes a key from the coordination service."""
    context.context().delete_config_key_value(key)
