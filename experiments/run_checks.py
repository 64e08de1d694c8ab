"""How the settings of a run must fit together; a mistake found here costs a second.

Found by TensorFlow it would cost minutes and a traceback. A setting that would have no effect is
an error, not a run of another kind.
"""

import itertools

from experiments import run_ranges
from experiments.run_ranges import shown

_OF_PHASES = (
    "phase_image_sizes",
    "phase_batch_sizes",
    "phase_min_crop_areas",
    "phase_magnitudes",
)


class SettingsError(ValueError):
    """Settings that do not fit the replicas or the environment; the exit code is that of flags."""


def check(run):
    """Raises ValueError, naming the flag, for a `RunConfig` that cannot be run as it says."""
    run_ranges.check(run)
    _check_input(run)
    _check_phases(run)
    _check_batch(run)
    _check_learning_rate(run)
    _check_optimizer(run)
    _check_compression(run)


def _check_input(run):
    if run.cache_budget is not None and run.cache == "none":
        raise ValueError(f"--cache_budget={run.cache_budget} has no effect with --cache=none")
    if run.cache_budget is not None:
        from tfscale.data import cache_budget  # loads NumPy

        cache_budget.parse("--cache_budget", run.cache_budget)
    if run.rand_augment is not None and not (
        run.rand_augment[0] >= 0 and 0 <= run.rand_augment[1] <= 10
    ):
        raise ValueError(
            f"--rand_augment={shown(run.rand_augment)}: wanted a number of operations and a "
            "magnitude from 0 to 10, such as 2,9"
        )
    if run.cache_dir is not None and run.cache != "disk":
        raise ValueError(
            f"--cache_dir={run.cache_dir} has no effect with --cache={run.cache}; it needs "
            "--cache=disk"
        )
    if run.cache_dir is not None and (not run.cache_dir or "://" in run.cache_dir):
        raise ValueError(f"--cache_dir={run.cache_dir} must name a folder on a local disk")
    if not run.model_dir:
        raise ValueError("--model_dir is empty; it must name a folder")
    if run.dataset == "synthetic" and run.num_classes is None:
        raise ValueError("--dataset=synthetic needs --num_classes: nothing else says how many")


def _check_phases(run):
    if run.phase_epochs is None:
        for name in _OF_PHASES:
            _refuse(run, name, "without --phase_epochs, the epochs of each phase")
        return
    count = len(run.phase_epochs)
    if not count:
        raise ValueError(
            "--phase_epochs is empty: give the epochs of each phase, such as 13,11,3,1, or none "
            "for a single one"
        )
    for name in _OF_PHASES:
        values = getattr(run, name)
        if values is not None and len(values) != count:
            raise ValueError(
                f"--{name}={shown(values)} has {len(values)} values, but there are {count} phases "
                f"(--phase_epochs={shown(run.phase_epochs)}): one for each"
            )
    if run.epochs != sum(run.phase_epochs):
        raise ValueError(
            f"--epochs={run.epochs}, but the phases have {sum(run.phase_epochs)} epochs together "
            f"(--phase_epochs={shown(run.phase_epochs)}): change one of the two"
        )
    if run.phase_image_sizes and run.image_size != run.phase_image_sizes[-1]:
        raise ValueError(
            f"--image_size={run.image_size} is not the size of the last phase (--phase_image_sizes="
            f"{shown(run.phase_image_sizes)}): make it {run.phase_image_sizes[-1]}"
        )
    if run.rand_augment is None:
        _refuse(run, "phase_magnitudes", "without --rand_augment, such as 2,9")
    elif not run.rand_augment[0]:
        given = shown(run.rand_augment)
        _refuse(run, "phase_magnitudes", f"with --rand_augment={given}, which has 0 operations")


def _check_batch(run):
    reference = run.reference_batch_size
    by_rate = run.peak_learning_rate is not None or run.learning_rate_values is not None
    if reference is not None and not by_rate:
        _refuse(run, "reference_batch_size", "without --peak_learning_rate or "
                "--learning_rate_values, the rates at that batch")  # fmt: skip
    if reference is None:
        _refuse(run, "reference_replicas", "without --reference_batch_size")
    if run.per_replica_batch_size and by_rate and not reference:
        raise ValueError(
            f"--per_replica_batch_size={run.per_replica_batch_size} changes the global batch with "
            "the number of replicas, and the learning rates have to follow: say which batch they "
            "are meant for, by --reference_batch_size"
        )
    if run.per_replica_batch_size and reference and run.global_batch_size != reference:
        raise ValueError(
            f"--global_batch_size={run.global_batch_size} has no effect with "
            f"--per_replica_batch_size={run.per_replica_batch_size}, one for each "
            "replica; add --per_replica_batch_size=none"
        )
    largest = max(run.phase_batch_sizes or (0,))
    meant = reference or run.global_batch_size
    if largest and largest != meant:
        raise ValueError(
            f"--phase_batch_sizes={shown(run.phase_batch_sizes)}: the largest must be the batch "
            f"that the learning rate is meant for, {meant} "
            f"(--{'reference' if reference else 'global'}_batch_size)"
        )
    if run.norm_span is not None and run.norm_group_size is not None:
        _refuse(run, "norm_group_size", f"with --norm_span={run.norm_span}, from which it follows")


def _check_learning_rate(run):
    for of, others in (
        ("learning_rate", ("peak_learning_rate", "base_learning_rate", "warmup_epochs",
                           "end_learning_rate")),
        ("momentum", ("momentum",)),
    ):  # fmt: skip
        epochs, values = getattr(run, f"{of}_epochs"), getattr(run, f"{of}_values")
        if (epochs is None) != (values is None):
            given, missing = ("epochs", "values") if values is None else ("values", "epochs")
            raise ValueError(f"--{of}_{given} needs --{of}_{missing}: a value for each epoch given")
        if epochs is None:
            continue
        if len(epochs) != len(values) or len(epochs) < 2:
            raise ValueError(
                f"--{of}_epochs={shown(epochs)} and --{of}_values={shown(values)}: as many of "
                "one as of the other are needed, two at least"
            )
        if any(b <= a for a, b in itertools.pairwise(epochs)) or epochs[-1] > run.epochs:
            raise ValueError(
                f"--{of}_epochs={shown(epochs)} must ascend, to {run.epochs} (--epochs) at most"
            )
        for name in others:
            _refuse(run, name, f"with --{of}_values, which say it for every step")
    if run.peak_learning_rate is not None:
        _refuse(run, "base_learning_rate", "with --peak_learning_rate, which takes its place")


def _check_optimizer(run):
    if run.optimizer != "lars":
        for name in ("lars_trust_coefficient", "lars_trust_clip", "lars_momentum_form",
                     "momentum_values"):  # fmt: skip
            _refuse(run, name, f"with --optimizer={run.optimizer}; it needs --optimizer=lars")
    if run.lars_trust_clip is not None and run.lars_trust_clip[0] > run.lars_trust_clip[1]:
        low, high = run.lars_trust_clip
        raise ValueError(
            f"--lars_trust_clip={low:g},{high:g}: the smaller bound first; did you mean "
            f"{high:g},{low:g}?"
        )
    if run.nesterov and run.compression_momentum:
        _refuse(run, "nesterov", "with --compression_momentum, which is plain")


def _check_compression(run):
    of_topk = ("compression_ratio", "compression_warmup_epochs", "compression_momentum")
    for name in (*of_topk, "compression_epochs"):
        needed = "topk" if name in of_topk else "bfloat16, float16, int8 or topk"
        if run.compression not in needed.replace(" or", ",").split(", "):
            _refuse(
                run, name, f"with --compression={run.compression}; it needs --compression={needed}"
            )
    first, last = run.compression_epochs or (1, run.epochs)
    if first < 1:
        raise ValueError(
            f"--compression_epochs={first},{last} begins at {first}, but epochs are counted "
            "from 1, as in 1,13"
        )
    if last < first:
        raise ValueError(
            f"--compression_epochs={first},{last} has its epochs in the wrong order: the first "
            f"is later than the last; did you mean {last},{first}?"
        )
    if first > run.epochs:
        raise ValueError(
            f"--compression_epochs={first},{last} begins after the last of --epochs={run.epochs}"
        )
    warmup = run.compression_warmup_epochs
    if warmup > last - first:
        raise ValueError(
            f"--compression_warmup_epochs={warmup} leaves no epoch for the full compression: "
            f"there are {last - first + 1} compressed epochs ({first} to {last})"
        )
    if warmup and run.compression_ratio > 0.25:
        raise ValueError(
            f"--compression_warmup_epochs={warmup} goes from a ratio of 0.25 down, but "
            f"--compression_ratio={run.compression_ratio:g} is above that"
        )
    if run.compression_momentum and (run.optimizer != "sgd" or run.momentum):
        raise ValueError(
            f"--compression_momentum={run.compression_momentum:g} takes the place of the "
            f"optimizer's momentum, but --optimizer={run.optimizer} has --momentum="
            f"{run.momentum:g}; add --optimizer=sgd --momentum=0 (and a learning rate for it)"
        )


def _refuse(run, name, why):
    """Raises if a field has another value than its default, which would have no effect."""
    value = getattr(run, name)
    if value != type(run).__dataclass_fields__[name].default:
        raise ValueError(f"--{name}={shown(value)} has no effect {why}")
