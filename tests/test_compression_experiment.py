"""The compression experiment: its flags, its arms, and its table."""

import json
from pathlib import Path

import pytest

from experiments import paired
from experiments.compression import run, settings
from experiments.compression.arms import ARMS
from experiments.results_file import Results


def rows(**accuracies):
    return [
        {"arm": arm, "seed": seed, "accuracy": accuracy}
        for arm, values in accuracies.items()
        for seed, accuracy in enumerate(values)
    ]


def file_of(path, **accuracies):
    args = run.parse([f"--json={path}"])
    given = settings.settings_of(args)
    path.write_text(json.dumps([row | given for row in rows(**accuracies)]))


def test_one_seed_has_no_interval(tmp_path, capsys):
    (dense, int8) = paired.compare(rows(dense=[0.9], int8=[0.89]), "dense")
    assert int8["difference"] == pytest.approx(-0.01)
    assert int8["low"] is int8["high"] is dense["low"] is None
    path = tmp_path / "rows.json"
    file_of(path, dense=[0.9], int8=[0.89])
    assert run.main(["--report", f"--json={path}"]) == 0
    line = capsys.readouterr().out.splitlines()[3]
    assert line.split() == ["int8", "0.8900", "-0.0100", "-", "1"]


def test_interval_of_two_seeds(tmp_path, capsys):
    # Mean 0, standard error 0.01, Student's t of one degree of freedom.
    path = tmp_path / "rows.json"
    file_of(path, dense=[0.9, 0.9], int8=[0.89, 0.91])
    assert run.main(["--report", f"--json={path}"]) == 0
    assert "[-0.1271, +0.1271]" in capsys.readouterr().out


def test_help_shows_all_flags(capsys):
    with pytest.raises(SystemExit) as stop:
        run.main(["--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for name in (*settings.SETTINGS, "json", "arms", "seeds", "data_dir"):
        assert f"--{name} " in text
    for default in ("(default: 3)", "(default: 10)", "(default: 128)", "(default: fashion_mnist)"):
        assert default in text
    with pytest.raises(SystemExit):
        run.main(["--sedes=3"])


@pytest.fixture
def launches(monkeypatch):
    """The command lines of the launcher, which trains nothing; set `code` to have it fail."""
    from experiments.compression import training
    from launch import local

    class Launches(list):
        code = 0

    seen = Launches()

    def launch(argv):
        args = training.parse(argv[argv.index("--") + 1 :])
        seen.append((argv[: argv.index("--")], args))
        if not seen.code:
            Path(args.output).write_text(json.dumps({"accuracy": 0.5, "training_loss": None}))
        return seen.code

    monkeypatch.setattr(local, "main", launch)
    monkeypatch.setattr("experiments.fashion.load", lambda *args: ((range(1437), 0), 0))
    return seen


def test_flags_reach_the_workers(launches, tmp_path):
    launches.code = 7
    flags = [f"--json={tmp_path / 'a.json'}", "--arms=dense,topk", "--seeds=5", "--ratio=0.02"]
    assert run.main([*flags, "--workers=4", "--examples=64"]) == 7
    ((launcher, args),) = launches  # what failed ends the run
    assert "--workers=4" in launcher
    assert (args.arm, args.seed, args.ratio, args.examples) == ("dense", 0, 0.02, 64)
    assert (args.epochs, args.batch, args.learning_rate) == (10, 128, 0.05)


def test_what_is_there_is_not_run_again(launches, tmp_path, capsys):
    path = tmp_path / "a.json"
    file_of(path, dense=[0.9], int8=[0.89])
    assert run.main([f"--json={path}", "--arms=dense,int8", "--seeds=2"]) == 0
    assert [(args.arm, args.seed) for _, args in launches] == [("dense", 1), ("int8", 1)]
    assert "[2/2] seed 1  int8" in capsys.readouterr().out
    assert len(json.loads(path.read_text())) == 4
    assert run.main([f"--json={path}", "--epochs=3"]) == 1
    assert "has epochs=10, this run 3" in capsys.readouterr().err


def test_a_comparison_needs_the_dense_arm(launches, tmp_path, capsys):
    flags = [f"--json={tmp_path / 'a.json'}", "--arms=int8"]
    assert run.main(flags) == 1 and not launches
    assert "--arms=int8: the arms are compared with dense; name it" in capsys.readouterr().err
    file_of(tmp_path / "a.json", int8=[0.9])
    assert run.main([flags[0], "--report"]) == 1
    assert "no runs of dense" in capsys.readouterr().err
    file_of(tmp_path / "a.json", dense=[0.9])
    assert run.main([*flags, "--seeds=1"]) == 0
    assert len(launches) == 1 and "--quick" not in capsys.readouterr().out


def test_the_results_beside_the_program_are_valid(launches):
    assert len(Results(settings.RESULTS, settings.settings_of(run.parse([]))).rows) >= 21


@pytest.mark.parametrize(
    "epochs, ratios",
    [
        (10, {0: 0.25, 1: 0.05, 2: 0.01, 5: None}),
        (4, {0: 0.25, 1: 0.05, 2: None}),
        (2, {0: 0.25, 1: None}),
    ],
)
def test_first_half_warms_up_and_ends_dense(epochs, ratios):
    phases = ARMS["topk-first-half"].phases(epochs, 0.01)
    found = {epoch: phase and round(phase.ratio, 6) for epoch, phase in phases.items()}
    assert found == ratios


@pytest.mark.parametrize(
    "content, message",
    [
        ("[", "a.json is not JSON"),
        ("{}", "a.json does not hold a list"),
        ('[{"arm": "dense"}]', "a.json, row 0 lacks its seed"),
        ("[3]", "a.json, row 0 is 3, no run"),
    ],
)
def test_a_file_that_holds_no_results_is_named(tmp_path, capsys, content, message):
    path = tmp_path / "a.json"
    path.write_text(content)
    for more in ([], ["--report"]):
        assert run.main([f"--json={path}", *more]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "flag, message",
    [
        *(
            (f"--ratio={ratio}", "argument --ratio: must be above 0 and at most 0.25")
            for ratio in ("7", "0", "nan", "0.3")
        ),
        ("--arms=dense,int8,int8", "argument --arms: 'dense,int8,int8' has int8 twice"),
        ("--arms=dense,int9", "argument --arms: int9 not among dense, bfloat16"),
        ("--seeds=0", "argument --seeds: '0' is no"),
        ("--workers=1", "argument --workers: '1' is no whole number from 2 on"),
        ("--batch=0", "argument --batch: '0' is no"),
        ("--batch=127", "--batch=127 does not divide among 4 devices"),
        ("--learning_rate=nan", "argument --learning_rate: 'nan' is no"),
    ],
)
def test_a_flag_out_of_range_is_refused_at_once(capsys, flag, message):
    with pytest.raises(SystemExit):
        run.main([flag])
    assert message in capsys.readouterr().err


def test_a_batch_of_more_than_all_pictures_is_refused(launches, tmp_path, capsys):
    assert run.main([f"--json={tmp_path / 'a.json'}", "--batch=1440"]) == 1 and not launches
    assert "--batch=1440 exceeds the 1437 training pictures" in capsys.readouterr().err
