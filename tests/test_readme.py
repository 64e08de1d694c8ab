"""What the README shows runs: its example, its commands, the names in its table."""

import importlib
import inspect
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def code_blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def write_records(folder, number):
    from tfscale.data.prepare import prepare_arrays

    rng = np.random.default_rng(0)
    labels = np.arange(number) % 2
    images = rng.integers(0, 90, (number, 32, 32, 3)) + 160 * labels[:, None, None, None]
    for split in ("train", "validation"):
        examples = zip(images.astype(np.uint8), labels, strict=True)
        prepare_arrays(examples, str(folder / "records"), split, ["dark", "light"])


@pytest.mark.slow
def test_the_example_trains_on_two_workers_and_resumes(tmp_path):
    write_records(tmp_path, 128)
    example = code_blocks("python")[0]
    assert len(example.strip().splitlines()) <= 18
    (tmp_path / "my_training.py").write_text(example)
    launch = [sys.executable, "-m", "launch.local", "--workers=2", "my_training.py"]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    for run in range(2):
        done = subprocess.run(
            launch, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=280
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        if run == 0:  # The second has nothing left to do.
            assert re.search(
                r"traced in .* s; \d+ gradients travel in \d+ buckets, uncompressed", done.stdout
            ), done.stdout[-3000:]
        steps = sorted(p.name for p in (tmp_path / "checkpoints").glob("step-*"))
        assert steps[-1] == "step-00000006", steps


def test_the_example_of_compression_is_valid():
    import tfscale

    (example,) = [block for block in code_blocks("python") if "CompressionSchedule" in block]
    fitted = []
    names = {"tfscale": tfscale, "images": None, "resume": None}
    names["model"] = types.SimpleNamespace(fit=lambda *args, **kwargs: fitted.append(kwargs))
    exec(example, names)
    (schedule, _) = fitted[0]["callbacks"]
    assert list(schedule.phases) == [0, 1, 2, 3, 4, 13]
    assert schedule.phases[4].startswith("topk ratio 0.01 ")
    assert [round(100 * ratio) for ratio in names["ratios"]] == [25, 11, 5, 2, 1]


def test_the_example_of_input_is_valid():
    import tfscale

    (example,) = [block for block in code_blocks("python") if "data.Cache(" in block]
    called = []
    data = types.SimpleNamespace(
        train_dataset=lambda *args, **kwargs: called.append(kwargs),
        Cache=tfscale.data.Cache,
        augment=tfscale.data.augment,
    )
    exec(example, {"tfscale": types.SimpleNamespace(data=data), "context": None})
    parameters = inspect.signature(tfscale.data.train_dataset).parameters
    assert called[0].keys() <= parameters.keys() and called[0]["cache"].memory == "8GiB"


@pytest.mark.slow
def test_the_example_of_phases_trains(tmp_path, monkeypatch):
    (example,) = [block for block in code_blocks("python") if "progressive.fit" in block]
    monkeypatch.chdir(tmp_path)
    write_records(tmp_path, 128)
    names = {}
    exec(example, names)
    assert int(names["model"].optimizer.iterations) == 4 * 2 + 2 * 4
    assert (tmp_path / "phases/step-00000016").is_dir()


def test_the_table_names_what_exists():
    for dotted in set(re.findall(r"`(tfscale(?:\.\w+)+)`", README)):
        parent, _, name = dotted.rpartition(".")
        module = importlib.import_module(parent)
        assert hasattr(module, name) or importlib.import_module(dotted), dotted


def test_the_files_it_names_exist():
    for block in code_blocks("sh"):
        for path in re.findall(r"(?:sh|python) ([\w/]+\.(?:sh|py))", block):
            made = path == "my_training.py" or path.startswith("runs/")
            assert made or (ROOT / path).exists(), path
    for path in re.findall(r"`((?:tfscale|launch|experiments|tests)/[\w/.]+)`", README):
        assert (ROOT / path).exists(), path
