"""The search: spaces, what a trial is, failures, pruning, loss and resumption, results."""

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import typing
from pathlib import Path

import optuna
import pytest

from tests.processes_seen import is_running, wait_until
from tests.tuning_program import Run
from tfscale.tuning import Settings, choice, integer, log_uniform, search, uniform
from tfscale.tuning import owner as owners
from tfscale.tuning import storage as storages
from tfscale.tuning import store as stores
from tfscale.tuning.judging import RunningTrial, SearchError
from tfscale.tuning.store import Store
from tfscale.tuning.trial_process import explain

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = str(ROOT / "tests" / "tuning_program.py")
FIELDS = typing.get_type_hints(Run)
SPACE = {
    "learning_rate": log_uniform(0.001, 10),
    "momentum": uniform(0.5, 0.99),
    "warmup": integer(0, 5),
    "optimizer": choice("lars", "sgd"),
}


@pytest.fixture
def tmp_path():
    """In memory where that can be: SQLite waits for the disk after each of hundreds of commits."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="tfscale-tuning-") as folder:
        yield Path(folder)


def run(folder, *flags, space=SPACE, **settings):
    """Searches in this process; returns the report and the lines that were shown."""
    lines = []
    settings = Settings(folder=str(folder), **{"trials": 4, "grace": 1.0, **settings})
    report = search(space, [PROGRAM], flags, settings, fields=FIELDS, notify=lines.append)
    return report, lines


def drawn(report):
    """What was drawn, in the order of drawing; a repeated trial stands for the one it repeats."""
    trials = sorted(report.study.trials, key=lambda trial: trial.user_attrs["drawn"])
    return [trial.params for trial in trials if trial.state in stores.FINISHED]


def values(report):
    trials = sorted(report.study.trials, key=lambda trial: trial.user_attrs["drawn"])
    return [trial.value for trial in trials if trial.state in stores.FINISHED]


# ---------------------------------------------------------------------- a search from end to end
def test_the_best_is_found_shown_written_and_ready_to_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report, lines = run("search", "--epochs=2", trials=6)
    rows = report.rows
    assert [row["state"] for row in rows] == ["complete"] * 6
    assert [row["value"] for row in rows] == sorted((r["value"] for r in rows), reverse=True)
    for row in rows:
        assert sorted(row["scores"]) == [1, 2] and row["value"] == row["scores"][2]
        assert row["params"] == {
            "learning_rate": float(row["flags"]["learning_rate"]),  # to the last bit
            "momentum": float(row["flags"]["momentum"]),
            "warmup": int(row["flags"]["warmup"]),
            "optimizer": row["flags"]["optimizer"],
        }
        log = Path(row["folder"], "output.log").read_text()
        assert f"learning_rate={row['params']['learning_rate']!r}" in log
    shown = "\n".join(lines)
    assert "trial 3  epoch 2/2  val_accuracy 0." in shown
    assert "the best so far" in shown and "[6 of 6]" in shown and " left]" in shown

    results = json.loads(Path("search/results.json").read_text())
    assert results["best"]["number"] == rows[0]["number"] and results["metric"] == "val_accuracy"
    with open("search/results.csv") as file:
        table = list(csv.DictReader(file))
    assert [int(row["trial"]) for row in table] == [row["number"] for row in rows]
    assert float(table[0]["momentum"]) == rows[0]["params"]["momentum"]
    lines = report.table().splitlines()
    assert lines[0].split()[:3] == ["trial", "val_accuracy", "learning_rate"]
    assert lines[1].split()[0] == str(rows[0]["number"]) and "2/2" in lines[1]

    # On a path without the Python that has the packages; flags of one's own come last.
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    best = ["sh", "search/best.sh"]
    for flags, epochs in ([], 2), (["--epochs=3"], 3):
        subprocess.run([*best, *flags], check=True, env=environ, capture_output=True)
        lines = Path(f"search/best-{rows[0]['number']:04d}/epochs.jsonl").read_text().splitlines()
        again = list(map(json.loads, lines))
        assert again[-1]["epoch"] == epochs
        assert again[1]["metrics"]["val_accuracy"] == rows[0]["value"]


@pytest.mark.slow
def test_a_seed_repeats_the_search_and_another_does_not(tmp_path):
    again = {"trials": 12, "seed": 3, "pruner": "none"}  # ten are random
    first, _ = run(tmp_path / "a", "--epochs=1", **again)
    second, _ = run(tmp_path / "b", "--epochs=1", **again)
    assert drawn(first) == drawn(second) and values(first) == values(second)
    assert len({str(params) for params in drawn(first)}) == 12
    other, _ = run(tmp_path / "c", "--epochs=1", trials=1, seed=4)
    assert drawn(other)[0] != drawn(first)[0]
    # Further trials are the same, whether asked for at once or later.
    run(tmp_path / "d", "--epochs=1", **again | {"trials": 2})
    later, _ = run(tmp_path / "d", "--epochs=1", **again | {"trials": 4})
    assert drawn(later) == drawn(first)[:4]


def test_minimizing_and_the_best_epoch(tmp_path):
    report, lines = run(tmp_path, direction="minimize", score="best", trials=3, prune_from=50)
    assert sum("--prune_from=50 stops no trial of" in line for line in lines) == 1
    rows = report.rows
    assert [row["value"] for row in rows] == sorted(row["value"] for row in rows)
    assert all(row["value"] == row["scores"][1] for row in rows)  # The scores rise.
    assert Settings(metric="val_loss").direction == "minimize"
    assert Settings(metric="val_top_5").direction == "maximize"
    with pytest.raises(ValueError, match="other settings: direction was 'minimize', is 'maximize'"):
        run(tmp_path, score="best", trials=3, prune_from=50)


@pytest.mark.slow
def test_plots_are_drawn_of_what_is_there(tmp_path):
    pytest.importorskip("matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    from tfscale.tuning.plots import plot

    report, _ = run(tmp_path, "--epochs=2", trials=3)
    style = matplotlib.rcParams["axes.facecolor"]
    paths = plot(report.study, "val_accuracy", tmp_path / "plots")
    names = {"epochs", "history", "slices", "parallel_coordinates", "importances"}
    assert {path.stem for path in paths} == names
    assert all(path.stat().st_size > 5000 for path in paths)
    assert matplotlib.rcParams["axes.facecolor"] == style


# ---------------------------------------------------------------------- failures
def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_twenty_trials_with_failures_and_memory_that_does_not_grow(tmp_path):
    ills = {4: "crash", 9: "killed", 14: "nan", 15: "silent"}

    def space(trial):
        values = {"learning_rate": trial.suggest_float("learning_rate", 0.001, 10, log=True)}
        return values | {"ill": ills.get(trial.number, "none")}

    sizes = []

    def shown(text):
        lines.append(text)
        if text.endswith("]"):
            sizes.append(resident_bytes())

    lines = []
    settings = Settings(folder=str(tmp_path), trials=20, parallel=2, pruner="none")
    report = search(space, [PROGRAM], [], settings, fields=FIELDS, notify=shown)
    rows = {row["number"]: row for row in report.rows}
    assert [row["state"] for row in report.rows] == ["complete"] * 16 + ["failed"] * 4
    assert len(sizes) == 20
    assert max(sizes[10:]) - sizes[9] < 4e6, sizes
    assert rows[4]["reason"] == "ValueError: the data are not there"
    assert rows[9]["reason"].startswith("exit code 137 (SIGKILL; out of memory?); last said: train")
    assert rows[14]["reason"] == "val_accuracy is not finite at epoch 2"
    assert "without an epoch in epochs.jsonl" in rows[15]["reason"]
    assert any("raise ValueError" in line for line in rows[4]["last_lines"])
    assert "raise ValueError" in Path(rows[4]["log"]).read_text()
    assert f"failed: ValueError: the data are not there; {rows[4]['log']}" in report.table()
    assert "  | ValueError: the data are not there" in lines


WRITER = """
import os, sys
flags = dict(word[2:].split("=", 1) for word in sys.argv[1:])
path = flags["model_dir"] + "/epochs.jsonl"
if flags["kind"] == "folder":
    os.mkdir(path)
    sys.exit()
line = '{"epoch": %d, "epochs": 2, "metrics": {"val_accuracy": %s}}'
if flags["kind"] == "empty":
    line = '{"epoch": %d, "epochs": 2, "metrics": {}}' + "%.0s"
whole = line % (2, 0.5)
last = {"empty": "", "early": "", "nan": line % (2, "null"), "bad": "oops"}
last |= {"torn": whole[:9], "whole": whole}
end = "" if flags["kind"] in ("torn", "whole", "early") else chr(10)
with open(path, "w") as file:
    file.write(line % (1, 0.25) + chr(10) + last[flags["kind"]] + end)
"""


def test_what_a_trial_wrote_last_is_judged_though_it_has_ended(tmp_path):
    kinds, lines = ["nan", "bad", "torn", "folder", "whole", "early"], []
    program = tmp_path / "program.py"
    program.write_text(WRITER)
    settings = Settings(folder=str(tmp_path / "search"), trials=len(kinds), give_up_after=9)
    space = lambda trial: {"kind": kinds[trial.number]}  # noqa: E731
    report = search(space, [str(program)], (), settings, fields={"kind": str}, notify=lines.append)
    rows = {row["flags"]["kind"]: row for row in report.rows}
    assert rows["nan"]["reason"] == "val_accuracy is not finite at epoch 2"
    assert "has the line b'oops', which is no epoch's" in rows["bad"]["reason"]
    assert "which is no epoch's" in rows["torn"]["reason"]
    assert "epochs.jsonl cannot be read: Is a directory" in rows["folder"]["reason"]
    assert rows["whole"]["scores"] == {1: 0.25, 2: 0.5} and report.best["value"] == 0.5
    assert all(rows[kind]["scores"] == {1: 0.25} for kind in ("nan", "bad", "torn"))
    said = " ".join(lines)
    assert "trial 4  0.5 after 2 epochs in " in said
    assert "trial 5  0.25, ended by itself after 1 of 2 epochs in " in said


class Lines:
    """A process of which only the lines are known, which ends with them."""

    exit_code, log, last_lines, ended, stopping = 0, "output.log", [], True, False

    def __init__(self, *scores):
        self._left = [[(epoch, 3, {"val_accuracy": score}) for epoch, score in scores]]

    def look(self):
        return self._left.pop() if self._left else []

    def stop(self):
        self.stopping = True

    def close(self):
        pass


@pytest.mark.parametrize(
    "scores, state, value",
    [
        ([(1, 0.5), (2, 0.6), (1, 0.5), (2, 0.6)], "COMPLETE", 0.6),  # resumed by itself
        ([(1, 0.5), (2, 0.6), (1, 0.4), (2, 0.9)], "FAIL", None),  # a second fit
        ([(1, 0.5), (2, 0.1), (3, 0.9)], "PRUNED", None),  # it did not end at once
    ],
)
def test_epochs_that_a_run_writes_again_or_too_late(scores, state, value):
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(lower=0.2))
    running = RunningTrial(study.ask(), Lines(*scores), Settings(), slot=0)
    assert running.follow() == scores[:2]
    ended, result = running.end()
    assert (ended.name, result) == (state, value)
    study.tell(running.trial, result, state=ended)
    (trial,) = study.trials
    assert trial.intermediate_values == dict(scores[:2])
    if state == "FAIL":
        reason = trial.user_attrs["failure"]["reason"]
        assert "wrote epoch 1 again with val_accuracy 0.4, after 0.5" in reason
        assert "each fit but the first its initial_epoch" in reason


def test_a_trial_that_takes_too_long_fails_with_all_its_processes(tmp_path):
    flags = ["--ill=stubborn", "--epoch_seconds=30"]
    space = {"momentum": "0.5:0.9"}
    with pytest.raises(SearchError, match="all of the first 1 trials failed"):
        run(tmp_path, *flags, space=space, trials=1, give_up_after=1, trial_timeout=1.0)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["trials"][0]["reason"] == "not done after 1 s (--trial_timeout)"
    seen = json.loads((tmp_path / "trial-0000" / "seen.json").read_text())
    assert not is_running(seen["pid"]) and not is_running(seen["child"])
    assert not Path(seen["TMPDIR"]).exists()


def test_the_search_ends_when_all_of_the_first_trials_fail(tmp_path):
    lines = []
    settings = Settings(folder=str(tmp_path), trials=9, give_up_after=2)
    with pytest.raises(SearchError, match="all of the first 2 trials failed.*Mend the program"):
        search(SPACE, [PROGRAM], ["--ill=crash"], settings, fields=FIELDS, notify=lines.append)
    assert "ValueError: the data are not there; its output: " in "\n".join(lines)
    assert not (tmp_path / "trial-0002").exists()


def test_a_metric_that_is_not_there_ends_the_search(tmp_path):
    with pytest.raises(SearchError, match="no metric 'val_acc'.*is one of loss, val_accuracy"):
        run(tmp_path, metric="val_acc")
    program = tmp_path / "program.py"
    program.write_text(WRITER)
    settings = Settings(folder=str(tmp_path / "none"))
    with pytest.raises(SearchError, match="no metric 'val_accuracy' for its epochs; it writes no"):
        search(lambda trial: {"kind": "empty"}, [str(program)], (), settings, fields={"kind": str})
    # The mended command goes on in the same folder.
    report, _ = run(tmp_path, trials=1)
    assert report.best["value"] > 0


def test_epochs_without_validation_are_passed_over_and_said_once(tmp_path):
    flags = ["--validation_freq=2", "--epochs=5", "--epoch_seconds=0.3"]
    report, lines = run(tmp_path / "a", *flags, trials=2)
    assert [sorted(row["scores"]) for row in report.rows] == [[2, 4], [2, 4]]
    assert sum("has no 'val_accuracy', nor any other val_ metric" in line for line in lines) == 1
    with pytest.raises(SearchError, match="no metric 'val_accuracy' for its epochs.*one of loss"):
        run(tmp_path / "b", "--validation_freq=4", trials=2)


def test_what_worked_before_is_not_given_up(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(WRITER)
    settings = {"folder": str(tmp_path / "search"), "give_up_after": 2}
    kinds = ["whole", "bad", "bad", "bad"]
    space = lambda trial: {"kind": kinds[trial.number]}  # noqa: E731
    for trials in (1, 4):
        report = search(
            space, [str(program)], (), Settings(trials=trials, **settings), fields={"kind": str},
            notify=str,
        )  # fmt: skip
    assert [row["state"] for row in report.rows] == ["complete", *["failed"] * 3]


def test_what_a_program_said_is_explained():
    lines = ["[worker 1] Traceback", "tfscale-launch: worker 1 failed first:", "  | KeyError: 'a'"]
    assert explain(1, lines) == "KeyError: 'a'"
    assert explain(2, ["train.py: no flag --lr; did you mean --x?"]).startswith("train.py: no flag")
    assert explain(1, ["error: no such file", "TFSCALE_TRACEBACK=1 shows more"]).endswith("file")
    assert explain(137, []) == "exit code 137 (SIGKILL; out of memory?)"
    assert explain(3, ["", " "]) == "exit code 3"


# ---------------------------------------------------------------------- pruning
@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_a_poor_trial_is_stopped_with_all_its_processes(tmp_path, pruner):
    def space(trial):
        good = trial.number < 3
        rate = trial.suggest_float("learning_rate", *((0.05, 0.2) if good else (9.0, 10.0)))
        return {"learning_rate": rate, "epoch_seconds": 0.05 if good else 0.5,
                "ill": "none" if good else "stubborn"}  # fmt: skip

    report, lines = run(tmp_path, "--epochs=9", space=space, trials=4, pruner=pruner, prune_after=3)
    row = next(row for row in report.rows if row["number"] == 3)
    assert row["state"] == "pruned" and len(row["scores"]) < 9 and row["value"] is not None
    assert [r["state"] for r in report.rows] == ["complete"] * 3 + ["pruned"]
    seen = json.loads((tmp_path / "trial-0003" / "seen.json").read_text())
    assert not is_running(seen["pid"]) and not is_running(seen["child"])
    assert any("pruned at epoch" in line for line in lines)


# ---------------------------------------------------------------------- loss and resumption
def start(folder, *more):
    command = [sys.executable, "-m", "tfscale.tuning", PROGRAM, f"--folder={folder}"]
    command += ["--trials=4", "--grace=1", "--pruner=none", "--plots=false", *more, "--space"]
    command += [f"{name}={item}" for name, item in SPACE.items()]
    return subprocess.Popen(
        [*command, "--", "--epochs=3", "--epoch_seconds=0.3"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_a_search_that_is_stopped_and_then_killed_loses_no_trial(tmp_path):
    undisturbed, _ = run(tmp_path / "whole", "--epochs=3", pruner="none")
    folder, said = tmp_path / "cut", []
    for number, sent in ((1, signal.SIGINT), (3, signal.SIGKILL)):
        searching = start(folder)
        wait_until((folder / f"trial-000{number}" / "epochs.jsonl").exists, 40)
        seen = json.loads((folder / f"trial-000{number}" / "seen.json").read_text())
        pid, scratch = seen["pid"], Path(seen["TMPDIR"]).parent
        os.kill(searching.pid, sent)
        said.append(searching.communicate(timeout=30)[0])
        wait_until(lambda pid=pid: not is_running(pid), 10)
        if sent == signal.SIGINT:
            assert searching.returncode == 130, said
            assert "the same command goes on with it" in said[0]
    resumed = start(folder)
    said.append(resumed.communicate(timeout=60)[0])
    assert resumed.returncode == 0, said
    # The one that was killed could not clean up after itself.
    assert not scratch.exists() and not any((folder / ".searches").iterdir())
    assert "going on: 1 trials are done" in said[1] and "(trial 1 once more)" in said[1]
    assert "trial 3  was lost with its search and will be repeated" in said[2]
    results = json.loads((folder / "results.json").read_text())
    trials = results["trials"]
    assert [row["state"] for row in trials] == ["complete"] * 4
    assert sorted(row["repeats"] or 0 for row in trials) == [0, 0, 1, 3]
    assert sorted(row["value"] for row in trials) == sorted(values(undisturbed))
    assert {str(row["params"]) for row in trials} == {str(params) for params in drawn(undisturbed)}


def test_a_search_on_another_machine_that_falls_silent_loses_its_trials(tmp_path, monkeypatch):
    monkeypatch.setattr(storages, "SILENCE_SECONDS", 1)
    settings = Settings(folder=str(tmp_path), trials=2)
    store = Store(settings, {})
    with owners.Owner(tmp_path, store.id) as owner:
        owner.card["host"] = "elsewhere"
        trial = store.ask(owner)
        momentum = trial.suggest_float("momentum", 0.0, 1.0)
        assert store.take_over([trial.number]) == []
        wait_until(lambda: store.take_over([]), 5)
        assert not store.tell(trial, stores.TrialState.COMPLETE, 1.0)
        again = store.ask(owner)
        assert again.user_attrs["repeats"] == trial.number
        assert again.suggest_float("momentum", 0.0, 1.0) == momentum
        store.tell(again, stores.TrialState.COMPLETE, 1.0)
        assert store.place_left() and not store.take_over([])


def test_a_trial_that_another_search_took_over_is_dropped(tmp_path):
    lines = []

    def show(text):
        lines.append(text)
        if text.startswith("trial 0  epoch 2"):
            url = f"sqlite:///{tmp_path}/trials.db"
            study = optuna.load_study(study_name="search", storage=url)
            study.tell(0, state=stores.TrialState.FAIL)

    settings = Settings(folder=str(tmp_path), trials=1)
    flags = ["--epoch_seconds=0.3", "--epochs=5"]
    report = search(SPACE, [PROGRAM], flags, settings, fields=FIELDS, notify=show)
    assert any(line.startswith("trial 0  is dropped: this search was silent") for line in lines)
    (row,) = report.rows
    assert (row["number"], row["repeats"], len(row["scores"])) == (1, 0, 5)
    first, again = sorted(report.study.trials, key=lambda trial: trial.number)
    assert again.params == first.params and first.last_step == 2
    pid = json.loads((tmp_path / "trial-0000" / "seen.json").read_text())["pid"]
    assert not is_running(pid)


def test_a_trial_whose_search_dies_each_time_is_given_up(tmp_path):
    store = Store(Settings(folder=str(tmp_path), trials=1), {})
    with owners.Owner(tmp_path, store.id) as owner:
        for _ in range(4):
            assert store.place_left()
            store.tell(store.ask(owner), stores.TrialState.FAIL)
            store.take_over([])
    assert not store.place_left() and len(store.trials()) == 4


def test_other_settings_do_not_go_on_with_a_search(tmp_path):
    run(tmp_path, trials=1)
    with pytest.raises(ValueError, match="other settings: flags was .*--folder or --name"):
        run(tmp_path, "--epochs=5", trials=1)


def test_searches_of_several_names_share_a_folder_but_no_files(tmp_path):
    first, _ = run(tmp_path, trials=1)
    seen = {path: path.read_text() for path in tmp_path.glob("[!.t]*")}
    assert {path.name for path in seen} == {"best.sh", "results.csv", "results.json"}
    report, _ = run(tmp_path, "--epochs=5", trials=1, name="another")
    assert len(report.rows[0]["scores"]) == 5
    home = tmp_path / "search-another"
    assert report.rows[0]["folder"] == str(home / "trial-0000")
    assert {path.name for path in home.glob("[!.]*")} == {
        "trial-0000",
        *(path.name for path in seen),
    }
    assert f"--model_dir={home}/best-0000" in report.best["command"]
    assert all(path.read_text() == text for path, text in seen.items())
    epochs = Path(first.rows[0]["folder"], "epochs.jsonl").read_text().splitlines()
    assert len(epochs) == len(first.rows[0]["scores"]) == 3
    # Of a storage that was removed, what there is is kept, and not gone on with.
    for lose in (Path.unlink, lambda path: path.write_bytes(b"")):
        lose(tmp_path / "trials.db")
        for _ in range(2):
            with pytest.raises(ValueError, match="results.json has results that are not in the st"):
                run(tmp_path, trials=1)
    assert all(path.read_text() == text for path, text in seen.items())
    (tmp_path / "results.json").unlink()
    again, _ = run(tmp_path, trials=1)
    assert len(again.rows[0]["scores"]) == 3
    assert (tmp_path / "trial-0000-old1" / "epochs.jsonl").exists()


# ---------------------------------------------------------------------- several at a time
def test_trials_at_the_same_time_share_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    monkeypatch.setenv("TF_CONFIG", "{}")
    monkeypatch.delenv("TFSCALE_LOCAL_WORKERS", raising=False)
    report, _ = run(tmp_path, "--epoch_seconds=0.4", trials=2, parallel=2)
    seen = [json.loads(Path(row["folder"], "seen.json").read_text()) for row in report.rows]
    assert seen[0]["begin"] < seen[1]["end"] and seen[1]["begin"] < seen[0]["end"]
    assert {one["CUDA_VISIBLE_DEVICES"] for one in seen} == {"4,5", "6,7"}
    assert len({one["TMPDIR"] for one in seen}) == 2
    assert not any(Path(one["TMPDIR"]).exists() for one in seen)
    assert [one["TFSCALE_LOCAL_WORKERS"] for one in seen] == ["2", "2"]
    assert [one["TF_CONFIG"] for one in seen] == [None, None]
    with pytest.raises(ValueError, match="--parallel=5 trials cannot have a GPU each: there are 4"):
        run(tmp_path / "many", parallel=5)


@pytest.mark.slow
def test_two_searches_on_one_storage_share_the_trials(tmp_path):
    flags = ["--epochs=3", "--epoch_seconds=0.3"]
    other = start(tmp_path, "--trials=6")
    wait_until((tmp_path / "trial-0000" / "seen.json").exists, 40)
    report, lines = run(tmp_path, *flags, trials=6, pruner="none")
    said = other.communicate(timeout=60)[0]
    assert other.returncode == 0, said
    rows = report.rows
    # Both may begin the last one.
    assert len(rows) in (6, 7) and {row["state"] for row in rows} == {"complete"}
    assert len({str(row["params"]) for row in rows}) == len(rows)
    begun = [text.count("  learning_rate=") for text in (said, "\n".join(lines))]
    assert all(begun) and sum(begun) == len(rows)
