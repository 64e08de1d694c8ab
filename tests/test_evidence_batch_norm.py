"""The experiment batch_norm: flags, chunks as groups of replicas, runs that resume, cost."""

import functools
import re

import numpy as np
import pytest

from experiments.batch_norm import report as batch_norm_report
from experiments.batch_norm import run as batch_norm
from experiments.results_file import Results


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 2, 4])
def test_chunks_are_what_groups_of_replicas_compute(group):
    from experiments.batch_norm.chunked import ChunkedBatchNormalization
    from tests.references_batch_norm import mirrored
    from tfscale import keras
    from tfscale.layers import GroupedSyncBatchNormalization
    from tfscale.layers.moving_statistics import merge_moving_statistics

    rng = np.random.default_rng(0)
    images = rng.normal(size=(24, 6, 6, 2)).astype(np.float32)
    images += np.arange(24, dtype=np.float32)[:, None, None, None] % 8  # chunks differ
    labels = rng.integers(0, 3, 24)

    def trained(norm):
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((6, 6, 2)),
                keras.layers.Conv2D(4, 3, use_bias=False),
                norm(),
                keras.layers.ReLU(),
                keras.layers.Conv2D(4, 3, use_bias=False),
                norm(),
                keras.layers.Flatten(),
                keras.layers.Dense(3),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.05, momentum=0.9),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        model.fit(images, labels, batch_size=8, epochs=2, shuffle=False, verbose=0)
        return model

    strategy = mirrored(4)
    with strategy.scope():
        real = trained(
            functools.partial(GroupedSyncBatchNormalization, group, momentum=0.9, epsilon=1e-5)
        )
    merge_moving_statistics(real)
    emulated = trained(functools.partial(ChunkedBatchNormalization, 4 // group))
    for ours, theirs in zip(emulated.get_weights(), real.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=3e-6)
    np.testing.assert_allclose(
        emulated.predict(images, verbose=0), real.predict(images, verbose=0), atol=2e-5
    )


def test_batch_norm_resumes_and_shows_its_curve(monkeypatch, tmp_path, capsys):
    from experiments.batch_norm import training

    calls = []

    def train(per_replica, group, seed, data, args):
        calls.append((per_replica, group, seed))
        return {"accuracy": 0.8 + 0.01 * group + 0.001 * seed, "training_loss": 1.0, "steps": 3}

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(training, "load", lambda *args: [(range(8), None), None])
    flags = ["--quick", "--rounds=0", f"--results={tmp_path}", "--replicas=4"]
    assert batch_norm.main([*flags, "--seeds=1"]) == 0
    assert batch_norm.main(flags) == 0
    assert calls == [(2, g, s) for s in (0, 1) for g in (1, 2, 4)]
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:5] == ["2", "1", "2", "0.8105", "-0.0300"] for line in lines)
    assert batch_norm.main([*flags, "--epochs=5"]) == 1
    assert any(line.startswith("--quick only shows") for line in lines)
    capsys.readouterr()
    assert batch_norm.main([*flags, "--per_replica=3"]) == 1
    assert "--per_replica=3 --replicas=4: a step needs more than the 8" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--groups=3", "--groups: 3 does not divide --replicas=4"),
        ("--groups=4,4", "argument --groups: '4,4' has 4 twice"),
        ("--groups=2,x", "argument --groups: '2,x': expected numbers with commas"),
        ("--replicas=0", "argument --replicas: '0' is no"),
        ("--per_replica=2,0", "argument --per_replica: '2,0': expected .* '0' is no"),
        ("--learning_rate=nan", "argument --learning_rate: 'nan' is no"),
        ("--epochs=0", "argument --epochs: '0' is no"),
        ("--seeds=0", "argument --seeds: '0' is no"),
        ("--rounds=-1", "argument --rounds: '-1' is no whole number from 0 on"),
        ("--cost_steps=3", "argument --cost_steps: '3' is no whole number from 4 on"),
    ],
)
def test_batch_norm_flags_are_checked(capsys, flag, message):
    with pytest.raises(SystemExit):
        batch_norm.parse(["--replicas=4", flag])
    assert re.search(message, capsys.readouterr().err)


def test_cost_is_compared_with_groups_of_one():
    found = [
        {"arm": f"groups of {g}", "group": g, "round": r, "milliseconds": 10.0 * g + r}
        for r in range(3)
        for g in (1, 2)
    ]
    lines = batch_norm_report.cost_table(found).splitlines()
    assert lines[2].split() == ["groups", "of", "1", "11.0", "-", "3"]
    assert lines[3].split() == ["groups", "of", "2", "21.0", "+10.0", "[+10.0,", "+10.0]", "3"]


@pytest.mark.slow
def test_cost_is_measured_in_a_process_of_its_own(tmp_path):
    flags = ["--quick", f"--results={tmp_path}", "--rounds=1", "--cost_steps=6"]
    args = batch_norm.parse([*flags, "--workers=1", "--devices_per_worker=1"])
    cost = Results(tmp_path / "cost.json", key=("arm", "round"))
    assert batch_norm.measure_cost(args, cost) == 0
    assert [row["group"] for row in cost.rows] == [1]
    assert all(row["milliseconds"] > 0 for row in cost.rows)
