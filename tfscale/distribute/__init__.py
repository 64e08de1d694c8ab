"""Strategies, the 2-D all-reduce, its compressors, and what workers agree on."""

from tfscale._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "BFloat16": "tfscale.distribute.compression.half_precision",
        "Float16": "tfscale.distribute.compression.half_precision",
        "Hierarchical2DAllReduce": "tfscale.distribute.all_reduce",
        "Int8": "tfscale.distribute.compression.int8",
        "TopK": "tfscale.distribute.compression.top_k",
        "Uncompressed": "tfscale.distribute.compression.protocol",
        "agree": "tfscale.distribute.agreement",
        "create_strategy": "tfscale.distribute.strategy",
        "explain_lost_worker": "tfscale.distribute.lost_workers",
        "gather_values": "tfscale.distribute.agreement",
        "plan_of": "tfscale.distribute.all_reduce",
        "top_k_warmup": "tfscale.distribute.compression.top_k",
        "topology_of": "tfscale.distribute.strategy",
    },
)
