"""The arms of the experiment: how gradients travel in each, and who keeps the momentum."""

import dataclasses

MOMENTUM = 0.9


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to send gradients.

    Attributes:
        name: `str`.
        phases: function of (epochs, ratio of top-k) that returns the phases of a
            `CompressionSchedule`; it loads TensorFlow.
        momentum: `float`, the optimizer's; 0 where the compressor keeps the velocity.
    """

    name: str
    phases: object
    momentum: float = MOMENTUM


def _always(make):
    return lambda epochs, ratio: {0: make(ratio)}


def _int8(**options):
    from tfscale.distribute import Int8

    return Int8(**options)


def _top_k(ratio, **options):
    from tfscale.distribute import TopK

    return TopK(ratio, **options)


def _warm_up(**options):
    def phases(epochs, ratio):
        from tfscale.distribute import top_k_warmup

        # The first half of the run, so that the second shows the final ratio.
        ratios = top_k_warmup(ratio, max(1, epochs // 2))
        return {epoch: _top_k(r, **options) for epoch, r in enumerate(ratios[:epochs])}

    return phases


def _first_half(epochs, ratio):
    from tfscale.distribute import top_k_warmup

    half = max(1, epochs // 2)
    ratios = top_k_warmup(ratio, 2)[:half]
    return {epoch: _top_k(r) for epoch, r in enumerate(ratios)} | {half: None}


ARMS = {
    arm.name: arm
    for arm in (
        Arm("dense", _always(lambda ratio: None)),
        Arm("bfloat16", _always(lambda ratio: "bfloat16")),
        Arm("float16", _always(lambda ratio: "float16")),
        Arm("int8", _always(lambda ratio: _int8())),
        Arm("int8-no-feedback", _always(lambda ratio: _int8(error_feedback=False))),
        Arm("topk", _always(_top_k)),
        Arm("topk-no-feedback", _always(lambda ratio: _top_k(ratio, error_feedback=False))),
        Arm("topk-warmup", _warm_up()),
        Arm("topk-warmup-momentum", _warm_up(momentum=MOMENTUM), momentum=0.0),
        Arm("topk-warmup-masking", _warm_up(momentum=MOMENTUM, factor_masking=True), momentum=0.0),
        Arm("topk-first-half", _first_half),
    )
}
