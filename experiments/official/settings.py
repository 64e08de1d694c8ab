"""The flags of the experiment, and what its runs have in common."""

import argparse
import dataclasses
from pathlib import Path

from experiments import flag_ranges, paired
from experiments.official.arms import ARMS
from experiments.quickstart.datasets import DATASETS, ROOT

RESULTS = Path(__file__).resolve().parent / "results" / "runs.json"
IMAGE_SIZE = {"digits": 32, "fashion_mnist": 28}
QUICK = {
    "dataset": "digits",
    "batch": 128,
    "steps": 44,
    "evaluations": 2,
    "seeds": 1,
    "json": "runs/official/quick.json",
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all runs have in common; the rows of the results keep it.

    Attributes:
        dataset: `str`, one of `experiments.quickstart.datasets`.
        batch: `int`, examples of a step over all replicas.
        steps: `int`, of a run.
        evaluations: `int`, how often a run is evaluated; divides `steps`.
        learning_rate: `float`, the highest, of both LARS.
        lamb_learning_rate: `float`, of the addons' LAMB.
        warmup: `float`, share of the steps in which the rate climbs.
        momentum, weight_decay, trust_coefficient: `float`, of both LARS.
        width: `float`, multiplies the filters of both networks.
        workers, devices_per_worker: `int`.
    """

    dataset: str = "fashion_mnist"
    batch: int = 512
    steps: int = 240
    evaluations: int = 6
    learning_rate: float = 1.0
    lamb_learning_rate: float = 0.02
    warmup: float = 0.2
    momentum: float = 0.9
    weight_decay: float = 5e-4
    trust_coefficient: float = 0.05
    width: float = 0.25
    workers: int = 1
    devices_per_worker: int = 2

    @property
    def image_size(self):
        return IMAGE_SIZE[self.dataset]

    @property
    def records(self):
        """Where the pictures lie as JPEG records."""
        return ROOT / "data" / self.dataset


def parse(argv, description):
    """Returns the parsed flags; `settings_of` makes `Settings` of them."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.official.run",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, default, count = parser.add_argument, Settings(), flag_ranges.COUNT
    add("--dataset", choices=sorted(DATASETS), default=default.dataset)
    for name, kind, text in (
        ("batch", count, "examples of a step over all replicas"),
        ("steps", count, "of each run"),
        ("evaluations", count, "of each run, evenly spread over its steps"),
        ("learning_rate", flag_ranges.POSITIVE, "the highest, of LARS"),
        ("lamb_learning_rate", flag_ranges.POSITIVE, "of the addons' LAMB"),
        ("warmup", flag_ranges.SHARE, "share of the steps in which the rate climbs"),
        ("momentum", flag_ranges.BELOW_1, "of LARS"),
        ("weight_decay", flag_ranges.NOT_NEGATIVE, "of kernels"),
        ("trust_coefficient", flag_ranges.POSITIVE, "of LARS"),
        ("width", flag_ranges.POSITIVE, "multiplies the filters"),
    ):
        add(f"--{name}", type=kind, default=getattr(default, name), help=f"{text} (%(default)s)")
    add("--devices", type=count, default=2, help="devices of one process, logical CPUs without "
        "GPUs (%(default)s; the launcher's --devices_per_worker overrides it)")  # fmt: skip
    add(
        "--arms",
        type=flag_ranges.names(ARMS),
        default=tuple(ARMS),
        help="list with commas, see README.md (default: all)",
    )
    add("--seeds", type=count, default=3, help="runs of each arm (%(default)s)")
    add("--json", default=str(RESULTS), help="results, read and added to (%(default)s)")
    args = paired.parse(parser, argv, QUICK)
    if args.steps % args.evaluations:
        parser.error(f"--evaluations={args.evaluations} does not divide --steps={args.steps}")
    return args


def settings_of(args, workers=1, devices_per_worker=None):
    """Returns the `Settings` that flags and the number of replicas give.

    Raises:
        ValueError: if the replicas do not divide the batch.
    """
    names = {field.name for field in dataclasses.fields(Settings)}
    given = {name: value for name, value in vars(args).items() if name in names}
    devices = devices_per_worker or args.devices
    if args.batch % (workers * devices):
        raise ValueError(
            f"--batch={args.batch} does not divide among {workers} workers x {devices} devices"
        )
    return Settings(**given, workers=workers, devices_per_worker=devices)
