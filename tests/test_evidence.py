"""Experiments with paired seeds: their rows, differences and data."""

import gzip
import importlib
import json
import struct

import numpy as np
import pytest

from experiments import fashion, paired
from experiments.results_file import Results, above_0, check_arms, from_0_to_1


def rows(**accuracies):
    return [
        {"arm": arm, "seed": seed, "accuracy": accuracy}
        for arm, values in accuracies.items()
        for seed, accuracy in enumerate(values)
    ]


# ------------------------------------------------------------------ rows and differences


def test_rows_are_kept_with_their_settings(tmp_path):
    path = tmp_path / "new" / "rows.json"
    results = Results(path, {"epochs": 3, "widths": (4, 8)})
    assert results.rows == [] and not results.has(arm="dense")
    results.add({"arm": "dense", "seed": 0, "accuracy": 0.9})
    again = Results(path, {"epochs": 3, "widths": (4, 8)})
    row = {"arm": "dense", "seed": 0, "accuracy": 0.9, "epochs": 3, "widths": [4, 8]}
    assert again.rows == [row]
    assert again.has(arm="dense", seed=0) and not again.has(arm="dense", seed=1)
    assert [p.name for p in path.parent.iterdir()] == ["rows.json"]
    with pytest.raises(ValueError, match=r"row 0 has epochs=3, this run 4\. Give the same"):
        Results(path, {"epochs": 4, "widths": (4, 8)})


def test_two_programs_add_to_one_file_and_lose_nothing(tmp_path):
    one, other = Results(tmp_path / "rows.json"), Results(tmp_path / "rows.json")
    one.add({"arm": "dense", "seed": 0})
    other.add({"arm": "dense", "seed": 1})
    assert other.has(arm="dense", seed=0) and len(Results(other.path).rows) == 2
    with pytest.raises(ValueError, match="has a run of arm=dense, seed=1 already"):
        one.add({"arm": "dense", "seed": 1})
    assert len(one.rows) == 2


def test_a_number_that_json_lacks_is_named_and_not_written(tmp_path):
    results = Results(tmp_path / "rows.json")
    with pytest.raises(ValueError, match="loss=nan cannot be written"):
        results.add({"arm": "dense", "seed": 0, "loss": float("nan")})
    assert results.rows == [] and not (tmp_path / "rows.json").exists()


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"accuracy": None}, "row 1 lacks its accuracy"),
        ({"accuracy": "0.9"}, "row 1 has accuracy='0.9', which is not of its kind"),
        ({"accuracy": True}, "row 1 has accuracy=True"),
        ({"accuracy": float("nan")}, "not JSON .NaN is no number"),
        ({"optimizer": "adam"}, "row 1 has optimizer='adam'"),
        ({"curve": []}, "row 1 has curve=.., which"),
        ({"curve": [{"seconds": 1.0}]}, "row 1 has curve=.*seconds"),
        ({"speed": "fast"}, "row 1 has speed='fast'"),
        ({"seed": 0}, "row 1 has arm=dense, seed=0 once more; remove it"),
        ({"accuracy": 98.5}, "row 1 has accuracy=98.5, which is not of its kind: from 0 to 1; rem"),
        ({"accuracy": -1}, "row 1 has accuracy=-1"),
        ({"curve": [{"seconds": 0, "accuracy": 1}]}, "row 1 has curve=.*'seconds': 0"),
        ({"speed": -4}, "row 1 has speed=-4"),
        ({"arm": "x"}, "row 1 has arm='x', which is not of its kind: dense, sparse"),
    ],
)
def test_rows_of_another_form_are_refused(tmp_path, changed, message):
    form = {
        "arm": {"sparse", "dense"},
        "accuracy": from_0_to_1,
        "optimizer": {"sgd"},
        "curve": [{"seconds": above_0, "accuracy": int}],
        "speed": (above_0, None),
    }
    row = {
        "arm": "dense", "accuracy": 1, "optimizer": "sgd", "speed": None,
        "curve": [{"seconds": 1.5, "accuracy": 1}],
    }  # fmt: skip
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([row | {"seed": 0}, row | {"seed": 1}]))
    assert len(Results(path, form=form).rows) == 2
    path.write_text(json.dumps([row | {"seed": 0}, row | {"seed": 1} | changed]))
    with pytest.raises(ValueError, match=message):
        Results(path, form=form)


def test_an_arm_that_is_not_that_of_the_other_fields_is_refused(tmp_path):
    results = Results(tmp_path / "rows.json")
    results.add({"arm": "lars-32", "seed": 0, "batch": 32})
    check_arms(results, lambda row: f"lars-{row['batch']}")
    results.add({"arm": "x", "seed": 0, "batch": 32})
    with pytest.raises(ValueError, match="row 1 has arm='x', but its .* are those of 'lars-32'"):
        check_arms(results, lambda row: f"lars-{row['batch']}")


PROGRAMS = {
    "results": ("progressive", "recipe", "precision", "large_batch", "batch_norm"),
    "json": ("compression", "official"),
}


@pytest.mark.parametrize("flag", PROGRAMS)
def test_a_place_that_cannot_be_written_is_found_before_training(
    tmp_path, monkeypatch, capsys, flag
):
    (tmp_path / "file").write_text("")
    for name in PROGRAMS[flag]:
        run = importlib.import_module(f"experiments.{name}.run")
        monkeypatch.setattr(run, "run_all", lambda *args: pytest.fail("trained"))
        for path, reason in (("file/x", "is not a folder"), ("/proc/x/y", "No such file")):
            path = str(tmp_path / path)  # /proc stays, for it starts at the root.
            assert run.main(["--quick", f"--{flag}={path}"]) == 1
            error = capsys.readouterr().err
            assert f"--{flag}={path} can't be written: " in error
            assert reason in error and "give another" in error


def test_a_run_is_kept_once(tmp_path):
    results = Results(tmp_path / "rows.json", key=("arm", "trial"))
    results.add({"arm": "dense", "trial": 0})
    with pytest.raises(ValueError, match="has a run of arm=dense, trial=0 already"):
        results.add({"arm": "dense", "trial": 0})
    assert len(results.rows) == 1


def test_interval_is_students():
    stats = pytest.importorskip("scipy.stats")
    for n in (2, 3, 7, 31):
        values = np.random.default_rng(n).normal(size=n).tolist()
        mean, low, high = paired.interval(values)
        right = stats.t.interval(0.95, n - 1, np.mean(values), stats.sem(values))
        np.testing.assert_allclose((mean, low, high), (np.mean(values), *right), rtol=1e-3)
    assert paired.interval([0.5]) == (0.5, None, None)


def test_differences_are_paired_by_seed():
    found = rows(a=[0.9, 0.7, 0.5], b=[0.8, 0.6])
    mean, low, high, n = paired.differences(found, "a", "b")
    assert (mean, n) == (pytest.approx(0.1), 2)  # of seeds 0 and 1, whose difference is the same
    assert (low, high) == (pytest.approx(0.1), pytest.approx(0.1))
    with pytest.raises(ValueError, match="a and c have no seed in common"):
        paired.differences(found, "a", "c")
    table = paired.compare([*found, {"arm": "d", "seed": 9, "accuracy": 1.0}], "b")
    assert [row["arm"] for row in table] == ["a", "b"]
    assert table[0]["mean"] == pytest.approx(0.7) and table[1]["low"] is None
    with pytest.raises(ValueError, match="no runs of c, with which"):
        paired.compare(found, "c")


def test_progress_tells_what_is_left(capsys):
    seconds = iter([0.0, 60.0, 180.0])
    progress = paired.Progress(2, clock=lambda: next(seconds))
    progress.done("first")
    progress.done("second")
    assert capsys.readouterr().out.splitlines() == [
        "[1/2] first  (60 s; about 60 s left)",
        "[2/2] second  (2 min; all done)",
    ]


# ------------------------------------------------------------------ data


def test_fashion_mnist_of_a_folder(tmp_path):
    pixels = np.arange(4 * 28 * 28, dtype=np.uint64).astype(np.uint8).reshape(4, 28, 28)
    for prefix, count in (("train", 3), ("t10k", 1)):
        for kind, magic, body in (
            ("images-idx3", (2051, count, 28, 28), pixels[:count]),
            ("labels-idx1", (2049, count), np.arange(count, dtype=np.uint8)),
        ):
            content = struct.pack(f">{len(magic)}i", *magic) + body.tobytes()
            (tmp_path / f"{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(content))
    (images, labels), (test, _) = fashion.load(data_dir=tmp_path, examples=2)
    np.testing.assert_array_equal(images[..., 0], pixels[:2])
    assert labels.tolist() == [0, 1] and len(test) == 1
    with pytest.raises(FileNotFoundError, match="--data_dir=.*nowhere is no folder"):
        fashion.load(data_dir=tmp_path / "nowhere")


def test_halved_pictures_are_means():
    images = np.array([[1, 2, 9, 9], [3, 4, 9, 9]], np.uint8)[None, ..., None]
    assert fashion.halved(images)[0, ..., 0].tolist() == [[2, 9]]  # 2.5, to the even


def test_order_is_the_same_whatever_is_taken_of_it():
    order = fashion.order(5, seed=3, count=12)
    assert sorted(order[:5]) == sorted(order[5:10]) == list(range(5))
    np.testing.assert_array_equal(fashion.order(5, seed=3, count=7), order[:7])
    assert fashion.order(5, seed=4, count=12).tolist() != order.tolist()
