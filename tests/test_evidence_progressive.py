"""Experiments on photographs: records, one run, progressive, precision, recipe."""

import dataclasses
import json
import os

import numpy as np
import pytest

from experiments import imagenette, ratios
from experiments.precision import run as precision
from experiments.progressive import run as progressive
from experiments.progressive import training
from experiments.recipe import report as recipe_report
from experiments.recipe import run as recipe


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """The records of a folder like Imagenette: two classes, dark and bright, 12 + 8 pictures."""
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for split, count in (("train", 6), ("val", 4)):
        for label, name in enumerate(("dark", "bright")):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 80, (120, 150, 3)) + 150 * label
                path = folder / split / name / f"{number}.JPEG"
                path.write_bytes(tf.io.encode_jpeg(pixels.astype(np.uint8)).numpy())
    records = folder / "records"
    imagenette.write("imagenette", folder, records)
    return folder, records


def a_run(records, **changes):
    default = training.Run(
        str(records), 0, (1, 1), (8, 16), 16, 0.05, (0.5, 0.35), batch=4, depths=(1,), widths=(4,),
        stem="small",
    )  # fmt: skip
    return dataclasses.replace(default, **changes)


# ------------------------------------------------------------------ records


def test_search_holds_out_training_pictures_and_has_no_test_picture(photos):
    from tfscale.data import describe, eval_dataset

    folder, records = photos
    assert imagenette.is_complete(records)
    counts = {
        (part, split): describe(str(records / part), split).index.num_records
        for part in (imagenette.FULL, imagenette.SEARCH)
        for split in imagenette.SPLITS
    }
    assert counts == {
        ("full", "train"): 12, ("full", "validation"): 8,
        ("search", "train"): 10, ("search", "validation"): 2,
    }  # fmt: skip

    def sums(part, split):
        dataset = eval_dataset(str(records / part), 1, 96, split=split, crop_fraction=1.0)
        return {int(np.sum(image, dtype=np.int64)) for image, _ in dataset.as_numpy_iterator()}

    search = [sums("search", split) for split in imagenette.SPLITS]
    assert not search[0] & search[1]
    assert search[0] | search[1] == sums("full", "train")
    # What is there is taken without a folder, and without starting a process.
    assert imagenette.records("imagenette", None, records) == records


def test_missing_pictures_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no records in .*give --data_dir"):
        imagenette.records("imagenette", None, tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(FileNotFoundError, match="has no folder val/"):
        imagenette.records("imagenette", tmp_path, tmp_path / "records")
    with pytest.raises(ValueError, match="digits come with scikit-learn"):
        imagenette.records("digits", tmp_path, tmp_path / "records")


# ------------------------------------------------------------------ one run


def test_rates_by_step():
    lines = training.rate_of(a_run("", warmup=0.2, learning_rate=0.5), 100)
    np.testing.assert_allclose(
        [float(lines(step)) for step in (0, 10, 20, 60, 100)], [0, 0.25, 0.5, 0.25, 0], atol=1e-7
    )
    steps = training.rate_of(a_run("", schedule="steps", learning_rate=0.5), 100)
    np.testing.assert_allclose(
        [float(steps(step)) for step in (0, 49, 50, 74, 75, 99)],
        [0.5, 0.5, 0.05, 0.05, 0.005, 0.005],
        rtol=1e-6,
    )


@pytest.mark.slow
def test_a_run_is_repeatable_and_its_clock_leaves_evaluations_out(photos, monkeypatch):
    import time

    from tfscale import evaluation

    _, records = photos
    evaluate = evaluation.evaluate

    def slow(*args, **kwargs):
        time.sleep(2)
        return evaluate(*args, **kwargs)

    run = a_run(records / imagenette.FULL, ema=0.5, flip_eval=True, label_smoothing=0.1)
    first = training.train(run)
    monkeypatch.setattr(evaluation, "evaluate", slow)
    start = time.monotonic()
    second = training.train(run)
    wall = time.monotonic() - start
    assert [point["epoch"] for point in first["curve"]] == [1, 2]
    assert second["training_seconds"] < wall - 4
    assert 0 < second["first_steps_seconds"] < second["training_seconds"]
    assert len(first["images_per_second"]) == 2 and first["memory_mb"] > 0
    for name in ("accuracy", "training_loss", "diverged"):
        assert first[name] == second[name]
    assert 0 <= first["accuracy"] <= 1 and not first["diverged"]
    json.dumps(first, allow_nan=False)


@pytest.mark.slow
def test_a_lost_run_ends_with_accuracy_0(photos):
    _, records = photos
    run = a_run(records / imagenette.FULL, learning_rate=1e30, schedule="steps", flip_eval=True)
    row = training.train(run)
    assert row["diverged"] and row["accuracy"] == 0.0 and row["training_loss"] is None
    json.dumps(row, allow_nan=False)


def test_a_run_apart_says_what_went_wrong(monkeypatch, tmp_path):
    class Ended:
        returncode = 0

    def lost(command, **kwargs):
        with open(command[-1], "w") as file:
            json.dump({"diverged": True, "accuracy": 0.0}, file)
        return Ended

    monkeypatch.setattr(training.subprocess, "run", lost)
    assert training.apart(a_run(""), may_diverge=True)["accuracy"] == 0.0
    with pytest.raises(ValueError, match=r"a learning rate of 0\.05 is too high"):
        training.apart(a_run(""))
    Ended.returncode = 3
    with pytest.raises(RuntimeError, match="exit code 3, see above"):
        training.apart(a_run(""))


# ------------------------------------------------------------------ the experiments


def row_of(run, accuracy, seconds):
    """What `training.apart` would return."""
    epochs = sum(run.epochs)
    curve = [
        {"epoch": n, "seconds": seconds * n / epochs, "accuracy": accuracy * n / epochs}
        for n in range(1, epochs + 1)
    ]
    return {
        "accuracy": accuracy, "training_loss": 0.5, "diverged": False, "training_seconds": seconds,
        "first_steps_seconds": 1.0, "images_per_second": [500.0] * len(run.epochs),
        "memory_mb": 100.0, "curve": curve,
    }  # fmt: skip


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """The runs that were asked for; `runs.stop_after` of them are made."""

    class Runs(list):
        stop_after = None

        def apart(self, run, may_diverge=False):
            if self.stop_after is not None and len(self) >= self.stop_after:
                raise OSError("the machine went down")
            self.append(run)
            grows, noise = len(run.epochs) > 1, 0.002 * (run.seed % 3)
            is_half = run.precision != "float32"
            accuracy = 0.8 - 0.004 * grows + noise * (1 + 0.2 * grows) + 0.001 * is_half
            accuracy -= 0.01 * abs(np.log10(run.learning_rate / 0.1))
            accuracy += 0.02 * (run.ema is not None)
            return row_of(run, float(accuracy), 50.0 * (0.5 if grows else 1.0) + run.seed % 3)

    made = Runs()
    monkeypatch.setattr(training, "apart", made.apart)
    monkeypatch.setattr(imagenette, "records", lambda *args: tmp_path / "records")
    return made


def test_progressive_resumes_and_answers(runs, tmp_path, capsys):
    flags = ["--quick", f"--results={tmp_path}", "--seeds=3"]
    runs.stop_after = 3
    assert progressive.main(flags) == 1
    assert "the machine went down" in capsys.readouterr().err
    runs.stop_after = None
    assert progressive.main(flags) == 0
    out = capsys.readouterr().out
    assert [(len(r.epochs), r.seed) for r in runs] == [(n, s) for s in range(3) for n in (1, 3)]
    fixed, grown = runs[:2]
    assert sum(fixed.epochs) == sum(grown.epochs) and fixed.eval_size == grown.eval_size == 32
    alike = {"epochs": (), "image_sizes": (), "min_crop_areas": ()}
    assert dataclasses.replace(fixed, **alike) == dataclasses.replace(grown, **alike)
    assert "--quick only shows that the experiment runs" in out
    assert "[1/3]" in out and "at most 0.6 of the time: yes: -0.36 points in 0.5" in out
    assert (tmp_path / "runs.json").exists() and (tmp_path / "accuracy.png").exists()
    assert progressive.main([*flags, "--report"]) == 0 and len(runs) == 6
    assert progressive.main([*flags, "--batch=64"]) == 1
    assert "batch=32, this run 64" in capsys.readouterr().err
    assert progressive.main(["--quick", f"--results={tmp_path / 'none'}", "--report"]) == 1


ALL = [progressive, precision, recipe]


@pytest.mark.parametrize(
    "programs, flag, message",
    [
        ([progressive, recipe], "--phases=32", "expected PIXELS:EPOCHS"),
        ([progressive, recipe], "--phases=32:1,48:0", "expected numbers above 0"),
        (ALL, "--widths=8,x", "expected numbers with commas"),
        (ALL, "--batch=0", "argument --batch: '0' is no whole number from 1 on"),
        (ALL, "--seeds=0", "argument --seeds: '0' is no"),
        (ALL[:2], "--learning_rate=nan", "argument --learning_rate: 'nan' is no"),
        ([progressive, recipe], "--min_crop_area=0", "'0' is no number above 0 and at most 1"),
        ([precision], "--epochs=0", "argument --epochs: '0' is no"),
        ([recipe], "--rates=nan", "argument --rates: 'nan': expected numbers"),
        ([recipe], "--rates=0.1,0.10", "argument --rates: '0.1,0.10' has 0.1 twice"),
        ([recipe], "--ema=1", "argument --ema: '1' is no"),
    ],
)
def test_flags_are_checked(capsys, programs, flag, message):
    for program in programs:
        with pytest.raises(SystemExit):
            program.parse([flag])
        assert message in capsys.readouterr().err
    # Filters of stages may be alike.
    assert progressive.parse(["--widths=8,8"]).widths == (8, 8)


def test_a_report_of_other_results_names_what_they_lack(runs, tmp_path, capsys):
    for program, name in zip(ALL, ("first_steps_seconds", "memory_mb", "curve"), strict=True):
        folder = tmp_path / program.__name__
        flags = ["--quick", f"--results={folder}"]
        assert program.main(flags) == 0
        rows = json.loads((folder / "runs.json").read_text())
        del rows[1][name]
        (folder / "runs.json").write_text(json.dumps(rows))
        assert program.main([*flags, "--report"]) == 1
        assert f"runs.json, row 1 lacks its {name}" in capsys.readouterr().err


def test_progressive_says_no_and_why_it_may_not_know():
    rows = []
    for seed, lost in enumerate((0.0, 0.03, 0.012)):
        for arm, accuracy, seconds in (("fixed", 0.8, 10.0), ("progressive", 0.8 - lost, 7.0)):
            rows.append(
                {"arm": arm, "seed": seed, "accuracy": accuracy, "training_seconds": seconds}
            )
    text = progressive.verdict(rows)
    assert ": no: -1.40 points in 0.70 [0.70, 0.70] of the time, 3 seeds" in text
    assert (
        "the interval of the accuracy holds the bound" in text and "of the time holds" not in text
    )
    assert "one seed says nothing" in progressive.verdict(rows[:2])


def test_ratios_are_geometric_means():
    rows = [
        {"arm": arm, "seed": seed, "seconds": seconds}
        for arm, values in (("a", (1.0, 8.0)), ("b", (2.0, 4.0)))
        for seed, seconds in enumerate(values)
    ]
    value, low, high, n = ratios.ratio(rows, "a", "b", "seconds")
    assert (value, n) == (pytest.approx(1.0), 2) and low < 1 < high
    assert ratios.ratio(rows[::2], "a", "b", "seconds")[1:] == (None, None, 1)


def test_precision_compares_accuracy_speed_and_memory(runs, tmp_path, capsys):
    flags = ["--quick", f"--results={tmp_path}"]
    assert precision.main(flags) == 0
    out = capsys.readouterr().out
    assert [(r.precision, r.seed) for r in runs] == [(p, s) for s in (0, 1) for p in precision.ARMS]
    assert "mixed_bfloat16 +0.10 points from float32" in out
    assert precision.main(flags) == 0 and len(runs) == 4
    assert (tmp_path / "accuracy.png").exists()
    rows = json.loads((tmp_path / "runs.json").read_text())
    for row, accuracy in zip(rows, (0.8, 0.81, 0.79, 0.785), strict=True):
        row["accuracy"] = accuracy
    assert "within the noise of 2 seeds" in precision.verdict(rows)
    assert "one seed says nothing" in precision.verdict(rows[:2])


def test_recipe_searches_resumes_and_answers(runs, tmp_path, capsys):
    flags = ["--quick", f"--results={tmp_path}", "--rates=0.05,0.1"]
    runs.stop_after = 5
    assert recipe.main(flags) == 1
    assert recipe.main([*flags, "--report"]) == 1
    runs.stop_after = None
    assert recipe.main(flags) == 0
    out, err = capsys.readouterr()
    assert "does not have runs of both arms" in err
    # As many trials in each arm, at the same rates, on other records and from another seed.
    assert [(len(r.epochs), r.learning_rate) for r in runs[:4]] == [
        (1, 0.05), (2, 0.05), (1, 0.1), (2, 0.1),
    ]  # fmt: skip
    assert {os.path.basename(r.records) for r in runs[:4]} == {"search"}
    assert {r.seed for r in runs[:4]} == {recipe.SEARCH_SEED}
    assert {(os.path.basename(r.records), r.learning_rate) for r in runs[4:]} == {("full", 0.1)}
    assert [r.seed for r in runs[4:]] == [0, 0, 1, 1]
    assert "times sooner than the plain run ends, 2 seeds" in out
    assert recipe.main([*flags, "--ema=0.9"]) == 1
    assert "ema=0.98, this run 0.9" in capsys.readouterr().err
    path = tmp_path / "search.json"
    trials = json.loads(path.read_text())
    for row in trials:
        row["accuracy"] = 1 - row["accuracy"]
    path.write_text(json.dumps(trials))
    assert recipe.main([*flags, "--seeds=3"]) == 1
    assert "but the search beside it gives 0.05" in capsys.readouterr().err


def test_time_to_the_plain_accuracy():
    def row(arm, seed, *points):
        curve = [{"epoch": i + 1, "seconds": s, "accuracy": a} for i, (s, a) in enumerate(points)]
        seconds, accuracy = points[-1]
        return {
            "arm": arm, "seed": seed, "curve": curve, "accuracy": accuracy,
            "training_seconds": seconds,
        }  # fmt: skip

    rows = [
        row("plain", 0, (50, 0.5), (80, 0.71), (100, 0.69)),
        row("plain", 1, (50, 0.5), (80, 0.60), (100, 0.71)),
        row("recipe", 0, (20, 0.6), (40, 0.70), (50, 0.72)),
        row("recipe", 1, (20, 0.6), (25, 0.71), (50, 0.72)),
    ]
    assert recipe_report.target(rows) == pytest.approx(0.7)
    rows[2]["curve"][1]["accuracy"] = recipe_report.target(rows)  # as much is enough
    found = recipe_report.speedups(rows)
    assert found["whole run"][0] == pytest.approx(10**0.5)  # of 100/40 and 100/25
    assert found["first reached"][0] == pytest.approx(8**0.5)  # of 80/40 and 100/25
    assert "2.5 times sooner: yes: 3.16" in recipe_report.verdict(rows)
    rows[3]["curve"][1:] = [{"epoch": 2, "seconds": 50, "accuracy": 0.69}]
    assert "no: 1 of 2 seeds of the recipe have it at all" in recipe_report.verdict(rows)
    assert "never" in recipe_report.table(rows)


def test_the_best_rate_is_the_lower_of_equals():
    rows = [
        {"arm": "plain", "learning_rate": rate, "accuracy": accuracy}
        for rate, accuracy in ((0.4, 0.7), (0.1, 0.8), (0.2, 0.8))
    ]
    assert recipe_report.best(rows, "plain") == 0.1
