"""The compressor that a user's argument names."""

from tfscale.distribute.compression import half_precision, int8, protocol, top_k

_HALF_PRECISION = {"bfloat16": half_precision.BFloat16, "float16": half_precision.Float16}
_PLAIN = ("none", "float32")
_FLOAT32_SUMS = {"int8": int8.Int8, "topk": top_k.TopK}
_PROTOCOL = ("all_reduce", "block", "bytes_per_element", "lossy", "name", "slots")
_CHOICES = "None, 'bfloat16', 'float16', 'int8', 'topk'"


def compressor(compression, accumulate_dtype=None):
    """Returns the compressor that a user's argument names.

    Args:
        compression: None, ``"none"`` or ``"float32"`` for none; ``"bfloat16"``; ``"float16"``;
            ``"int8"`` for ``Int8()``; ``"topk"`` for ``TopK(ratio=0.01)``; or an object with the
            methods of `Uncompressed`.
        accumulate_dtype: None, ``"float32"``, or the wire dtype's name with half precision.

    Raises:
        ValueError: for anything else.

    Example:
        >>> compressor("bfloat16").name
        'bfloat16'
    """
    if accumulate_dtype is not None and not isinstance(accumulate_dtype, str):
        raise ValueError(
            "accumulate_dtype must be None or the name of a dtype, such as 'float32', got "
            f"{protocol.shown(accumulate_dtype)}"
        )
    if compression is None or isinstance(compression, str) and compression in _PLAIN:
        _check_float32(accumulate_dtype, "without compression sums are in float32")
        return protocol.Uncompressed()
    if isinstance(compression, str):
        if compression in _HALF_PRECISION:
            return _HALF_PRECISION[compression](accumulate_dtype)
        if compression not in _FLOAT32_SUMS:
            raise ValueError(
                f"unknown compression {compression!r}; choose {_CHOICES} or a compressor object"
            )
        _check_float32(accumulate_dtype, f"the sums of {compression!r} are in float32")
        return _FLOAT32_SUMS[compression]()
    if not all(hasattr(compression, name) for name in _PROTOCOL):
        raise ValueError(
            f"compression must be {_CHOICES} or a compressor object, got "
            f"{protocol.shown(compression)}"
        )
    _check_float32(accumulate_dtype, f"{compression.name!r} has its own; leave it out")
    return compression


def _check_float32(accumulate_dtype, reason):
    if accumulate_dtype not in (None, "float32"):
        raise ValueError(
            f"accumulate_dtype {accumulate_dtype!r} needs a compression of that dtype; {reason}"
        )
