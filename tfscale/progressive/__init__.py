"""Runs in phases of resolution, batch, augmentation and compression: small pictures first."""

from tfscale._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Phase": "tfscale.progressive.phases",
        "PhaseData": "tfscale.progressive.phases",
        "fit": "tfscale.progressive.run",
        "plan": "tfscale.progressive.steps",
        "plan_table": "tfscale.progressive.steps",
        "schedule_steps": "tfscale.progressive.steps",
        "steps_at": "tfscale.progressive.steps",
    },
)
