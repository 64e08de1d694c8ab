"""The quickstart's runs.

sh launch/quickstart.sh
sh launch/quickstart.sh --dataset=fashion_mnist
sh launch/quickstart.sh --data_dir=path/to/class_folders
"""

import dataclasses

from experiments.run_config import RunConfig


def digits():
    """scikit-learn's 1,797 handwritten digits: no download, under two minutes on two cores."""
    return RunConfig(dataset="digits")


def fashion_mnist():
    """Fashion-MNIST: 60,000 pictures of clothes, in grey, 28 x 28."""
    return dataclasses.replace(
        digits(),
        dataset="fashion_mnist",
        model_dir="runs/fashion_mnist",
        image_size=28,
        epochs=3,
        global_batch_size=256,
        base_learning_rate=16.0,
        warmup_epochs=0.5,
        flip=True,
    )


def folder():
    """Your own class-per-folder images, at 64 pixels."""
    return dataclasses.replace(
        digits(),
        dataset="records",
        model_dir="runs/folder",
        epochs=30,
        image_size=64,
        min_crop_area=0.25,
        base_learning_rate=16.0,
        flip=True,
        warmup_epochs=5.0,
    )
