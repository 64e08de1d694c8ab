"""Compression with a state in real processes: nothing is lost, whatever changes."""

import pytest

from tests.multiprocess import compression_workers
from tfscale import testing
from tfscale.distribute.compression import TopK


@pytest.mark.slow
@pytest.mark.parametrize(
    "workers, devices, grids",
    [(2, 3, (None,)), (4, 1, (None, (2, 2)))],
    ids=["2x3", "4x1 and a 2x2 grid of workers"],
)
def test_nothing_is_lost(workers, devices, grids):
    """Conservation, overflow, momentum, adaptive plans; one launch for each geometry."""
    settings = [
        {"compression": compression, "worker_grid": grid, "bucket_bytes": bucket_bytes}
        for grid in grids
        for compression, bucket_bytes in (("int8", 4 << 20), (TopK(0.02, min_elements=50), 20_000))
    ]
    results = testing.run_in_processes(
        compression_workers.check_all, workers, devices, args=(settings,), timeout=300
    )
    assert all(result == results[0] for result in results)


@pytest.mark.slow
def test_nothing_is_lost_on_another_arrangement_of_workers():
    testing.run_in_processes(compression_workers.check_other_grids, 4, 1, timeout=280)
