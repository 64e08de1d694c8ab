"""Tools for testing distributed code on one machine: logical devices and real processes."""


def set_logical_devices(count):
    """Splits the CPU into `count` logical devices; must come before TensorFlow starts.

    Args:
        count: `int`, number of logical CPU devices.

    Raises:
        RuntimeError: if TensorFlow has already initialised its devices.
    """
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
    )
