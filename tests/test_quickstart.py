"""The quickstart: its data sets, and the whole program as a user runs it."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.quickstart import datasets

ROOT = Path(__file__).resolve().parent.parent


def quickstart(*flags, timeout=600):
    return subprocess.run(
        [sys.executable, "-m", "experiments.quickstart", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_digits_are_split_without_overlap():
    splits, names = datasets.digits()
    (x, y), (x_test, y_test) = splits["train"], splits["validation"]
    assert len(x) + len(x_test) == 1797 and len(x_test) == 360
    assert x.shape[1:] == (32, 32, 3) and x.dtype == np.uint8 and x.max() == 255
    assert len(names) == 10 and set(y) == set(y_test) == set(range(10))


def test_fashion_mnist_from_the_debian_package(tmp_path):
    for prefix, count in (("train", 6), ("t10k", 3)):
        pixels = bytes(range(count)) * 784
        with gzip.open(tmp_path / f"{prefix}-images-idx3-ubyte.gz", "wb") as f:
            f.write(bytes(16) + pixels)
        with gzip.open(tmp_path / f"{prefix}-labels-idx1-ubyte.gz", "wb") as f:
            f.write(bytes(8) + bytes(range(count)))
    splits, names = datasets.fashion_mnist(tmp_path)
    assert splits["train"][0].shape == (6, 28, 28, 3) and splits["validation"][0].shape[0] == 3
    assert list(splits["train"][1]) == [0, 1, 2, 3, 4, 5] and len(names) == 10


@pytest.mark.parametrize("flags, says", [
    (["--dataset=imagenet"], "fashion_mnist"),
    (["--workers=0"], "workers"),
    (["--epochs=many"], "epochs"),
    (["--epoch=3"], "--epochs"),
    (["--data_dir=/nowhere/at/all"], "/nowhere/at/all"),
    (["extra"], "extra"),
])  # fmt: skip
def test_bad_input_is_refused_by_name(flags, says, tmp_path):
    done = quickstart(f"--model_dir={tmp_path}", *flags, timeout=120)
    assert done.returncode != 0
    assert says in done.stderr + done.stdout
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_trains_to_95_percent_then_says_that_it_is_done(tmp_path):
    done = quickstart(f"--model_dir={tmp_path}")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["accuracy"] >= 0.95
    assert (summary["workers"], summary["devices_per_worker"]) == (2, 2)
    assert summary["images_per_second"] > 0 and summary["wall_seconds"] > 0
    assert summary["global_batch"] == 128
    assert Path(summary["export_dir"], "saved_model.pb").exists()
    assert list(Path(summary["log_dir"]).rglob("events.out.tfevents*"))

    again = quickstart(f"--model_dir={tmp_path}")
    assert again.returncode == 0
    assert "already complete" in again.stdout
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
