"""Strategies, the 2-D all-reduce and what workers agree on."""

from tfscale._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Hierarchical2DAllReduce": "tfscale.distribute.all_reduce",
        "agree": "tfscale.distribute.agreement",
        "create_strategy": "tfscale.distribute.strategy",
        "gather_values": "tfscale.distribute.agreement",
        "plan_of": "tfscale.distribute.all_reduce",
        "topology_of": "tfscale.distribute.strategy",
    },
)
