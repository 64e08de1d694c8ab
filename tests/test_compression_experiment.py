"""The compression experiment: its flags, its arms, and its table."""

import json

import pytest

from experiments.compression import run, settings
from experiments.compression.arms import arms


def rows(**accuracies):
    return [
        {"arm": arm, "seed": seed, "accuracy": accuracy}
        for arm, values in accuracies.items()
        for seed, accuracy in enumerate(values)
    ]


def test_one_seed_has_no_interval(tmp_path, capsys):
    (dense, int8) = run.compare(rows(dense=[0.9], int8=[0.89]))
    assert int8["difference"] == pytest.approx(-0.01)
    assert int8["low"] is int8["high"] is dense["low"] is None
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows(dense=[0.9], int8=[0.89])))
    assert run.main(["--report", f"--json={path}"]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split() == ["int8", "0.8900", "-0.0100", "-", "1", "seed"]


def test_interval_of_two_seeds():
    dense, int8 = run.compare(rows(dense=[0.9, 0.9], int8=[0.89, 0.91]))
    # Mean 0, standard error 0.01, Student's t of one degree of freedom.
    assert (int8["low"], int8["high"]) == pytest.approx((-0.12706, 0.12706))
    assert dense["low"] is None
    assert "[-0.1271, +0.1271]  2 seeds" in run.describe(int8)


def test_help_shows_all_flags(capsys):
    with pytest.raises(SystemExit) as stop:
        run.main(["--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for name in settings.NAMES:
        assert f"--{name} " in text
    for default in ("(default: 3)", "(default: 10)", "(default: 128)", "(default: fashion_mnist)"):
        assert default in text
    with pytest.raises(SystemExit):
        run.main(["--sedes=3"])


def test_flags_reach_the_workers(monkeypatch, tmp_path):
    from experiments.compression import training
    from launch import local

    seen = []
    monkeypatch.setattr(local, "main", lambda argv: seen.extend(argv) or 7)
    flags = [f"--json={tmp_path / 'a.json'}", "--arms=dense,topk", "--seeds=5", "--ratio=0.02"]
    assert run.main([*flags, "--workers=3", "--examples=64"]) == 7
    assert "--workers=3" in seen
    args = training.parse(seen[seen.index("--") + 1 :])
    assert (args.arms, args.seeds, args.ratio, args.examples) == ("dense,topk", 5, 0.02, 64)
    assert (args.epochs, args.batch, args.learning_rate) == (10, 128, 0.05)


@pytest.mark.parametrize(
    "epochs, ratios",
    [
        (10, {0: 0.25, 1: 0.05, 2: 0.01, 5: None}),
        (4, {0: 0.25, 1: 0.05, 2: None}),
        (2, {0: 0.25, 1: None}),
    ],
)
def test_first_half_warms_up_and_ends_dense(epochs, ratios):
    phases = arms(0.01)["topk-first-half"].phases(epochs)
    found = {epoch: phase and round(phase.ratio, 6) for epoch, phase in phases.items()}
    assert found == ratios


@pytest.mark.parametrize(
    "content, message",
    [
        ("[", "a.json is not JSON"),
        ("{}", "a.json does not hold a list"),
        ('[{"arm": "dense"}]', "a.json, row 0 lacks its seed"),
    ],
)
def test_a_file_that_holds_no_results_is_named(tmp_path, capsys, content, message):
    path = tmp_path / "a.json"
    path.write_text(content)
    for more in ([], ["--report"]):
        assert run.main([f"--json={path}", *more]) == 1
        assert message in capsys.readouterr().err


def test_a_ratio_out_of_range_is_refused_at_once(capsys):
    for ratio in ("7", "0", "nan", "0.3"):
        with pytest.raises(SystemExit):
            run.main([f"--ratio={ratio}"])
        assert "argument --ratio: must be above 0 and at most 0.25" in capsys.readouterr().err
