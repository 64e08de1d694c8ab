"""Small grey pictures as arrays in memory: Fashion-MNIST, or the digits of scikit-learn."""

from pathlib import Path

import numpy as np

from experiments import flag_ranges
from experiments.quickstart import datasets

# Of Fashion-MNIST's training pictures, in units of the 8-bit pixel.
MEAN, STD = 72.94, 90.02


def add_flags(parser):
    """Adds ``--dataset``, ``--data_dir`` and ``--examples`` to an `argparse` parser."""
    add = parser.add_argument
    add(
        "--dataset",
        choices=sorted(datasets.DATASETS),
        default="fashion_mnist",
        help="(default: %(default)s)",
    )
    add(
        "--data_dir",
        help="folder of Fashion-MNIST's four .gz files (default: that of Debian's package "
        "dataset-fashion-mnist; without it Keras downloads them)",
    )
    add("--examples", type=flag_ranges.COUNT, help="use that many of each split (default: all)")


def load(dataset="fashion_mnist", data_dir=None, examples=None):
    """Returns ``(images, labels), (images, labels)``: training and test.

    Args:
        dataset: ``"fashion_mnist"`` (60,000 + 10,000 pictures of 28 x 28) or ``"digits"`` (1,437
            + 360, enlarged to 32 x 32). Defaults to the first.
        data_dir: folder of Fashion-MNIST's files, see `add_flags`.
        examples: `int`, how many of each split; None (default) for all.

    Returns:
        Images are uint8 ``[n, height, width, 1]``, labels int32 ``[n]``.

    Raises:
        FileNotFoundError: if a file is not there or cannot be downloaded.
        ValueError: for a `data_dir` of digits, which come with scikit-learn.
    """
    if data_dir is None:
        splits, _ = datasets.DATASETS[dataset]()
    elif dataset != "fashion_mnist":
        raise ValueError(f"--data_dir={data_dir}: {dataset} comes with scikit-learn; leave it out")
    elif not Path(data_dir).is_dir():
        raise FileNotFoundError(f"--data_dir={data_dir} is no folder")
    else:
        splits, _ = datasets.fashion_mnist(data_dir)

    def grey(split):
        images, labels = splits[split]
        return np.ascontiguousarray(images[:examples, ..., :1]), labels[:examples].astype(np.int32)

    return grey("train"), grey("validation")


def halved(images):
    """Returns pictures of half the side: the rounded mean of each 2 x 2 pixels, uint8."""
    n, height, width, channels = images.shape
    tiles = images.reshape(n, height // 2, 2, width // 2, 2, channels)
    return np.round(tiles.mean((2, 4), dtype=np.float32)).astype(np.uint8)


def order(examples, seed, count):
    """Returns `count` indices: one random permutation of all examples after the other.

    They depend on the seed alone, so that runs of any batch size meet the examples in the same
    order, and each example as often, give or take one.
    """
    epochs = -(-count // examples)
    rngs = (np.random.default_rng([seed, epoch]) for epoch in range(epochs))
    return np.concatenate([rng.permutation(examples) for rng in rngs])[:count]
