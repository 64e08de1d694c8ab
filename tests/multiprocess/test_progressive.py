"""Phases on real workers: killed within a phase and between two, resumed to the bit."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.multiprocess import progressive_runs as runs
from tfscale.testing import run_in_processes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A run ended by SIGKILL in mid-epoch of phase 2; resumed, and ended between phases 2 and 3;
    resumed again, beside an undisturbed one."""
    folder = tmp_path_factory.mktemp("cluster")
    left = []
    for step in (runs.MIDDLE, runs.BOUNDARY):
        with pytest.raises(RuntimeError, match=r"exit code -9|code -9"):
            run_in_processes(runs.train_until_killed, 2, 1, (str(folder), step))
        newest = max((folder / "killed").glob("step-*"))
        position = json.loads((newest / "position.json").read_text())
        files = sorted(path.name for path in newest.glob("compression/*"))
        left.append((position["epoch"], position["step"], files))
    found = run_in_processes(runs.resume_and_compare, 2, 1, (str(folder),), timeout=280)
    return left, found


def test_killed_and_resumed_equals_undisturbed_to_the_bit(cluster):
    left, found = cluster
    residuals = ["worker-0000.npz", "worker-0001.npz"]
    assert left == [(1, 2, residuals), (3, 0, residuals)]
    for worker in found:
        resumed, plain = worker["killed"], worker["plain"]
        assert (resumed["begun"], resumed["epochs"]) == ([(2, 0)], [3])
        assert plain["begun"] == [(0, 0), (1, 0), (2, 0)]
        assert resumed["seen"] == plain["seen"][runs.BOUNDARY :]
        for copies, expected in zip(resumed["state"], plain["state"], strict=True):
            np.testing.assert_array_equal(copies, expected)
        for key, values in resumed["history"].items():
            assert values == plain["history"][key][-1:], key


def test_what_compression_holds_back_goes_on_and_is_paid(cluster):
    _, found = cluster
    for worker in found:
        # Compressed in two phases, and dense in the third.
        assert worker["plain"]["owed"] == [True, True, True, False]
        assert worker["dense"]["owed"] == [False] * 2


def test_two_workers_equal_one_device(cluster):
    _, found = cluster
    model, history, watch = runs.run(tf.distribute.get_strategy(), runs.DENSE)
    for worker in found:
        dense = worker["dense"]
        for copies, (expected,) in zip(dense["state"], runs.state_of(model), strict=True):
            np.testing.assert_allclose(copies[0], expected, rtol=1e-6, atol=1e-6)
        assert dense["seen"] == watch.seen
        assert dense["epochs"] == [0, 1]
        for key, values in history.history.items():
            np.testing.assert_allclose(dense["history"][key], values, rtol=1e-6, atol=1e-6)


def test_workers_with_other_phases_or_steps_are_told_so(cluster):
    _, found = cluster
    for worker in found:
        message = worker["other phases"]
        assert "do not agree on the phases of the run: [1].epochs is 2 on" in message
        message = worker["other steps"]
        assert "do not agree on the data of phase 1: steps_per_epoch is 2 on worker 0" in message
        assert "but 3 on worker 1" in message
