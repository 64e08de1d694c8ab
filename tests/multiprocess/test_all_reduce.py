"""Hierarchical2DAllReduce in real processes; each launch checks everything on one geometry."""

import re

import pytest

from tests.multiprocess import communication_workers, failure_workers
from tfscale import testing


@pytest.mark.slow
@pytest.mark.parametrize(
    "workers, devices, grids",
    [(2, 1, (None,)), (2, 2, (None,)), (2, 3, (None,)), (4, 1, (None, (2, 2)))],
    ids=["2x1", "2x2", "2x3", "4x1 and a 2x2 grid of workers"],
)
def test_against_numpy_and_the_stock_all_reduce(workers, devices, grids):
    """Dtypes, shapes, wire types, sparse, gather, variables; eager and graph; sum and mean."""
    results = testing.run_in_processes(
        communication_workers.check_everything, workers, devices, args=(grids,), timeout=240
    )
    (plan, topology) = results[0]
    assert all(result == results[0] for result in results)
    assert topology == (workers, devices, grids[-1])
    (tensors,) = plan["plans"]
    assert tensors[0] == ["layer_0/kernel", [3, 4], "float32", 0]


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_others_with_an_error():
    with pytest.raises(RuntimeError) as caught:
        testing.run_in_processes(failure_workers.lose_a_worker, 2, args=("dies",))
    text = str(caught.value)
    assert "worker 1 (exit code 3)" in text
    assert "worker 0 (exit code 1)" in text and "/job:worker/replica:0/task:1" in text


@pytest.mark.slow
def test_sigterm_ends_a_worker_that_is_stuck_in_a_collective():
    with pytest.raises(RuntimeError) as caught:
        testing.run_in_processes(failure_workers.lose_a_worker, 2, args=("sigterm",))
    text = str(caught.value)
    assert "worker 0 exited with code -15" in text
    assert re.search(r"worker 1 \(exit code [1-9]", text)


@pytest.mark.slow
def test_the_leader_may_finish_first():
    testing.run_in_processes(failure_workers.leave_early, 2, args=(0,))


@pytest.mark.slow
def test_joining_the_cluster_is_bounded():
    with pytest.raises(
        RuntimeError, match=r"worker 0 exited with code 1(.|\n)*Timeout \(0:00:03\)!"
    ):
        testing.run_in_processes(failure_workers.join_alone, 2)
