"""The compressor that a user's argument names."""

from tfscale.distribute.compression import half_precision, protocol

_HALF_PRECISION = {"bfloat16": half_precision.BFloat16, "float16": half_precision.Float16}
_CHOICES = "None, 'bfloat16', 'float16'"


def compressor(compression, accumulate_dtype="float32"):
    """Returns the compressor that a user's argument names.

    Args:
        compression: None, ``"none"`` or ``"float32"`` for none; ``"bfloat16"``; ``"float16"``;
            or an object with the methods of `Uncompressed`.
        accumulate_dtype: ``"float32"``, or the wire dtype's name with half precision.

    Raises:
        ValueError: for any other name.

    Example:
        >>> compressor("bfloat16").name
        'bfloat16'
    """
    if compression in (None, "none", "float32"):
        if accumulate_dtype != "float32":
            raise ValueError(
                f"accumulate_dtype {accumulate_dtype!r} needs a compression of that dtype; "
                "without compression sums are in float32"
            )
        return protocol.Uncompressed()
    if isinstance(compression, str):
        if compression not in _HALF_PRECISION:
            raise ValueError(f"unknown compression {compression!r}; choose {_CHOICES}")
        return _HALF_PRECISION[compression](accumulate_dtype)
    if not all(hasattr(compression, name) for name in ("all_reduce", "block", "lossy", "name")):
        raise ValueError(
            f"compression must be {_CHOICES} or a compressor object, got {compression!r}"
        )
    return compression
