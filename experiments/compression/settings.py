"""The flags of the experiment: `run` shows and passes them on, the workers read them."""

import argparse
from pathlib import Path

from experiments import fashion, flag_ranges

RESULTS = Path(__file__).resolve().parent / "results" / "fashion_mnist.json"
SETTINGS = ("dataset", "examples", "epochs", "batch", "learning_rate", "ratio")


def add_settings(parser):
    """Adds the flags of `SETTINGS` to an `argparse` parser, and where the data lie."""
    add = parser.add_argument
    add("--epochs", type=flag_ranges.COUNT, default=10, help="of each run (default: %(default)s)")
    add(
        "--batch",
        type=flag_ranges.COUNT,
        default=128,
        help="of all workers together (default: %(default)s)",
    )
    add(
        "--learning_rate",
        type=flag_ranges.POSITIVE,
        default=0.05,
        help="the first; it falls to 0 by a cosine (default: %(default)s)",
    )
    add("--ratio", type=_ratio, default=0.01, help="of top-k, at last (default: %(default)s)")
    fashion.add_flags(parser)


def settings_of(args):
    """What all rows of one file have in common; how many hold gradients back decides too."""
    return {name: getattr(args, name) for name in (*SETTINGS, "workers", "devices_per_worker")}


def flags_of(args):
    """What `add_settings` has read, as flags again."""
    given = {name: getattr(args, name) for name in (*SETTINGS, "data_dir")}
    return [f"--{name}={value}" for name, value in given.items() if value is not None]


def _ratio(text):
    ratio = float(text)
    if not 0 < ratio <= 0.25:
        raise argparse.ArgumentTypeError(
            f"must be above 0 and at most 0.25, where the warm-up of top-k begins; got {text}"
        )
    return ratio
