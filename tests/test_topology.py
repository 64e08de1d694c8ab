"""Replicas, groups and worker grids, and errors that show the arithmetic."""

import dataclasses
import itertools

import pytest

from tfscale.topology import Topology


def test_replicas_are_numbered_row_by_row():
    topology = Topology(workers=2, devices_per_worker=3)
    assert topology.num_replicas == 6
    table = [[topology.replica_id(worker, device) for device in range(3)] for worker in range(2)]
    assert table == [[0, 1, 2], [3, 4, 5]]
    assert [topology.worker_of(replica) for replica in range(6)] == [0, 0, 0, 1, 1, 1]
    assert [topology.device_of(replica) for replica in range(6)] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("workers", "devices", "size", "groups"),
    [
        (2, 3, 1, ((0,), (1,), (2,), (3,), (4,), (5,))),
        (2, 3, 3, ((0, 1, 2), (3, 4, 5))),
        (2, 3, 6, ((0, 1, 2, 3, 4, 5),)),
        (2, 3, None, ((0, 1, 2, 3, 4, 5),)),
        (2, 2, 2, ((0, 1), (2, 3))),
        (4, 1, 2, ((0, 1), (2, 3))),
        (4, 2, 4, ((0, 1, 2, 3), (4, 5, 6, 7))),
        (1, 4, 2, ((0, 1), (2, 3))),
        (1, 1, None, ((0,),)),
    ],
)
def test_groups(workers, devices, size, groups):
    assert Topology(workers, devices).groups(size) == groups


@pytest.mark.parametrize(
    ("workers", "devices", "size", "message"),
    [
        (2, 2, 3, "group_size=3 does not divide 4 replicas (2 workers x 2 devices); "
                  "allowed are 1, 2, 4"),
        (3, 2, 3, "group of 3 would straddle the edge between worker 0 and worker 1: replicas "
                  "0 to 2, with 2 to a worker (3 workers x 2 devices); allowed are 1, 2, 6"),
        (2, 3, 2, "group of 2 would straddle the edge between worker 0 and worker 1: replicas "
                  "2 to 3, with 3 to a worker (2 workers x 3 devices); allowed are 1, 3, 6"),
        (1, 1, 2, "group_size=2 does not divide 1 replicas (1 worker x 1 device); allowed are 1"),
        (2, 2, 8, "group_size=8 does not divide 4 replicas"),
        (2, 2, 0, "group_size=0 must be a whole number of at least 1"),
        (2, 2, -2, "group_size=-2 must be"),
        (2, 2, True, "group_size=True must be"),
        (2, 2, 2.0, "group_size=2.0 must be"),
    ],
)  # fmt: skip
def test_group_sizes_that_do_not_fit(workers, devices, size, message):
    topology = Topology(workers, devices)
    for call in (topology.check_group_size, topology.groups):
        with pytest.raises(ValueError) as caught:
            call(size)
        assert message in str(caught.value)


def test_every_allowed_size_partitions_the_replicas_and_no_other_is_allowed():
    for workers, devices in itertools.product(range(1, 5), range(1, 5)):
        topology = Topology(workers, devices)
        for size in range(1, workers * devices + 2):
            fits = (workers * devices) % size == 0 and (devices % size == 0 or size % devices == 0)
            if not fits:
                with pytest.raises(ValueError):
                    topology.groups(size)
                continue
            groups = topology.groups(size)
            assert sum(groups, ()) == tuple(range(workers * devices))
            for group in groups:
                assert len(group) == size
                members = {topology.worker_of(replica) for replica in group}
                assert len(members) == max(1, size // devices)


def test_worker_grid():
    grid = Topology(6, 2, worker_grid=(2, 3))
    assert grid.grid_rows() == ((0, 1, 2), (3, 4, 5))
    assert grid.grid_columns() == ((0, 3), (1, 4), (2, 5))
    assert Topology(4, 1, [2, 2]).worker_grid == (2, 2)
    flat = Topology(3, 2)
    assert flat.grid_rows() == ((0,), (1,), (2,)) and flat.grid_columns() == ((0, 1, 2),)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((4, 2, (2, 3)), "worker_grid=(2, 3) holds 2 x 3 = 6 workers, but there are 4"),
        ((4, 2, (4,)), "worker_grid=(4,) must be a pair"),
        ((4, 2, 4), "worker_grid=4 must be a pair"),
        ((4, 2, (0, 4)), "worker_grid's rows=0"),
        ((4, 2, (4, 1.0)), "worker_grid's columns=1.0"),
        ((0, 2), "workers=0 must be a whole number of at least 1"),
        ((2, 0), "devices_per_worker=0"),
        ((2, "2"), "devices_per_worker='2'"),
        ((True, 1), "workers=True"),
    ],
)
def test_bad_geometry(arguments, message):
    with pytest.raises(ValueError) as caught:
        Topology(*arguments)
    assert message in str(caught.value)


def test_out_of_range():
    topology = Topology(2, 3)
    for call in (
        lambda: topology.replica_id(2, 0),
        lambda: topology.replica_id(0, 3),
        lambda: topology.replica_id(0, -1),
        lambda: topology.worker_of(6),
        lambda: topology.device_of(-1),
    ):
        with pytest.raises(ValueError, match="must be a whole number from 0 to"):
            call()


def test_frozen_and_equal_by_value():
    topology = Topology(2, 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        topology.workers = 4
    assert topology == Topology(2, 3) and hash(topology) == hash(Topology(2, 3))
