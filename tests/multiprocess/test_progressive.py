"""Phases on real workers: killed within a phase and between two, resumed to the bit."""

import numpy as np
import pytest
import tensorflow as tf

from tests.multiprocess import progressive_runs as runs
from tfscale.testing import run_in_processes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two runs ended by SIGKILL; then started again, beside undisturbed ones."""
    folder = tmp_path_factory.mktemp("cluster")
    for name, step in (("boundary", runs.BOUNDARY), ("middle", runs.MIDDLE)):
        with pytest.raises(RuntimeError, match=r"exit code -9|code -9"):
            run_in_processes(runs.train_until_killed, 2, 1, (str(folder), name, step))
    left = {str(p.relative_to(folder)) for p in folder.rglob("*.npz")}
    found = run_in_processes(runs.resume_and_compare, 2, 1, (str(folder),), timeout=280)
    return left, found


@pytest.mark.parametrize(
    "name, begun, steps, epochs",
    [
        ("boundary", [(2, 0)], runs.BOUNDARY, [3]),
        ("middle", [(1, 2), (2, 0)], runs.RESUMED_MIDDLE, [1, 2, 3]),
    ],
)
def test_killed_and_resumed_equals_undisturbed_to_the_bit(cluster, name, begun, steps, epochs):
    _, found = cluster
    for worker in found:
        resumed, plain = worker[name], worker["plain"]
        assert (resumed["begun"], resumed["epochs"]) == (begun, epochs)
        assert plain["begun"] == [(0, 0), (1, 0), (2, 0)]
        assert resumed["seen"] == plain["seen"][steps:]
        for copies, expected in zip(resumed["state"], plain["state"], strict=True):
            np.testing.assert_array_equal(copies, expected)
        for key, values in resumed["history"].items():
            assert values == plain["history"][key][-len(values) :], key


def test_what_compression_holds_back_goes_on_and_is_paid(cluster):
    left, found = cluster
    for name, step in (("boundary", runs.BOUNDARY), ("middle", runs.RESUMED_MIDDLE)):
        for worker in range(2):
            assert f"{name}/step-{step:08d}/compression/worker-000{worker}.npz" in left
    for worker in found:
        # Compressed in two phases, and dense in the third.
        assert worker["plain"]["owed"] == [True, True, True, False]
        assert worker["dense"]["owed"] == [False] * 4


def test_two_workers_equal_one_device(cluster):
    _, found = cluster
    model, history, watch = runs.run(tf.distribute.get_strategy())
    for worker in found:
        dense = worker["dense"]
        for copies, (expected,) in zip(dense["state"], runs.state_of(model), strict=True):
            np.testing.assert_allclose(copies[0], expected, rtol=1e-6, atol=1e-6)
        assert dense["seen"] == watch.seen
        assert dense["epochs"] == [0, 1, 2, 3]
        for key, values in history.history.items():
            np.testing.assert_allclose(dense["history"][key], values, rtol=1e-6, atol=1e-6)


def test_workers_with_other_phases_are_told_so(cluster):
    _, found = cluster
    for worker in found:
        message = worker["errors"]["other phases"]
        assert "do not agree on the phases of the run: [1].epochs is 2 on" in message
