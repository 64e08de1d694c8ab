"""The arms of the ablation: which optimisations are on in each."""

import dataclasses

# In the order in which `add` switches them on; see experiments.input.workers.ablation.
OPTIMISATIONS = ("parallel", "prefetch", "fused", "uint8", "sizes", "cache")
CALLS = (1, 2, 4, 8)
NATIVE_OFF = {"TFSCALE_NATIVE": "0"}


@dataclasses.dataclass(frozen=True)
class Arm:
    """One pipeline of the ablation.

    Attributes:
        name: `str`.
        worker: `str`, a module of ``experiments.input.workers``.
        facts: `dict`, settings beyond those of every pipeline.
        reference: `str`, name of the arm that it is held against; None for the first.
        variables: environment variables of the process.
        epochs: `int`, epochs that are run before anything is measured.
    """

    name: str
    worker: str
    facts: dict
    reference: str | None = None
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    epochs: int = 0


def add():
    """One more optimisation in each arm, held against the arm before."""
    arms = [Arm("naive", "ablation", {"on": []})]
    for count, name in enumerate(OPTIMISATIONS, 1):
        arms.append(_by_hand(f"+ {name}", OPTIMISATIONS[:count], arms[-1].name))
    ours = {"cache": "memory"}
    arms.append(Arm("tfscale", "ours", ours, arms[-1].name, NATIVE_OFF, epochs=1))
    arms.append(Arm("tfscale + native ops", "ours", ours, "tfscale", epochs=1))
    return arms


def leave():
    """One optimisation less in each arm, held against the full pipeline."""
    arms = [_by_hand("by hand, all", OPTIMISATIONS, None)]
    for name in OPTIMISATIONS:
        rest = [other for other in OPTIMISATIONS if other != name]
        arms.append(_by_hand(f"by hand - {name}", rest, "by hand, all"))
    ours = {"cache": "memory"}
    return [
        *arms,
        Arm("tfscale, all", "ours", ours, epochs=1),
        Arm("tfscale - native ops", "ours", ours, "tfscale, all", NATIVE_OFF, epochs=1),
        Arm("tfscale - cache", "ours", {}, "tfscale, all"),
        Arm("tfscale - uint8", "ours", {**ours, "as_float": True}, "tfscale, all", epochs=1),
    ]


def sweep():
    """The same with more calls at a time, held against one."""
    arms = []
    on = [name for name in OPTIMISATIONS if name != "cache"]
    for kind, worker, facts in (("by hand", "ablation", {"on": on}), ("tfscale", "ours", {})):
        for calls in CALLS:
            reference = None if calls == CALLS[0] else f"{kind}, {CALLS[0]}"
            arms.append(Arm(f"{kind}, {calls}", worker, {**facts, "threads": calls}, reference))
    return arms


PARTS = {"add": add, "leave": leave, "sweep": sweep}


def _by_hand(name, on, reference):
    return Arm(name, "ablation", {"on": list(on)}, reference, epochs=int("cache" in on))
