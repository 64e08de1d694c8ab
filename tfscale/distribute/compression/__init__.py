"""How float32 vectors travel between workers: as they are, or compressed."""

from tfscale._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "BFloat16": "tfscale.distribute.compression.half_precision",
        "Float16": "tfscale.distribute.compression.half_precision",
        "Int8": "tfscale.distribute.compression.int8",
        "Reduced": "tfscale.distribute.compression.protocol",
        "TopK": "tfscale.distribute.compression.top_k",
        "Uncompressed": "tfscale.distribute.compression.protocol",
        "compressor": "tfscale.distribute.compression.choice",
        "top_k_warmup": "tfscale.distribute.compression.top_k",
    },
)
