"""Small real data sets as (image, label) pairs, and their TFRecord shards.

Digits ship with scikit-learn (Alpaydin and Kaynak, UCI machine learning repository, 1998);
Fashion-MNIST (Xiao et al., arXiv:1708.07747) comes from the Debian package
dataset-fashion-mnist where it is installed, and from Keras's loader otherwise.
"""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
FASHION_FOLDER = Path("/usr/share/datasets/fashion-mnist")
FASHION_CLASSES = (
    "t-shirt", "trouser", "pullover", "dress", "coat",
    "sandal", "shirt", "sneaker", "bag", "ankle-boot",
)  # fmt: skip


def digits(held_out=5):
    """Every `held_out`-th of the 1,797 digits is held out; 8 x 8 pixels are enlarged to 32 x 32.

    Returns:
        `dict` of split name to ``(images [n, 32, 32, 3] uint8, labels [n])``, and class names.
    """
    from sklearn.datasets import load_digits

    raw = load_digits()
    grey = np.round(raw.images * (255 / 16)).astype(np.uint8)
    images = np.repeat(grey.repeat(4, axis=1).repeat(4, axis=2)[..., None], 3, axis=-1)
    test = np.arange(len(images)) % held_out == 0
    splits = {
        "train": (images[~test], raw.target[~test]),
        "validation": (images[test], raw.target[test]),
    }
    return splits, tuple(str(i) for i in range(10))


def fashion_mnist(folder=FASHION_FOLDER):
    """Fashion-MNIST, 60,000 + 10,000 grey images of 28 x 28 pixels, as RGB.

    Returns:
        `dict` of split name to ``(images [n, 28, 28, 3] uint8, labels [n])``, and class names.
    """
    folder = Path(folder)
    if folder.is_dir():

        def read(name, header):
            with gzip.open(folder / name) as f:
                return np.frombuffer(f.read(), np.uint8, offset=header)

        splits = {}
        for split, prefix in (("train", "train"), ("validation", "t10k")):
            images = read(f"{prefix}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
            splits[split] = (images, read(f"{prefix}-labels-idx1-ubyte.gz", 8))
    else:
        from tfscale import keras

        print(f"{folder} is not there; asking Keras's loader for Fashion-MNIST ...", flush=True)
        try:
            train, test = keras.datasets.fashion_mnist.load_data()
        except Exception as error:
            raise FileNotFoundError(
                f"Fashion-MNIST is neither in {folder} (install the Debian package "
                f"dataset-fashion-mnist) nor can it be downloaded: {error}"
            ) from error
        splits = {"train": train, "validation": test}
    rgb = {k: (np.repeat(x[..., None], 3, axis=-1), y) for k, (x, y) in splits.items()}
    return rgb, FASHION_CLASSES


DATASETS = {"digits": digits, "fashion_mnist": fashion_mnist}


def write_records(name, output):
    """Writes the data set's JPEG shards into `output`, unless they are complete there."""
    from tfscale.data.prepare import prepare_arrays

    splits, class_names = DATASETS[name]()
    for split, (images, labels) in splits.items():
        prepare_arrays(zip(images, labels, strict=True), output, split, class_names)


def ensure_records(name, output):
    """`write_records` in a process of its own: writing JPEGs starts TensorFlow.

    A process in which TensorFlow has started can't set up its devices for training any more.

    Raises:
        RuntimeError: if the records could not be written; the process has said why.
    """
    if all(Path(output, f"{split}.index.json").exists() for split in ("train", "validation")):
        return
    command = [sys.executable, "-m", "experiments.quickstart.datasets", name, str(output)]
    without_cluster = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    code = subprocess.run(command, cwd=ROOT, env=without_cluster).returncode
    if code:
        raise RuntimeError(f"writing the records of {name} into {output} failed, see above")


def main():
    try:
        write_records(*sys.argv[1:])
    except (ImportError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
