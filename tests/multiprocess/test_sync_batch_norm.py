"""Batch norm over groups of replicas in several processes."""

import numpy as np
import pytest

from tests.multiprocess import sync_batch_norm_runs as runs
from tests.references_batch_norm import check, oracle
from tfscale.distribute.strategy import create_strategy
from tfscale.testing import run_in_processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EVEN, UNEVEN, HALF_EMPTY = (3, 3, 3, 3), (2, 0, 1, 4), (0, 0, 2, 1)
FIT_SIZES = [(2, 2, 2, 2), (2, 2, 2, 2), (2, 1, 1, 0)]


def check_steps(results):
    """Every local replica of every worker against NumPy on its group's joined batch."""
    for size, sizes in results[0]:
        replicas = [r for worker in results for r in worker[size, sizes]]
        expected = oracle(*runs.batches(sizes), 1.0, 0.0, size or 4)
        for right in expected:
            if right["count"] == 0:
                right |= {"mean": np.zeros(4), "variance": np.ones(4)}
        check(replicas, expected, rtol=5e-6, atol=5e-6)


@pytest.fixture(scope="module")
def two_by_two():
    cases = [(size, sizes) for size in (1, 2, 4, None) for sizes in (EVEN, UNEVEN, HALF_EMPTY)]
    return run_in_processes(
        runs.steps_and_fit, 2, devices_per_worker=2, args=(cases, FIT_SIZES), timeout=400
    )


def test_groups_inside_a_worker_and_of_two_workers(two_by_two):
    check_steps([steps for steps, _, _ in two_by_two])


def test_a_layer_sends_one_message_per_pass_between_workers(two_by_two):
    # Two of the three layers have groups that cross workers.
    for _, messages, _ in two_by_two:
        assert messages == {"CollectiveGatherV2": 2, "CollectiveReduceV2": 2}


def test_fit_gives_what_one_process_gives(two_by_two):
    expected = runs.fit(create_strategy("mirrored", devices_per_worker=4), FIT_SIZES)
    for worker, (_, _, fit) in enumerate(two_by_two):
        for name in ("loss", "weights", "merged", "evaluation", "predictions"):
            for mine, right in zip(fit[name], expected[name], strict=True):
                np.testing.assert_allclose(mine, right, rtol=2e-5, atol=2e-5, err_msg=name)
        for mine, right in zip(fit["local"], expected["local"], strict=True):
            here = right[2 * worker : 2 * worker + 2]
            np.testing.assert_allclose(mine, here, rtol=2e-5, atol=2e-5)


def test_workers_agree_to_the_bit_and_merged_statistics_survive_a_save(two_by_two):
    (_, _, first), (_, _, second) = two_by_two
    for name in ("weights", "merged"):
        for mine, other in zip(first[name], second[name], strict=True):
            np.testing.assert_array_equal(mine, other)
    assert np.abs(first["local"][0] - second["local"][0]).max() > 0.01  # groups of two differ
    for fit in (first, second):
        for held, merged, restored in zip(fit["held"], fit["merged"], fit["restored"], strict=True):
            for replica in (*held, *restored):
                np.testing.assert_array_equal(replica, merged)
        assert fit["group_sizes"] == [2, None, 2]
        np.testing.assert_allclose(fit["loaded"], fit["predictions"], rtol=1e-5, atol=1e-6)


def test_groups_of_workers_with_one_device_each():
    cases = [(size, sizes) for size in (2, 4) for sizes in (UNEVEN, HALF_EMPTY)]
    results = run_in_processes(runs.steps, 4, args=(cases,), timeout=400)
    check_steps([steps for steps, _ in results])
    # Here groups of two cross workers as well.
    for _, messages in results:
        assert messages == {"CollectiveGatherV2": 3, "CollectiveReduceV2": 3}
