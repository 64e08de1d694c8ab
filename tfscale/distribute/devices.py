"""The devices that one worker trains on: its GPUs, or logical CPU devices in their place."""

import dataclasses
import os

import tensorflow as tf

from tfscale.distribute import _tf_private

_VARIABLE = "TFSCALE_DEVICES_PER_WORKER"


@dataclasses.dataclass(frozen=True)
class LocalDevices:
    """Attributes: `kind`, ``"GPU"`` or ``"CPU"``; `count`; `was_asked`, by the caller itself."""

    kind: str
    count: int
    was_asked: bool

    @classmethod
    def find(cls, requested=None):
        """Finds or makes the devices, without starting TensorFlow's runtime.

        Args:
            requested: `int`, or None for ``TFSCALE_DEVICES_PER_WORKER``, else all GPUs, else 1.

        Raises:
            ValueError: if the number is not a positive whole number.
            RuntimeError: if there are fewer devices and none can be made.
        """
        count = _count(requested)
        gpus = tf.config.list_physical_devices("GPU")
        _check_promised_gpus(gpus)
        if gpus:
            available = sum(
                len(tf.config.get_logical_device_configuration(gpu) or [gpu]) for gpu in gpus
            )
            if count is not None and count > available:
                raise RuntimeError(
                    f"{count} devices per worker were asked for, but TensorFlow sees {available} "
                    f"GPUs: {', '.join(gpu.name for gpu in gpus)}. Ask for at most {available}, or "
                    "set CUDA_VISIBLE_DEVICES=-1 to use logical CPU devices."
                )
            return cls("GPU", count or available, requested is not None)
        _provide_logical_cpus(count or 1)
        return cls("CPU", count or 1, requested is not None)

    def names(self):
        """Device strings of this process, in replica order."""
        return tuple(f"/device:{self.kind}:{i}" for i in range(self.count))


def _count(requested):
    source, value = "devices_per_worker", requested
    if requested is None:
        source, value = _VARIABLE, os.environ.get(_VARIABLE) or None
    if value is None:
        return None
    try:
        count = int(value)
    except (TypeError, ValueError):
        count = 0
    if count < 1 or isinstance(value, (bool, float)):
        raise ValueError(f"{source}={value!r} must be a whole number of at least 1")
    return count


def _check_promised_gpus(gpus):
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    named = [name for name in visible.split(",") if name.strip().isdigit() or "GPU-" in name]
    if named and not gpus:
        raise RuntimeError(
            f"CUDA_VISIBLE_DEVICES={visible} promises {len(named)} GPUs, but TensorFlow sees none "
            "(no driver, no CUDA libraries, or a build for CPUs: "
            f"tf.test.is_built_with_cuda() is {tf.test.is_built_with_cuda()}). Set "
            "CUDA_VISIBLE_DEVICES=-1 to train on the CPU."
        )


def _provide_logical_cpus(count):
    cpu = tf.config.list_physical_devices("CPU")[0]
    if not _tf_private.runtime_started():
        if len(tf.config.get_logical_device_configuration(cpu) or [cpu]) < count:
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
            )
        return
    found = len(tf.config.list_logical_devices("CPU"))
    if found < count:
        raise RuntimeError(
            f"{count} devices per worker were asked for, but TensorFlow has already started with "
            f"{found} CPU device{'s' if found > 1 else ''}, and can't be split any further. Call "
            "create_strategy before the first tensor, dataset or model is made."
        )
