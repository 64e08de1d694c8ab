"""The settings of a run from its start on: what is kept, and what a resumed run names."""

import json

import pytest

from experiments.run_config import RunConfig
from experiments.run_history import RunHistory


def test_settings_are_kept_from_the_start_on(tmp_path):
    def started(step, **flags):
        run = RunConfig(**flags)
        return RunHistory(tmp_path / "config.json", run, step)

    started(0, ema=0.5).keep()
    (first := started(0)).keep()  # Nothing of the run before has remained.
    assert first.change is None and started(6, data_dir="x", export=False).change is None
    changed = {"epochs": 4, "momentum_epochs": (0, 4), "momentum_values": (0.9, 0.5)}
    (other := started(6, **changed)).keep()
    assert other.change == (
        "this run was started with other settings: epochs=4 (was 15), momentum_epochs=0,4 "
        "(was None), momentum_values=0.9,0.5 (was None)"
    )
    (again := started(9, **changed, threads=1)).keep()
    assert again.change == other.change
    found = json.loads((tmp_path / "config.json").read_text())
    assert [(e["from_step"], e["settings"]["epochs"]) for e in found] == [(0, 15), (6, 4)]
    # Killed before the next checkpoint: what was trained in between is lost.
    started(9, epochs=7).keep()
    (again := started(9, **changed)).keep()
    found = json.loads((tmp_path / "config.json").read_text())
    assert [e["from_step"] for e in found] == [0, 6]
    (tmp_path / "config.json").write_text(json.dumps([found[1]]))
    assert started(9).change is None  # Nothing is known of the start.
    (tmp_path / "config.json").write_text("[{}]")
    with pytest.raises(ValueError, match="config.json does not hold the settings of a run; remove"):
        started(9)
