"""Measuring cold and warm epochs, and memory over epochs: what is counted, what is said."""

import os

import numpy as np
import pytest

from experiments.input import (
    epochs,
    epochs_report,
    epochs_run,
    fresh_process,
    memory,
    memory_report,
    memory_run,
    tiers,
)
from tests import record_files

SETTINGS = {"data_dir": "", "split": "train", "rate": None, "latency": 0.0, "image_size": 16,
            "batch": 4, "budget": None, "process": 1, "source": "slow"}  # fmt: skip


def run_epochs(tmp_path, tier, **changes):
    folder = tmp_path / "cache"
    folder.mkdir(exist_ok=True)
    settings = {**SETTINGS, "data_dir": str(tmp_path), "folder": str(folder), "tier": tier}
    return epochs_run.measure({**settings, "epochs": 3, **changes})


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["none", "memory_half", "disk"])
def test_what_an_epoch_reads_from_the_source(tmp_path, tier, capfd):
    # 10 records in batches of 4: the third batch of an epoch is filled from the next order.
    record_files.write(tmp_path, [6, 4])
    opened, cold, warm, last = run_epochs(tmp_path, tier)
    assert [row["epoch"] for row in (opened, cold, warm, last)] == [0, 1, 2, 3]
    assert 0 < cold["first_batch_seconds"] < cold["seconds"]
    assert cold["images"] == 12 and cold["records"] == 10
    assert cold["source_bytes"] + opened["source_bytes"] >= cold["record_bytes"]
    # The pipeline reads ahead, of so few records whole epochs: only the sum is known.
    total = sum(row["source_bytes"] for row in (opened, cold, warm, last))
    if tier == "none":
        assert total >= 3 * cold["record_bytes"]
    elif tier == "memory_half":
        assert total >= 1.3 * cold["record_bytes"]
    else:
        assert warm["source_bytes"] == last["source_bytes"] == 0
        _, restarted = run_epochs(tmp_path, tier, epochs=1, process=2)
        assert restarted["source_bytes"] == 0
    assert f"slow, {tier}: epoch 3:" in capfd.readouterr().out


def test_every_tier_has_a_cache(tmp_path):
    for tier in tiers.TIERS:
        cache = tiers.cache(tier, 10**6, 224, str(tmp_path))
        assert (cache is None) == (tier == "none")
        assert (cache is not None and cache.disk is not None) == (tier in tiers.ON_DISK)


def row(tier, epoch, seconds, source="slow", process=1, size=0):
    return {"source": source, "tier": tier, "process": process, "epoch": epoch,
            "seconds": seconds, "images": 100, "images_per_second": 100 / seconds, "batch": 10,
            "cpu_seconds": seconds / 2, "first_batch_seconds": seconds / 2,
            "source_bytes": size, "records": 100, "record_bytes": 10**7}  # fmt: skip


def test_summaries_and_claims():
    rows = [row("disk", 0, 0.5), row("disk", 1, 2.5, size=10**7), row("disk", 2, 0.2),
            row("disk", 3, 0.1), row("disk", 0, 0.5, process=2), row("disk", 1, 0.4, process=2),
            row("none", 0, 0.5, "local"), row("none", 1, 1, "local"), row("none", 2, 1, "local"),
            row("decoded", 0, 0.5, "local"), row("decoded", 1, 1, "local"),
            row("decoded", 2, 0.4, "local")]  # fmt: skip
    found = epochs_report.summaries(rows, 5 * 10**6)
    disk = found[0]
    assert disk["times_faster"] == pytest.approx(12.5)
    assert disk["warm_images_per_second"] == pytest.approx(750)  # median of 500 and 1000
    assert disk["restart_images_per_second"] == pytest.approx(90 / 0.2)
    assert disk["link_share"] == pytest.approx(0.8)  # 2 s of 2.5 s
    assert epochs_report.claims(found) == [
        "disk, second epoch against the first: 12.5 x; at least 10 x wanted: reached",
        "decoded against none, local, images/s: 2.5 x; at least 3 x wanted: MISSED",
        "decoded against none, local, images/CPU s: 2.5 x; at least 3 x wanted: MISSED",
    ]
    assert "slow, disk" in epochs_report.table(found)
    few = [{**part, "batch": 11} for part in rows]
    for line in epochs_report.claims(epochs_report.summaries(few, None)):
        assert "9 batches an epoch are too few to tell" in line


def test_epochs_draws(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [row("none", 0, 0.5), row("none", 1, 2), row("none", 2, 2)]
    epochs_report.plot(tmp_path / "f.png", epochs_report.summaries(rows, None), "title")
    assert (tmp_path / "f.png").stat().st_size


@pytest.mark.parametrize(
    ("command", "flags", "message"),
    [
        (epochs, ["--rate=fast"], "--rate='fast' is no rate"),
        (epochs, ["--tiers=none,ram"], "--tiers=none,ram: 'ram' is no tier; wanted none, memory"),
        (epochs, ["--local_tiers=none,none"], "'none' is there twice"),
        (epochs, ["--tiers=", "--local_tiers="], "no tier to measure"),
        (epochs, ["--epochs=1"], "--epochs=1: wanted at least 2"),
        (epochs, ["--json=/proc/no/f.json"], "--json=/proc/no/f.json can't be written"),
        (epochs, ["--latency=-1"], "--latency=-1.0 is no latency"),
        (epochs, ["--data_dir=/no"], "--data_dir=/no is no folder"),
        (epochs, ["--cache_dir=/no"], "--cache_dir=/no is no folder"),
        (memory, ["--iterators=two"], "--iterators: 'two' is neither 'one' nor 'new'"),
        (memory, ["--epochs=5"], "--epochs=5: wanted at least 8"),
        (memory, ["--budget=lots"], "--budget: 'lots' is not a size"),
        (memory, ["--tiers="], "no tier to measure"),
        (memory, ["--data_dir=gs://b/x"], "--data_dir=gs://b/x is no folder"),
    ],
)
def test_a_bad_flag_is_named(command, flags, message, tmp_path, capsys):
    assert command.main([f"--data_dir={tmp_path}", *flags]) == 1
    assert message in capsys.readouterr().err


def test_the_line_is_that_of_polyfit():
    values = np.random.RandomState(1).uniform(0, 100, 12)
    slope, error = memory_report.fit(list(values))
    (expected, _), covariance = np.polyfit(np.arange(12), values, 1, cov=True)
    assert slope == pytest.approx(expected)
    assert error == pytest.approx(2 * covariance[0, 0] ** 0.5)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([1000] * 10, memory_report.NO_GROWTH),
        ([1000 + 0.5 * x for x in range(10)], memory_report.NO_GROWTH),  # 0.45 %
        ([1000 + 5 * x for x in range(10)], memory_report.GROWS),
        ([1000 + 5 * x + 2 * (-1) ** x for x in range(10)], memory_report.GROWS),
        ([1000 + 100 * (-1) ** x for x in range(10)], memory_report.UNCLEAR),
        ([1000 - 50 * x for x in range(10)], memory_report.NO_GROWTH),
    ],
)
def test_verdicts(values, verdict):
    assert memory_report.verdict(*memory_report.fit(values), values) == verdict


def memory_row(tier, most, growth=0):
    values = [most - growth * (19 - x) for x in range(20)]
    samples = [{"epoch": x, "rss": value * 2**20} for x, value in enumerate([100, *values])]
    return {"tier": tier, "iterators": "one", "budget": 50 * 2**20, "samples": samples}


def test_memory_is_judged_against_the_budget_and_drawn(tmp_path):
    rows = [memory_row("none", 600), memory_row("memory_half", 700, 5),
            memory_row("memory_disk", 720)]  # fmt: skip
    memory_report.judge(rows)
    assert [row["verdict"] for row in rows] == ["no growth", "GROWS", "no growth"]
    assert [row["within_budget"] for row in rows] == [None, True, False]
    assert rows[1]["slope"] == pytest.approx(5 * 2**20)
    assert "memory_half, one" in memory_report.table(rows)
    pytest.importorskip("matplotlib")
    memory_report.plot(tmp_path / "f.png", rows)
    assert (tmp_path / "f.png").stat().st_size


@pytest.mark.slow
def test_memory_is_sampled_after_each_epoch(tmp_path):
    record_files.write(tmp_path, [8])
    found = memory_run.measure(
        {**SETTINGS, "data_dir": str(tmp_path), "tier": "memory_half", "epochs": 2,
         "iterators": "new", "folder": str(tmp_path)}
    )  # fmt: skip
    assert [sample["epoch"] for sample in found["samples"]] == [0, 1, 2]
    assert all(0 < s["pss"] <= s["rss"] for s in found["samples"])
    assert found["budget"] == found["record_bytes"] // 2


def test_resident_memory_sees_what_is_allocated():
    before = memory_run.resident()["rss"]
    kept = np.ones(50 * 2**20, np.uint8)
    assert 45 * 2**20 < memory_run.resident()["rss"] - before < 80 * 2**20
    del kept


@pytest.mark.slow
def test_a_fresh_process():
    assert fresh_process.call(int, "7", "this test") == 7
    with pytest.raises(RuntimeError, match="this test: ValueError: invalid literal .* 'luck'"):
        fresh_process.call(int, "luck", "this test")
    with pytest.raises(RuntimeError, match="this test: its process ended .* with exit code 3"):
        fresh_process.call(os._exit, 3, "this test")
