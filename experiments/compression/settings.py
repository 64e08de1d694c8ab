"""The flags of a training run: `run` shows and passes them on, the workers read them."""

import argparse
import json
from pathlib import Path

from experiments.quickstart.datasets import DATASETS

RESULTS = Path(__file__).resolve().parent / "results" / "fashion_mnist.json"
NAMES = (
    "json",
    "arms",
    "seeds",
    "epochs",
    "batch",
    "learning_rate",
    "ratio",
    "dataset",
    "examples",
)


def add_settings(parser):
    """Adds the flags of `NAMES` to an `argparse` parser."""
    add = parser.add_argument
    add("--json", default=str(RESULTS), help="results, read and added to (default: %(default)s)")
    add("--arms", default="", help="list with commas (default: all, see README.md)")
    add("--seeds", type=int, default=3, help="runs of each arm (default: %(default)s)")
    add("--epochs", type=int, default=10, help="of each run (default: %(default)s)")
    add("--batch", type=int, default=128, help="of all workers together (default: %(default)s)")
    add(
        "--learning_rate",
        type=float,
        default=0.05,
        help="the first; it falls to 0 by a cosine (default: %(default)s)",
    )
    add("--ratio", type=_ratio, default=0.01, help="of top-k, at last (default: %(default)s)")
    add(
        "--dataset",
        choices=sorted(DATASETS),
        default="fashion_mnist",
        help="(default: %(default)s)",
    )
    add("--examples", type=int, help="use that many of each split (default: all)")


def read_rows(path):
    """Returns the rows of a results file; none if there is no such file.

    Raises:
        ValueError: if it is no results file, with its name.
        OSError: if it can't be read.
    """
    path = Path(path)
    if not path.exists():
        return []
    advice = "remove it, or give another --json"
    try:
        rows = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); {advice}") from error
    if not isinstance(rows, list):
        raise ValueError(f"{path} does not hold a list of results; {advice}")
    for number, row in enumerate(rows):
        for name, kind in (("arm", str), ("seed", int), ("accuracy", int | float)):
            if not isinstance(row, dict) or not isinstance(row.get(name), kind):
                raise ValueError(f"{path}, row {number} lacks its {name}; {advice}")
    return rows


def _ratio(text):
    ratio = float(text)
    if not 0 < ratio <= 0.25:
        raise argparse.ArgumentTypeError(
            f"must be above 0 and at most 0.25, where the warm-up of top-k begins; got {text}"
        )
    return ratio
