"""The arms: which parts of a run are ours and which tf-models-official's or the addons'."""

import dataclasses

OURS, THEIRS = "tfscale", "official"


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way of training. Every part is "tfscale" or "official" unless said.

    Attributes:
        model: whose ResNet; the architecture is the same, and both start from equal weights.
        start: whose initialisers. "official" is possible with their model only.
        optimizer: "tfscale" and "official": LARS with the same settings; "official-no-lists" and
            "official-popular": see `optimizers`; "lamb": that of tensorflow-addons.
        loop: "tfscale": `model.fit`; "official": `official.core`'s `Trainer` under orbit's
            `Controller`.
        data: whose reader of the records; "addons": ours, augmented by image ops of
            tensorflow-addons.
        strategy: "official": TensorFlow's own, as their programs make it.
    """

    model: str = OURS
    start: str = OURS
    optimizer: str = OURS
    loop: str = OURS
    data: str = OURS
    strategy: str = OURS


BASELINE = "tfscale"
ARMS = {
    BASELINE: Arm(),
    "their-model": Arm(model=THEIRS),
    "their-loop": Arm(loop=THEIRS),
    "their-data": Arm(data=THEIRS),
    "their-lars": Arm(optimizer=THEIRS),
    "their-lars-no-lists": Arm(optimizer="official-no-lists"),
    "their-lars-popular": Arm(optimizer="official-popular"),
    "official": Arm(*[THEIRS] * 6),
    "addons": Arm(optimizer="lamb", data="addons"),
}
