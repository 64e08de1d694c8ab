"""Hyperparameter search on Optuna; `python -m tfscale.tuning --help` teaches it."""

from tfscale._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Settings": "tfscale.tuning.settings",
        "choice": "tfscale.tuning.ranges",
        "integer": "tfscale.tuning.ranges",
        "log_uniform": "tfscale.tuning.ranges",
        "search": "tfscale.tuning.searching",
        "uniform": "tfscale.tuning.ranges",
    },
)
