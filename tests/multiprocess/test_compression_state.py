"""Compression in checkpoints on real clusters: killed for real, resumed to the bit, none lost."""

import shutil

import numpy as np
import pytest

from tests.multiprocess import compression_state_runs as runs
from tfscale.testing import run_in_processes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster_2x2(tmp_path_factory):
    """Several runs ended at step 8, the last by SIGKILL; then started again."""
    folder = tmp_path_factory.mktemp("cluster")
    with pytest.raises(RuntimeError, match=r"exit code -9|code -9"):
        run_in_processes(runs.train_until_killed, 2, 2, (str(folder),), timeout=280)
    found = run_in_processes(runs.resume_and_compare, 2, 2, (str(folder),), timeout=400)
    return folder, found


@pytest.mark.parametrize("kind", runs.KINDS)
def test_killed_and_resumed_equals_undisturbed_to_the_bit(cluster_2x2, kind):
    _, found = cluster_2x2
    for worker in found:
        resumed, plain = worker[kind], worker[f"plain {kind}"]
        assert (resumed["initial_step"], plain["initial_step"]) == (6, 0)
        assert resumed["state"] == plain["state"]
        assert_same(resumed["owed"], plain["owed"])
        for name, values in resumed["history"].items():
            assert values == plain["history"][name][-len(values) :], name
    owed = [worker[f"plain {kind}"]["owed"] for worker in found]
    assert set(owed[0]) == ({"residual", "velocity"} if kind == "momentum" else {"residual"})
    # Each worker's is its own.
    some = max(owed[0]["residual"], key=lambda tensor: tensor[1])
    assert np.any(owed[0]["residual"][some] != owed[1]["residual"].get(some, 0))


def assert_same(owed, other):
    assert owed.keys() == other.keys()
    for slot in owed:
        assert owed[slot].keys() == other[slot].keys()
        for tensor, values in owed[slot].items():
            np.testing.assert_array_equal(values, other[slot][tensor], err_msg=f"{slot} {tensor}")


def test_each_worker_writes_its_file(cluster_2x2):
    folder, _ = cluster_2x2
    names = {str(p.relative_to(folder / "topk")) for p in (folder / "topk").rglob("*.npz")}
    steps = ("step-00000015", "step-00000018", "step-00000020")
    assert names == {f"{s}/compression/worker-000{w}.npz" for s in steps for w in range(2)}
    assert not list(folder.rglob(".partial-*"))
    # In the dense phase nothing is held back, and there is nothing to write.
    dense = folder / "warm-up" / "step-00000003"
    assert not dense.exists() or not (dense / "compression").exists()


@pytest.mark.parametrize("workers, devices, bucket_bytes", [(1, 2, 1024), (4, 1, 1024), (2, 1, 64)])
def test_nothing_is_lost_on_another_cluster(cluster_2x2, workers, devices, bucket_bytes):
    folder, before = cluster_2x2
    copy = folder / f"on {workers} x {devices}"
    for kind in ("topk", "int8"):
        shutil.copytree(folder / f"plain {kind}", copy / f"plain {kind}")
    found = run_in_processes(
        runs.resume_elsewhere, workers, devices, (str(copy), bucket_bytes), timeout=280
    )
    for kind in ("topk", "int8"):
        owed = total(worker[f"plain {kind}"]["owed"]["residual"] for worker in before)
        assert all(worker[kind]["initial_step"] == 20 for worker in found)
        loaded = total(worker[kind]["loaded"].get("residual", {}) for worker in found)
        assert loaded.keys() == owed.keys()
        for tensor, values in owed.items():
            if workers < 4:
                np.testing.assert_array_equal(loaded[tensor], values)
            np.testing.assert_allclose(loaded[tensor], values, rtol=1e-7)
        # The dense steps have sent all of it.
        assert [worker[kind]["left"] for worker in found] == [{}] * workers


def total(residuals):
    """The sum over the workers, by tensor."""
    found = {}
    for residual in residuals:
        for tensor, values in residual.items():
            found[tensor] = found.get(tensor, np.float32(0)) + values
    return found


@pytest.fixture(scope="module")
def cluster_2x1(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    return run_in_processes(runs.refused, 2, 1, (str(folder),), timeout=280)


def test_files_that_do_not_belong_are_named_on_every_worker(cluster_2x1):
    reasons = {
        "missing": "it is missing",
        "cut short": "cannot be read",
        "changed": "cannot be read",
        "another worker's": "belongs to another checkpoint or worker",
        "another step's": "belongs to another checkpoint or worker",
    }
    for errors in cluster_2x1:
        for name, reason in reasons.items():
            assert "step-00000010/compression/worker-0001.npz" in errors[name], name
            assert reason in errors[name]
            assert "to resume from the one before it (step 5)" in errors[name]
        assert errors["then"] == 10


def test_a_directory_that_is_not_shared_is_found_at_the_first_save(cluster_2x1):
    for errors in cluster_2x1:
        assert "does not see the file that worker" in errors["not shared"]
        assert "must be on a file system that all workers share" in errors["not shared"]
        assert errors["left behind"] == []


def test_other_schedules_are_refused_and_named(cluster_2x1):
    for errors in cluster_2x1:
        said = errors["other schedules"]
        assert "do not agree on the compression schedule: phases.2 is 'int8" in said
        assert "but 'bfloat16' on worker 1" in said


def test_compression_set_between_fits_needs_no_restart(cluster_2x1):
    for errors in cluster_2x1:
        steps, functions, owed = errors["between fits"]
        assert (steps, functions) == (8, 4)
        # What top-k held back is sent with the dense step, what int8 did with bfloat16's.
        assert owed == [["residual"], [], ["residual"], []]


def test_models_trained_in_turns_keep_their_own_residuals(cluster_2x1):
    for errors in cluster_2x1:
        together, *alone = errors["two models"]
        for one in alone:
            ((skip, (state, owed)),) = one.items()
            assert owed["residual"] and together[skip][0] == state
            assert_same(together[skip][1], owed)


def test_an_adaptive_plan_is_kept(tmp_path):
    notes = run_in_processes(runs.adaptive, 2, 1, (str(tmp_path),))
    for note in notes:
        # Measured once, traced again once.
        assert sorted(set(note["generations"])) == [0, 1]
        assert note["saved"] == (True, note["plans"][-1])
    assert notes[0]["plans"] == notes[1]["plans"]
    assert notes[0]["predicted"] == notes[1]["predicted"] != []
    # One table while it measures, one of the plan with its times.
    before, planned = runs.tables(tmp_path / "logs")
    assert "predicted end" not in before and "predicted end" in planned
    for measured, plan in run_in_processes(runs.resume_adaptive, 2, 1, (str(tmp_path),)):
        assert measured == [False] * runs.STEPS
        assert plan == notes[0]["plans"][-1]
    (table,) = runs.tables(tmp_path / "logs of the resumed")
    assert "measured end" in table and "predicted" not in table
