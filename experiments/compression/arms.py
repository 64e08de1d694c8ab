"""The arms of the experiment: how gradients travel in each, and who keeps the momentum."""

import dataclasses

MOMENTUM = 0.9


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to send gradients.

    Attributes:
        name: `str`.
        phases: function of (epochs) that returns the phases of a `CompressionSchedule`.
        momentum: `float`, the optimizer's; 0 where the compressor keeps the velocity.
    """

    name: str
    phases: object
    momentum: float = MOMENTUM


def arms(ratio=0.01):
    """Returns all arms by name; `ratio` is that of top-k."""
    from tfscale.distribute import Int8, TopK, top_k_warmup

    def warm_up(**options):
        def phases(epochs):
            # The first half of the run, so that the second shows the final ratio.
            ratios = top_k_warmup(ratio, max(1, epochs // 2))
            return {epoch: TopK(r, **options) for epoch, r in enumerate(ratios[:epochs])}

        return phases

    def always(compression):
        return lambda epochs: {0: compression}

    def first_half(epochs):
        half = max(1, epochs // 2)
        ratios = top_k_warmup(ratio, 2)[:half]
        return {epoch: TopK(r) for epoch, r in enumerate(ratios)} | {half: None}

    found = [
        Arm("dense", always(None)),
        Arm("bfloat16", always("bfloat16")),
        Arm("float16", always("float16")),
        Arm("int8", always(Int8())),
        Arm("int8-no-feedback", always(Int8(error_feedback=False))),
        Arm("topk", always(TopK(ratio))),
        Arm("topk-no-feedback", always(TopK(ratio, error_feedback=False))),
        Arm("topk-warmup", warm_up()),
        Arm("topk-warmup-momentum", warm_up(momentum=MOMENTUM), momentum=0.0),
        Arm("topk-warmup-masking", warm_up(momentum=MOMENTUM, factor_masking=True), momentum=0.0),
        Arm("topk-first-half", first_half),
    ]
    return {arm.name: arm for arm in found}
