"""The machines and links that an exchange runs on."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Workers x devices, the link of each worker, and the cores that its host has for it.

    Args:
        workers: `int`, number of processes.
        devices_per_worker: `int`, local devices of each. Defaults to 1.
        bits_per_second: `float`, the line rate of a worker's link in each direction. Defaults to
            None: nothing limits the link, and only the CPU's work counts.
        latency_seconds: `float`, one way between two workers. Defaults to 50 microseconds.
        cores_per_host: `int`, CPU cores of a host. Defaults to 8.
        workers_per_host: `int`, workers that share the cores of one host. Defaults to 1; in a
            network lab on one machine, all of them.

    Raises:
        ValueError: for a count below 1, a rate that is not positive, a latency below 0.

    Example:
        >>> Cluster(4, 2, 200e6, cores_per_host=2, workers_per_host=4).contention
        2.0
    """

    workers: int
    devices_per_worker: int = 1
    bits_per_second: float | None = None
    latency_seconds: float = 5e-5
    cores_per_host: int = 8
    workers_per_host: int = 1

    def __post_init__(self):
        for name in ("workers", "devices_per_worker", "cores_per_host", "workers_per_host"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        rate = self.bits_per_second
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"bits_per_second must be positive or None, got {rate!r}")
        if not (math.isfinite(self.latency_seconds) and self.latency_seconds >= 0):
            raise ValueError(
                f"latency_seconds must be finite and not negative, got {self.latency_seconds!r}"
            )
        if self.workers_per_host > self.workers:
            raise ValueError(
                f"workers_per_host is {self.workers_per_host}, but there are only "
                f"{self.workers} workers"
            )

    @property
    def replicas(self):
        """Number of devices of all workers."""
        return self.workers * self.devices_per_worker

    @property
    def contention(self):
        """Wall seconds of one second of a worker's CPU work, while all workers do the same.

        Above 1 where workers outnumber the cores; below 1 where a worker's devices work side by
        side on cores of their own.
        """
        side_by_side = min(self.devices_per_worker, self.cores_per_host)
        return max(self.workers_per_host / self.cores_per_host, 1 / side_by_side)

    def seconds_on_the_wire(self, payload_bytes):
        """Returns the seconds that `payload_bytes` take at the line rate; 0 without a limit."""
        return 0.0 if self.bits_per_second is None else 8 * payload_bytes / self.bits_per_second
