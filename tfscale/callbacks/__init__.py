"""Keras callbacks for distributed runs."""

from tfscale._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "CheckpointAndResume": "tfscale.callbacks.checkpoint",
        "CompressionSchedule": "tfscale.callbacks.compression_schedule",
        "EpochLog": "tfscale.callbacks.epoch_log",
        "Evaluation": "tfscale.callbacks.evaluation",
        "FollowLeader": "tfscale.callbacks.follow_leader",
        "Progress": "tfscale.callbacks.progress",
        "StopOnNonFinite": "tfscale.callbacks.non_finite",
        "TensorBoard": "tfscale.callbacks.tensorboard",
        "Throughput": "tfscale.callbacks.throughput",
    },
)
