"""The flags of a training run: `run` shows and passes them on, the workers read them."""

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
    add("--ratio", type=float, default=0.01, help="of top-k, at last (default: %(default)s)")
    add(
        "--dataset",
        choices=sorted(DATASETS),
        default="fashion_mnist",
        help="(default: %(default)s)",
    )
    add("--examples", type=int, help="use that many of each split (default: all)")
