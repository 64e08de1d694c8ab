"""Large-batch optimizers and their learning-rate schedules."""

from tfscale._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "LARS": "tfscale.optimizers.lars",
        "schedules": None,
    },
)
