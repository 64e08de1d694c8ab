"""Gradient accumulation in two real processes: exact, one exchange, compressed, killed, resumed."""

import numpy as np
import pytest

from tests.multiprocess import accumulation_runs as runs
from tfscale.distribute.strategy import create_strategy
from tfscale.testing import run_in_processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def two_by_one(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("accumulation"))
    return run_in_processes(runs.all_runs, 2, args=(folder,), timeout=280)


def test_equals_the_whole_batch_on_one_device(two_by_one):
    expected, _ = runs.whole_batch(create_strategy("one_device"), 1)
    for worker in two_by_one:
        found, _ = worker["parts"]
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=2e-6, atol=1e-6, err_msg=name)


def test_workers_with_different_numbers_of_parts_name_them(two_by_one):
    for worker in two_by_one:
        assert "micro_batches is 1 on worker 0 " in worker["disagreeing"]
        assert "but 2 on worker 1 " in worker["disagreeing"]


def test_one_exchange_a_step_and_only_batch_norm_in_the_loop(two_by_one):
    for worker in two_by_one:
        plain, parts, normed = (worker[name][1] for name in ("plain", "parts", "normed"))
        assert plain["step"] == parts["step"] and plain["step"]
        assert plain["loop"] == parts["loop"] == {}
        assert normed["step"] == plain["step"]
        assert normed["loop"] == {"CollectiveGatherV2": 1, "CollectiveReduceV2": 1}


def test_batch_norm_joins_a_part_over_the_workers(two_by_one):
    expected, _ = runs.normed_parts(create_strategy("one_device"), rearranged=True)
    for worker in two_by_one:
        for got, want in zip(worker["normed"][0], expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


def test_killed_and_resumed_equals_undisturbed_to_the_bit(two_by_one):
    for worker in two_by_one:
        assert worker["killed"] is None
        (start, state, owed), (resumed_at, resumed_state, resumed_owed) = (
            worker["whole"],
            worker["resumed"],
        )
        assert (start, resumed_at) == (0, 6)
        assert state == resumed_state
        assert owed["residual"].keys() == resumed_owed["residual"].keys() != set()
        for tensor, values in owed["residual"].items():
            np.testing.assert_array_equal(values, resumed_owed["residual"][tensor])


def test_an_adaptive_plan_is_made_once(two_by_one):
    first, second = (worker["adaptive"] for worker in two_by_one)
    steps, generation, wants_measurement, plan = first
    assert (steps, generation, wants_measurement) == (12, 1, False)
    assert plan and first == second
