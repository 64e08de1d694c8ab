"""Layers whose statistics cross replicas."""

from tfscale._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "GroupedSyncBatchNormalization": "tfscale.layers.sync_batch_norm",
        "merge_moving_statistics": "tfscale.layers.moving_statistics",
    },
)
