"""Mixed precision: the policy that suits the devices, and loss scaling where float16 needs it.

Under every policy variables, batch-norm statistics, gradient sums and the optimizer's slots
are float32. Keep a model's last softmax and its loss in float32 too
(`keras.layers.Activation("softmax", dtype="float32")`, as `tfscale.models` does).
"""

import logging

import tensorflow as tf

from tfscale._keras import keras
from tfscale._keras.loss_scaling import SkippingLossScaleOptimizer

POLICIES = ("auto", "mixed_bfloat16", "mixed_float16", "float32")


def set_global_policy(name="auto"):
    """Sets Keras's global dtype policy, and returns the name of the one that was set.

        compute dtype = bfloat16 | float16 | float32, variable dtype = float32

    "auto" takes the fastest one that the devices have hardware for:

        TPU                               mixed_bfloat16
        GPU, compute capability >= 8.0    mixed_bfloat16   (A100, H100: as fast as float16,
                                                            and it needs no loss scaling)
        GPU, compute capability >= 7.0    mixed_float16    (V100, T4)
        older GPU, CPU                    float32

    Call it after the strategy is made and before the model is built. Workers with different
    devices would choose differently: agree on the returned name, as the Example does.

    Args:
        name: one of "auto", "mixed_bfloat16", "mixed_float16", "float32".

    Returns:
        `str`, the policy in force; never "auto".

    Raises:
        ValueError: for any other name.

    Example:
        policy = tfscale.precision.set_global_policy("auto")
        tfscale.distribute.agree(strategy, "precision", policy)

    Source: Micikevicius et al., Mixed Precision Training, arXiv 1710.03740.
    """
    if name not in POLICIES:
        raise ValueError(f"unknown precision policy {name!r}: it must be one of {POLICIES}")
    if name == "auto":
        name = policy_for(*_devices())
        logging.getLogger("tfscale").info("precision: %s suits these devices", name)
    keras.mixed_precision.set_global_policy(name)
    return name


def policy_for(kind, capability=None):
    """The policy that "auto" takes for a kind of device.

    Args:
        kind: "TPU", "GPU" or "CPU".
        capability: for a GPU, the compute capability `(major, minor)`; None if unknown.

    Returns:
        `str`: "mixed_bfloat16", "mixed_float16" or "float32".

    Example:
        policy_for("GPU", (7, 0))  # 'mixed_float16'
    """
    if kind == "TPU" or (kind == "GPU" and capability and tuple(capability) >= (8, 0)):
        return "mixed_bfloat16"
    if kind == "GPU" and capability and tuple(capability) >= (7, 0):
        return "mixed_float16"
    return "float32"


def _devices():
    """The kind of the fastest devices, and the smallest compute capability among the GPUs."""
    if tf.config.list_logical_devices("TPU"):
        return "TPU", None
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "CPU", None
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    capabilities = [d.get("compute_capability") for d in details]
    return "GPU", min(capabilities) if all(capabilities) else None


def scale_loss_optimizer(optimizer, initial_scale=2**15, growth_steps=2000, max_skipped_steps=50):
    """Wraps an optimizer in dynamic loss scaling where the global policy computes in float16.

        gradients = grad(scale * loss) / scale
        finite:      step;  after `growth_steps` finite steps scale *= 2
        otherwise:   no step;  scale = max(scale / 2, 1)

    The gradients are summed over the replicas before the check, so an overflow that one replica
    sees skips the step on all of them; weights, `iterations` and with it the schedule then stay
    as they are (Keras's own wrapper, which `model.compile` puts around a bare optimizer under
    mixed_float16, advances `iterations`). The scale and the counters are saved and restored
    with the optimizer. In a training loop of your own, `optimizer.minimize(loss, ...)` scales
    and unscales.

    Args:
        optimizer: a Keras optimizer. One that is already wrapped is returned as it is.
        initial_scale: float > 0, the first scale.
        growth_steps: int, finite steps in a row after which the scale doubles.
        max_skipped_steps: int, skipped steps in a row after which training stops with
            `tf.errors.InvalidArgumentError` and advice.

    Returns:
        the optimizer, wrapped at most once; unchanged unless the global policy is float16.

    Example:
        tfscale.precision.set_global_policy("mixed_float16")
        optimizer = scale_loss_optimizer(keras.optimizers.SGD(0.1, momentum=0.9))

    Source: Micikevicius et al., Mixed Precision Training, arXiv 1710.03740, section 3.2.
    """
    if keras.mixed_precision.global_policy().compute_dtype != "float16":
        return optimizer
    if isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer):
        return optimizer
    if isinstance(optimizer, keras.optimizers.legacy.Optimizer):
        # Keras's older optimizers have another protocol, which its own wrapper knows.
        return keras.mixed_precision.LossScaleOptimizer(
            optimizer, initial_scale=initial_scale, dynamic_growth_steps=growth_steps
        )
    return SkippingLossScaleOptimizer(
        optimizer,
        initial_scale=initial_scale,
        dynamic_growth_steps=growth_steps,
        max_skipped_steps=max_skipped_steps,
    )
