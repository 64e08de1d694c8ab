"""The flags of the experiment, and what follows from them."""

import argparse
import dataclasses
from pathlib import Path

from experiments import fashion, flag_ranges, paired

OPTIMIZERS = ("sgd", "lars")
RESULTS = Path(__file__).resolve().parent / "results"
QUICK = {
    "dataset": "digits",
    "batches": "32,128",
    "tuned_batches": "32,128",
    "micro_batch": 32,
    "epochs": 6,
    "trials": 3,
    "seeds": 2,
    "results": "runs/large_batch",
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all runs have in common; the rows of the results keep it.

    Attributes:
        dataset, examples: see `fashion.load`.
        epochs: `int`, how often each run sees the training pictures, whatever its batch.
        micro_batch: `int`, examples that share batch-norm statistics; larger batches are made of
            several of them.
        widths: `list` of `int`, filters of each stage of the network.
        warmup: `float`, share of the steps in which the learning rate climbs.
        weight_decay, momentum, trust_coefficient: `float`, of the optimizers.
        low, high: `float`, bounds of the learning rate in the search.
        trials: `int`, runs of the search for each optimizer and tuned batch.
        tuned_batches: `list` of the two batches that the search tunes at.
    """

    dataset: str = "fashion_mnist"
    examples: int | None = None
    epochs: int = 14
    micro_batch: int = 256
    widths: tuple[int, ...] = (8, 16, 32)
    warmup: float = 0.2
    weight_decay: float = 5e-4
    momentum: float = 0.9
    trust_coefficient: float = 0.1
    low: float = 0.02
    high: float = 20.0
    trials: int = 10
    tuned_batches: tuple[int, int] = (256, 16384)


def parse(argv, description):
    """Returns `Settings` and the other flags."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.large_batch.run",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, count = parser.add_argument, flag_ranges.COUNT
    default = Settings()
    add(
        "--batches",
        type=flag_ranges.listed(count),
        default="256,512,1024,2048,4096,8192,16384",
        help="list with commas (default: %(default)s)",
    )
    add("--seeds", type=count, default=3, help="runs of each batch (default: %(default)s)")
    add(
        "--tuned_batches",
        type=flag_ranges.listed(count),
        default=",".join(map(str, default.tuned_batches)),
        help="the two at which the learning rate is searched for (default: %(default)s)",
    )
    add(
        "--widths",
        type=flag_ranges.listed(count, may_repeat=True),
        default=",".join(map(str, default.widths)),
        help="filters of the network's stages, list with commas (default: %(default)s)",
    )
    for name, kind, text in (
        ("trials", count, "of the search, for each optimizer and tuned batch"),
        ("epochs", count, "of each run"),
        ("micro_batch", count, "examples that share batch-norm statistics"),
        ("warmup", flag_ranges.SHARE, "share of the steps in which the rate climbs"),
        ("weight_decay", flag_ranges.NOT_NEGATIVE, "of kernels"),
        ("momentum", flag_ranges.BELOW_1, "of both optimizers"),
        ("trust_coefficient", flag_ranges.POSITIVE, "of LARS"),
        ("low", flag_ranges.POSITIVE, "lowest learning rate of the search"),
        ("high", flag_ranges.POSITIVE, "highest"),
    ):
        add(
            f"--{name}",
            type=kind,
            default=getattr(default, name),
            help=f"{text} (default: %(default)s)",
        )
    fashion.add_flags(parser)
    add("--results", default=str(RESULTS), help="folder, read and added to (default: %(default)s)")
    args = paired.parse(parser, argv, QUICK)
    for name in ("batches", "tuned_batches"):
        _check_batches(parser, args, name)
    if len(args.tuned_batches) != 2:
        parser.error(f"--tuned_batches={args.tuned_batches}: two different ones are needed")
    if not 0 < args.low < args.high:
        parser.error(f"--low={args.low} --high={args.high}: 0 < low < high is needed")
    fields = {field.name: getattr(args, field.name) for field in dataclasses.fields(Settings)}
    return Settings(**fields), args


def _check_batches(parser, args, name):
    for batch in getattr(args, name):
        if batch > args.micro_batch and batch % args.micro_batch:
            parser.error(f"--{name}: {batch} is not a multiple of --micro_batch={args.micro_batch}")


def arm(optimizer, batch):
    """The name of an arm, such as ``lars-4096``."""
    return f"{optimizer}-{batch}"
