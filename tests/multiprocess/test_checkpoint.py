"""Checkpoints, export and callbacks on real clusters: killed for real, resumed to the bit."""

import json
import math

import numpy as np
import pytest
import tensorflow as tf

from tests.multiprocess import checkpoint_runs
from tfscale._keras import install
from tfscale.testing import run_in_processes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster_2x2(tmp_path_factory):
    """Both workers killed with SIGKILL at step 8, in mid-epoch; then started again."""
    folder = tmp_path_factory.mktemp("cluster")
    with pytest.raises(RuntimeError, match=r"exit code -9|code -9"):
        run_in_processes(checkpoint_runs.train_until_killed, 2, 2, (str(folder), 8))
    left = checkpoint_runs.names_in(folder / "run")
    found = run_in_processes(checkpoint_runs.resume_and_compare, 2, 2, (str(folder),), timeout=280)
    return folder, left, found


def test_killed_and_resumed_equals_undisturbed_to_the_bit(cluster_2x2):
    folder, left, found = cluster_2x2
    assert {name.partition("/")[0] for name in left} == {"step-00000003", "step-00000006"}
    for worker in found:
        assert worker["initial_step"] == 6
        (merged, local), history, seen, logs = worker["resumed"]
        (plain_merged, plain_local), plain_history, plain_seen, plain_logs = worker["plain"]
        assert merged == plain_merged
        assert local == plain_local
        assert seen == plain_seen[6:]
        # Keras multiplies the logs of a batch by the number of replicas where it is let.
        assert logs == plain_logs[6:]
        assert all(0 <= batch["accuracy"] <= 1 for batch in plain_logs)
        for name, values in history.items():
            assert values == plain_history[name][1:], name
    # Copies agree between workers too.
    assert found[0]["plain"][0][0] == found[1]["plain"][0][0]
    assert found[0]["plain"][1] == found[1]["plain"][1]


def test_only_the_leaders_files_remain(cluster_2x2):
    _, _, found = cluster_2x2
    steps = ["step-00000015", "step-00000018", "step-00000020"]
    files = ["position.json", "variables.data-00000-of-00001", "variables.index"]
    for worker in found:
        assert worker["files"] == [f"{step}/{name}" for step in steps for name in files]


def test_workers_that_do_not_share_a_directory_are_told_so(cluster_2x2):
    _, _, found = cluster_2x2
    for worker in found:
        message = worker["not_shared"]
        assert "the workers see different checkpoints" in message
        assert "step 20 in" in message and "step none in" in message


def test_a_callback_on_the_leader_only_is_found_out(cluster_2x2):
    _, _, (leader, _) = cluster_2x2
    assert "no word on the checkpoint to resume from" in leader["alone"]
    assert "within 2 s" in leader["alone"]


def test_one_display_and_one_log_for_the_job(cluster_2x2):
    folder, _, found = cluster_2x2
    lines = (folder / "progress-0.txt").read_text().splitlines()
    assert lines[-1].startswith("epoch 4/4  step 5/5") and "images/s" in lines[-1]
    assert (folder / "progress-1.txt").read_text() == ""
    assert len(list((folder / "logs" / "train").iterdir())) == 1
    assert all(not math.isnan(worker["images_per_second"]) for worker in found)


def test_logs_of_train_on_batch_are_not_multiplied(cluster_2x2):
    _, _, found = cluster_2x2
    loss, accuracy = found[0]["train_on_batch"]
    assert 0 <= accuracy <= 1
    assert found[0]["train_on_batch"] == found[1]["train_on_batch"]


def test_export_after_training_on_a_cluster(cluster_2x2):
    folder, _, found = cluster_2x2
    served = tf.saved_model.load(str(folder / "export")).signatures["images"]
    images = next(iter(checkpoint_runs.data(0)(tf.distribute.InputContext()).batch(1).take(1)))
    probabilities = served(images=images[0][0])["probabilities"].numpy()
    np.testing.assert_allclose(probabilities, found[0]["expected"][: len(probabilities)], atol=1e-6)
    assert not list(folder.glob(".export*"))


def test_another_number_of_workers_goes_on(cluster_2x2):
    """Saved by 2 workers x 2 devices at step 20, resumed by one process with 2 devices."""
    folder, _, found = cluster_2x2
    strategy = tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    install(strategy)
    position = json.loads((folder / "plain" / "step-00000020" / "position.json").read_text())
    assert (position["workers"], position["replicas"]) == (2, 4)
    model, _, watch, resume = checkpoint_runs.run(strategy, folder / "plain", epochs=5)
    assert resume.initial_step == 20
    assert [step for step, _ in watch.seen] == [21, 22, 23, 24, 25]


@pytest.fixture(scope="module")
def cluster_2x1(tmp_path_factory):
    folder = tmp_path_factory.mktemp("callbacks")
    return run_in_processes(checkpoint_runs.user_callbacks, 2, 1, (str(folder),), timeout=280)


def test_keras_callbacks_agree_between_workers(cluster_2x1):
    first, second = cluster_2x1
    assert first["history"] == second["history"]
    assert len(first["history"]["loss"]) == 5  # patience 4 after the first epoch
    assert first["rate"] == second["rate"] == pytest.approx(0.1 * 0.25)
    assert first["weights"] == second["weights"]
    assert first["loaded"] == first["model"] == second["loaded"]
    for worker in cluster_2x1:
        assert worker["files"] == [
            "checkpoint", "model.h5", "weights.data-00000-of-00001", "weights.index"
        ]  # fmt: skip


def test_overflow_on_one_worker_skips_the_step_on_all(cluster_2x1):
    for worker in cluster_2x1:
        assert worker["overflow"] == {"scale": 64.0, "iterations": 0, "unchanged": True}


def test_uneven_batch_over_workers_equals_one_device(cluster_2x1):
    for worker in cluster_2x1:
        assert abs(worker["uneven"]["first_weight"] - 0.9549) < 5e-5
        # The log of the last batch is the epoch's mean, not twice that.
        assert worker["uneven"]["last_batch_logs"]["loss"] == pytest.approx(
            worker["uneven"]["loss"]
        )
