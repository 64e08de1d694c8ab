"""Photographs at a small size, decoded: Imagenette from a folder. Digits where there is none.

    python -m experiments.imagenette --data_dir=imagenette2-160

Imagenette is ten easy classes of ImageNet (https://github.com/fastai/imagenette). Each picture is
decoded and reduced to a short side of 96 pixels once, and kept as three bytes a pixel, so that
reading it costs a training run next to nothing. Nothing of the pictures is ours to pass on.
"""

import argparse
import logging
import os
import subprocess
import sys
from pathlib import Path

from experiments import commands

ROOT = Path(__file__).resolve().parent.parent
DATASETS = ("imagenette", "digits")
SPLITS = ("train", "validation")
# The records of all pictures, and of the training pictures alone: there the search holds out some.
FULL, SEARCH = "full", "search"
SHORT_SIDE = 96
HELD_OUT = 1 / 7  # of the training pictures, in a search


def add_flags(parser):
    """Adds ``--dataset``, ``--data_dir`` and ``--records`` to an `argparse` parser."""
    add = parser.add_argument
    add("--dataset", choices=DATASETS, default="imagenette", help="(default: %(default)s)")
    add(
        "--data_dir",
        help="folder of Imagenette with train/CLASS/picture and val/CLASS/picture; needed once, "
        "to make the records",
    )
    add("--records", help="folder for the records, 0.6 GB (default: runs/DATASET)")


def records(dataset, data_dir=None, folder=None):
    """Returns the folder of a data set's records, which are made if they are not there.

    Args:
        dataset: one of `DATASETS`.
        data_dir: `str`, folder of the pictures; None if the records are there. Given though they
            are there, they are compared with it.
        folder: `str`; None for the default of ``--records``.

    Returns:
        `Path` with the sub-folders `FULL` and `SEARCH`, each with the splits `SPLITS`.

    Raises:
        FileNotFoundError: if the pictures are not there.
        ValueError: for a `data_dir` of digits, which come with scikit-learn.
        RuntimeError: if the records could not be made; the process that makes them has said why.
    """
    folder = Path(folder or ROOT / "runs" / dataset)
    if dataset == "digits" and data_dir is not None:
        raise ValueError(f"--data_dir={data_dir}: digits come with scikit-learn; leave it out")
    if data_dir is None and is_complete(folder):
        return folder
    if dataset == "imagenette":
        _check(data_dir, folder)
    # In a process of its own: TensorFlow, which decodes them, would stay in this one.
    command = [sys.executable, "-m", "experiments.imagenette", f"--dataset={dataset}"]
    command += [f"--data_dir={Path(data_dir).resolve()}"] if data_dir else []
    code = subprocess.run([*command, f"--records={folder.resolve()}"], cwd=ROOT).returncode
    if code:
        raise RuntimeError(f"making the records of {dataset} in {folder} failed, see above")
    return folder


def is_complete(folder):
    """Returns whether all records are there; their indices are written last."""
    parts = [
        Path(folder, part, f"{split}.index.json") for part in (FULL, SEARCH) for split in SPLITS
    ]
    return all(path.exists() for path in parts)


def _check(data_dir, folder):
    if data_dir is None:
        raise FileNotFoundError(
            f"no records in {folder}: give --data_dir, a folder of Imagenette (from "
            "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-160.tgz), once; or take "
            "--dataset=digits, which needs no download"
        )
    for split in ("train", "val"):
        if not Path(data_dir, split).is_dir():
            raise FileNotFoundError(
                f"--data_dir={data_dir} has no folder {split}/; wanted Imagenette's train/ and "
                "val/, each with a folder of pictures for each class"
            )


# ---------------------------------------------------------------------- making the records


def write(dataset, data_dir, folder):
    """Makes the records, in this process; those that are complete are left as they are."""
    if dataset == "digits":
        _write_digits(Path(folder))
        return
    from tfscale.data.prepare import prepare

    form = {"short_side": SHORT_SIDE, "format": "bmp"}
    prepare(str(data_dir), str(Path(folder, FULL)), **form)
    # The test pictures are not among these.
    train = str(Path(data_dir, "train"))
    prepare(train, str(Path(folder, SEARCH)), validation_fraction=HELD_OUT, **form)


def _write_digits(folder):
    from experiments.quickstart import datasets
    from tfscale.data.prepare import prepare_arrays

    splits, class_names = datasets.digits()
    images, labels = splits["train"]
    is_held = [number % round(1 / HELD_OUT) == 0 for number in range(len(images))]
    parts = {
        FULL: splits,
        SEARCH: {
            split: [
                array[[i for i, held in enumerate(is_held) if held == (split == "validation")]]
                for array in (images, labels)
            ]
            for split in SPLITS
        },
    }
    for part, here in parts.items():
        for split in SPLITS:
            examples = zip(*here[split], strict=True)
            prepare_arrays(examples, str(folder / part), split, class_names)


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m experiments.imagenette",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(parser)
    args = parser.parse_args(argv)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    folder = args.records or ROOT / "runs" / args.dataset

    def make():
        if args.dataset == "imagenette":
            _check(args.data_dir, folder)
        write(args.dataset, args.data_dir, folder)
        return 0

    return commands.exit_code(make, "stopped; started again, it goes on where it was")


if __name__ == "__main__":
    sys.exit(main())
