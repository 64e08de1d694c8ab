"""Two trials at a time, each a cluster of two workers: nothing is shared, nothing differs."""

import json
from pathlib import Path

import pytest

from tfscale.tuning import Settings, search

ROOT = Path(__file__).resolve().parent.parent.parent


def space(trial):
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True),
        "momentum": trial.suggest_float("momentum", 0.0, 0.9),
        "precision": ["mixed_bfloat16", "float32"][trial.number],
    }


@pytest.mark.slow
def test_trials_of_two_workers_run_side_by_side(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("TFSCALE_LOCAL_WORKERS", raising=False)
    settings = Settings(
        folder=str(tmp_path), trials=2, parallel=2, workers=2, metric="loss", give_up_after=1
    )
    program = ["-m", "tests.multiprocess.tuning_training"]
    report = search(space, program, [], settings, notify=print)
    assert [row["state"] for row in report.rows] == ["complete"] * 2
    seen = []
    for number in (0, 1):
        row = next(row for row in report.rows if row["number"] == number)
        one, other = (
            json.loads(Path(row["folder"], f"worker-{index}.json").read_text()) for index in (0, 1)
        )
        # Drawn once, equal on all workers to the last bit; so are the weights.
        assert one["run"] == other["run"]
        assert one["run"]["momentum"] == row["params"]["momentum"]
        assert one["run"]["learning_rate"] == row["params"]["learning_rate"]
        assert one["weights"] == other["weights"] and one["replicas"] == other["replicas"] == 2
        assert one["workers"] == other["workers"] and one["TMPDIR"] == other["TMPDIR"]
        assert one["local_workers"] == other["local_workers"] == "4"
        # The policy of the other trial does not leak into this one.
        dtype = {0: "bfloat16", 1: "float32"}[number]
        assert one["compute_dtype"] == other["compute_dtype"] == dtype
        assert sorted(row["scores"]) == [1, 2]
        seen.append(one)
    first, second = seen
    assert first["begin"] < second["end"] and second["begin"] < first["end"]
    assert len({*first["workers"], *second["workers"]}) == 4
    assert first["TMPDIR"] != second["TMPDIR"]
    assert first["run"]["model_dir"] != second["run"]["model_dir"]
    assert not Path(first["TMPDIR"]).exists() and not Path(second["TMPDIR"]).exists()
    assert " -m launch.local --workers=2 -m tests.multiprocess" in report.best["command"]
