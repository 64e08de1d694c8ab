"""Replicas as a table: rows are workers, columns are each worker's devices."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Topology:
    """The geometry of a job: workers x devices, groups of replicas, and a grid of workers.

    ``replica_id(worker, device) = worker * devices_per_worker + device``.

    Args:
        workers: `int`, number of processes.
        devices_per_worker: `int`, local devices of each.
        worker_grid: `(rows, columns)`, the workers laid out row by row (worker
            ``row * columns + column``), for a reduction first within rows, then within columns.
            Defaults to `None`: every worker is a row of its own, in one column.

    Raises:
        ValueError: with the arithmetic, if a count is below 1 or the grid does not hold exactly
            the workers.

    Example:

    >>> topology = Topology(workers=2, devices_per_worker=3)
    >>> topology.num_replicas, topology.replica_id(worker=1, device=0)
    (6, 3)
    >>> topology.groups(3)
    ((0, 1, 2), (3, 4, 5))
    """

    workers: int
    devices_per_worker: int
    worker_grid: tuple[int, int] | None = None

    def __post_init__(self):
        _check_count("workers", self.workers)
        _check_count("devices_per_worker", self.devices_per_worker)
        if self.worker_grid is None:
            return
        grid = self.worker_grid
        if not isinstance(grid, tuple | list) or len(grid) != 2:
            raise ValueError(f"worker_grid={grid!r} must be a pair (rows, columns) or None")
        rows, columns = grid
        _check_count("worker_grid's rows", rows)
        _check_count("worker_grid's columns", columns)
        if rows * columns != self.workers:
            raise ValueError(
                f"worker_grid=({rows}, {columns}) holds {rows} x {columns} = {rows * columns} "
                f"workers, but there are {self.workers}"
            )
        object.__setattr__(self, "worker_grid", (rows, columns))

    @property
    def num_replicas(self):
        """``workers * devices_per_worker``."""
        return self.workers * self.devices_per_worker

    def replica_id(self, worker, device):
        """The replica on local device `device` of worker `worker`."""
        _check_index("worker", worker, self.workers)
        _check_index("device", device, self.devices_per_worker)
        return worker * self.devices_per_worker + device

    def worker_of(self, replica_id):
        """The worker that runs `replica_id`."""
        _check_index("replica_id", replica_id, self.num_replicas)
        return replica_id // self.devices_per_worker

    def device_of(self, replica_id):
        """The local device, within its worker, that runs `replica_id`."""
        _check_index("replica_id", replica_id, self.num_replicas)
        return replica_id % self.devices_per_worker

    def check_group_size(self, group_size):
        """Checks that replicas can form groups of `group_size`, and returns that size.

        A size fits if it divides the replicas, and divides a worker's devices or is made of
        whole workers.

        Args:
            group_size: `int`, consecutive replicas in a group, or `None` for all replicas.

        Raises:
            ValueError: with the arithmetic, if it does not fit.
        """
        if group_size is None:
            return self.num_replicas
        _check_count("group_size", group_size)
        devices = self.devices_per_worker
        if self.num_replicas % group_size:
            raise ValueError(
                f"group_size={group_size} does not divide {self.num_replicas} replicas "
                f"({self._counts()}); {self._allowed()}"
            )
        if devices % group_size and group_size % devices:
            first = devices // group_size * group_size
            raise ValueError(
                f"group of {group_size} would straddle the edge between worker 0 and worker 1: "
                f"replicas {first} to {first + group_size - 1}, with {devices} to a worker "
                f"({self._counts()}); {self._allowed()}"
            )
        return group_size

    def groups(self, group_size=None):
        """Consecutive replicas in groups of `group_size` (`None` for one group of all)."""
        size = self.check_group_size(group_size)
        return tuple(
            tuple(range(start, start + size)) for start in range(0, self.num_replicas, size)
        )

    def grid_rows(self):
        """The workers of each row of the grid; without a grid, each worker is its own row."""
        columns = self.worker_grid[1] if self.worker_grid else 1
        return tuple(
            tuple(range(start, start + columns)) for start in range(0, self.workers, columns)
        )

    def grid_columns(self):
        """The workers of each column of the grid; without a grid, one column of all workers."""
        return tuple(zip(*self.grid_rows(), strict=True))

    def _counts(self):
        workers, devices = self.workers, self.devices_per_worker
        return (
            f"{workers} worker{'s' if workers != 1 else ''} x "
            f"{devices} device{'s' if devices != 1 else ''}"
        )

    def _allowed(self):
        devices, total = self.devices_per_worker, self.num_replicas
        sizes = [
            size
            for size in range(1, total + 1)
            if total % size == 0 and (devices % size == 0 or size % devices == 0)
        ]
        return f"allowed are {', '.join(map(str, sizes))}"


def _check_count(name, value):
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r} must be a whole number of at least 1")


def _check_index(name, value, count):
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise ValueError(f"{name}={value!r} must be a whole number from 0 to {count - 1}")
