"""The input benchmark: a tiny run, its arithmetic, its programs at rest, and the bound's pixels."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from experiments.input import (
    ablation,
    ablation_arms,
    benchmark,
    bound,
    claims,
    photos,
    pipelines,
    results,
    running,
)
from tests import record_files
from tests.processes_seen import is_running, wait_until

FIELDS = {"pipeline", "images_per_cpu_second", "images_per_second", "share_of_bound"}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Class folders of JPEGs, and their forms."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(24):
        path = folder / "images" / f"class {number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = record_files.picture(number, 90 + number, 130)
        image = image[..., 0] if number == 5 else image  # a grey one
        path.write_bytes(record_files.encode(image))
    cache = folder / "cache"
    return folder / "images", cache, photos.find(folder / "images", cache)


@pytest.fixture(scope="module")
def program(pictures):
    try:
        return bound.build(pictures[1])
    except bound.CannotBuild as error:
        pytest.skip(str(error))


def test_pictures_are_made_once_byte_for_byte(pictures):
    source, cache, found = pictures
    assert photos.find(source, cache, say=pytest.fail) == found
    originals = sorted(path.read_bytes() for path in source.rglob("*.jpg"))
    listing = json.loads(Path(found.listing).read_text())
    copies = [(Path(found.files) / name).read_bytes() for name, *_ in listing]
    assert sorted(copies) == originals and found.count == len(originals) == 24
    for encoded, (_, _, height, width) in zip(copies, listing, strict=True):
        assert tf.io.extract_jpeg_shape(encoded)[:2].numpy().tolist() == [height, width]
    # From the records themselves come the same files.
    again = photos.find(found.records, cache)
    assert json.loads(Path(again.listing).read_text()) == listing
    assert not list(cache.glob("partial-*"))


def test_the_bound_gives_tensorflows_pixels(pictures, program, tmp_path):
    found, size = pictures[2], 40
    subprocess.run(
        [program, found.windows, str(size), "1", str(tmp_path / "pixels")],
        cwd=found.files, check=True, timeout=60,
    )  # fmt: skip
    pixels = np.fromfile(tmp_path / "pixels", np.uint8).reshape(-1, size, size, 3)
    expected, areas = [], []
    for line in Path(found.windows).read_text().splitlines():
        name, count, *numbers = line.split()
        encoded = (Path(found.files) / name).read_bytes()
        height, width, _ = tf.io.extract_jpeg_shape(encoded).numpy()
        assert int(count) == photos.WINDOWS
        for *window, flip in np.array(numbers, int).reshape(-1, 5).tolist():
            image = tf.io.decode_and_crop_jpeg(encoded, window, 3, dct_method="INTEGER_ACCURATE")
            image = tf.image.resize(image, [size, size]).numpy()
            expected.append(image[:, ::-1] if flip else image)
            areas.append(window[2] * window[3] / (height * width))
    # Weights of 7 bits are off by 1 / 256 at most, on either axis.
    assert np.max(np.abs(pixels - np.stack(expected))) < 2.5
    assert found.mean_area == pytest.approx(np.mean(areas))


def test_the_bound_says_which_picture_is_bad(pictures, program, tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"\xff\xd8\xff not a picture")
    for window, reason in (("0 0 4 4 0", "bad.jpg"), ("0 0 0 4 0", "a window that is none")):
        (tmp_path / "list").write_text(f"bad.jpg 1 {window}\n")
        done = subprocess.run(
            [program, "list", "8", "1", "out"], cwd=tmp_path, capture_output=True, text=True,
            timeout=60,
        )  # fmt: skip
        assert done.returncode == 1 and reason in done.stderr


@pytest.mark.slow
def test_a_tiny_run(pictures, program, tmp_path, capfd):
    source, cache, _ = pictures
    names = ["bound", "tfscale", "by_hand"]
    code = benchmark.main(
        [f"--data_dir={source}", f"--cache_dir={cache}", f"--pipelines={','.join(names)}",
         "--batch=8", "--image_size=32", "--repeats=2", "--seconds=0.2", "--threads=1",
         f"--json={tmp_path / 'rows.json'}", f"--logs={tmp_path / 'logs'}"]
    )  # fmt: skip
    out = capfd.readouterr()
    assert code == 0, out.err
    assert "repeat 2/2 by_hand:" in out.out and "images/CPU-s" in out.out
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["pipeline"] for row in rows] == names
    for row in rows:
        assert set(row) >= FIELDS and row["dtype"] == "uint8" and row["batch"] == 8
        assert row["images_per_cpu_second"] > 0 and row["images_per_second"] > 0
        assert len(row["repeats"]) == 2 and 0.1 < row["mean_area"] < 1
        expected = results.paired_ratio(row["repeats"], rows[0]["repeats"])
        assert row["share_of_bound"] == pytest.approx(expected)
    assert rows[0]["share_of_bound"] == 1
    assert claims.main([str(tmp_path / "rows.json")]) in (0, 1)
    assert "not measured: tfscale, dali" in capfd.readouterr().out


def fake(tmp_path, program, name="fake"):
    """A command whose program has `Batch` and `serve` at hand."""
    text = (
        "import subprocess, sys, itertools, time\n"
        "from experiments.input import measuring\n"
        "class Batch(list):\n"
        "    shape, dtype = (4, 2), 'uint8'\n"
        "class Picture(list):\n"
        "    def mean(self): return 0.0\n"
        "batch = Batch([Picture()] * 4)\n" + program
    )
    return running.Command(
        name, [sys.executable, "-c", text], {"PYTHONPATH": str(pipelines.ROOT)}, str(tmp_path)
    )


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_cpu_time_is_that_of_the_children_too_and_all_rest_between_turns(tmp_path):
    busy = fake(
        tmp_path,
        "child = subprocess.Popen([sys.executable, '-c', 'while True: pass'])\n"
        "def batches():\n"
        "    while True:\n"
        "        time.sleep(0.05)\n"
        "        yield batch\n"
        "measuring.serve(batches(), child=child.pid)\n"
        "child.kill()\n",
    )
    with running.started([busy], str(tmp_path), print) as (programs, failures):
        assert not failures
        child = programs[0].facts["child"]
        samples = running.in_turns(programs, failures, 1, 0.5, 2, print)["fake"]
        give_up = time.monotonic() + 10
        while state_of(child) != "T" and time.monotonic() < give_up:
            time.sleep(0.01)  # a signal takes a moment
        ticks = Path(f"/proc/{child}/stat").read_text()
        time.sleep(0.2)
        assert state_of(child) == "T" and Path(f"/proc/{child}/stat").read_text() == ticks
    assert samples[0]["wall_seconds"] >= 0.5 and samples[0]["images"] % 4 == 0
    # The child alone is busy, with whatever part of a core the machine gives it.
    assert samples[0]["cpu_seconds"] > 0.03
    # A killed process of a killed parent is the system's to bury: that takes a moment.
    wait_until(lambda: not is_running(child))


def test_a_program_that_fails_is_named_and_the_others_are_measured(tmp_path):
    good = fake(tmp_path, "measuring.serve(itertools.repeat(batch))", "good")
    at_start = fake(tmp_path, "raise SystemExit('no such model')", "early")
    later = fake(tmp_path, "measuring.serve(iter([batch] * 3))", "late")
    mute = fake(tmp_path, "time.sleep(100)", "mute")
    commands = [good, at_start, later]
    with running.started(commands, str(tmp_path), print) as (programs, failures):
        samples = running.in_turns(programs, failures, 2, 0.01, 1, print)
    assert list(samples) == ["good"] and len(samples["good"]) == 2
    assert "early: ended with code 1\nno such model" in failures[0]
    assert "late: ended with code 1" in failures[1] and "StopIteration" in failures[1]
    with running.started([mute], str(tmp_path), print, timeout=1.5) as (programs, failures):
        assert not programs and "mute: no answer in 2 s" in failures[0]


def turn(images, wall, cpu):
    return {"images": images, "wall_seconds": wall, "cpu_seconds": cpu}


def test_ratios_are_of_pairs():
    assert results.paired_ratio([10, 5, 21], [5, 2.5, 10]) == 2
    with pytest.raises(ValueError, match="2 and 1 repeats are no pairs"):
        results.paired_ratio([1, 2], [1])
    # The machine was half as fast in the second turn: medians apart would say 0.75.
    samples = {
        "bound": [turn(100, 1, 1), turn(50, 1, 1), turn(100, 1, 1)],
        "ours": [turn(50, 1, 1), turn(50, 2, 2), turn(75, 1, 1)],
    }
    facts = dict.fromkeys(samples, {"dtype": "uint8"})
    rows = results.rows_of(samples, facts)
    assert [row["share_of_bound"] for row in rows] == [1, 0.5]
    assert rows[1]["repeats"] == [50, 25, 75] and rows[1]["images_per_cpu_second"] == 50
    assert rows[1]["spread"] == 1 and rows[1]["mean_area"] is None
    assert results.rows_of({"ours": samples["ours"]}, facts)[0]["share_of_bound"] is None
    assert "0.50" in results.table(rows)


def test_claims(tmp_path, capsys):
    rows = [
        {"pipeline": "bound", "repeats": [1000, 500]},
        {"pipeline": "tfscale", "repeats": [630, 315]},
        {"pipeline": "dali", "repeats": [600, 300]},
    ]
    lines = {
        what: (asked, reached, verdict) for what, asked, reached, verdict in claims.judge(rows)
    }
    assert lines["share of the C bound, plain"] == (0.62, 0.63, "yes")
    assert lines["DALI on the CPU, both uint8"] == (1.15, 1.05, "NO")
    assert lines["record: ahead of dali"][2] == "yes"
    assert lines["decoded tier over plain"] == (3, None, "not measured: tfscale_decoded, tfscale")
    assert lines[claims.SLOW] == (10, None, "not measured")
    path, epochs = tmp_path / "rows.json", tmp_path / "epochs.json"
    path.write_text(json.dumps(rows))
    kind = {"source": "slow", "tier": "disk", "process": 1}
    epochs.write_text(json.dumps([{**kind, "epoch": e, "seconds": 24 / e**4} for e in (1, 2)]))
    assert claims.main([str(path), f"--epochs={epochs}"]) == 1
    (line,) = [ln for ln in capsys.readouterr().out.splitlines() if claims.SLOW in ln]
    assert line.split()[-2:] == ["16.000", "yes"]


def test_the_ablation_holds_arms_against_each_other():
    for part, arms in ablation_arms.PARTS.items():
        arms, seen = arms(), set()
        for arm in arms:
            assert arm.reference is None or arm.reference in seen, part
            assert arm.name not in seen
            seen.add(arm.name)
    facts, arms = {"dtype": "uint8"}, ablation_arms.sweep()[:2]
    samples = {"by hand, 1": [turn(10, 1, 1)] * 2, "by hand, 2": [turn(20, 1, 2)] * 2}
    rows = ablation.compare("sweep", arms, results.rows_of(samples, dict.fromkeys(samples, facts)))
    assert (rows[0]["against"], rows[0]["times"]) == (None, None)
    assert (rows[1]["against"], rows[1]["times"], rows[1]["times_cpu"]) == ("by hand, 1", 2, 1)
    assert "2.000" in ablation.table(rows)


def test_unknown_pipelines_and_bad_folders_are_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        benchmark.main([f"--data_dir={tmp_path}", "--pipelines=bound,dalli"])
    error = capsys.readouterr().err
    assert "unknown pipeline 'dalli'; choose from bound, bound_parallel, tfscale, " in error
    with pytest.raises(SystemExit):
        ablation.main([f"--data_dir={tmp_path}", "--parts=ad"])
    assert "unknown part 'ad'; choose from add,leave,sweep" in capsys.readouterr().err
    arguments = ["--pipelines=by_hand", f"--cache_dir={tmp_path / 'cache'}"]
    for folder, reason in ((tmp_path / "none", "is no folder"), (tmp_path, "holds neither")):
        assert benchmark.main([f"--data_dir={folder}", *arguments]) == 1
        assert reason in capsys.readouterr().err


def test_missing_peers_are_refused_if_named_and_left_out_if_not(
    pictures, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("TFSCALE_PEERS", str(tmp_path))
    source, cache, _ = pictures
    arguments = [f"--data_dir={source}", f"--cache_dir={cache}", "--batch=8"]
    assert benchmark.main([*arguments, "--pipelines=dali"]) == 1
    assert "sh experiments/input/install.sh dali" in capsys.readouterr().err
    measured = []

    def measure(commands, args):
        measured.extend(command.name for command in commands)
        samples = {name: [turn(1, 1, 1)] for name in measured}
        return samples, {name: {"dtype": "uint8"} for name in measured}, []

    monkeypatch.setattr(benchmark, "measure", measure)
    assert benchmark.main(arguments) == 0
    out = capsys.readouterr().out
    assert {"tfscale", "by_hand"} <= set(measured) and not {"dali", "grain"} & set(measured)
    assert "left out: grain needs an environment of its own" in out


def test_more_than_a_batch_of_pictures_is_needed(pictures, capsys):
    source, cache, _ = pictures
    arguments = [f"--data_dir={source}", f"--cache_dir={cache}", "--pipelines=by_hand"]
    assert benchmark.main(arguments) == 1
    assert "--batch=128 is more than the 24 pictures" in capsys.readouterr().err
