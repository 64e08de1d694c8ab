"""Residual networks with an injected norm layer."""

from tfscale._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "resnet": None,
    },
)
