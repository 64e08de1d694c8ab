"""The cores of this machine that a process may use, and its share of them."""

import math
import os
from pathlib import Path

LOCAL_WORKERS = "TFSCALE_LOCAL_WORKERS"
_CGROUPS, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def available_cores():
    """Cores that this process may use: its affinity, and the CPU quota of its control groups.

    Example:
        >>> available_cores() >= 1
        True
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, _quota()))


def usable_cores():
    """This process's share of the cores, at least one.

        available_cores() // TFSCALE_LOCAL_WORKERS

    The launcher sets ``TFSCALE_LOCAL_WORKERS``, the number of workers on this host; without it
    there is one. Set it to 1 where each worker is pinned to cores of its own.

    Raises:
        ValueError: see `local_workers`.

    Example:
        >>> 1 <= usable_cores() <= available_cores()
        True
    """
    return max(1, available_cores() // local_workers())


def local_workers():
    """Workers on this host, as the launcher says: ``TFSCALE_LOCAL_WORKERS``, or 1.

    Raises:
        ValueError: if it is no positive integer.

    Example:
        >>> local_workers() >= 1
        True
    """
    text = os.environ.get(LOCAL_WORKERS, "").strip() or "1"
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise ValueError(
            f"environment variable {LOCAL_WORKERS}={text!r}: wanted the number of workers on this "
            "host, at least 1; unset it if the launcher did not set it"
        )
    return int(text)


def _quota():
    """The smallest CPU quota of this process's control group and of those around it, in cores."""
    try:
        lines = _MEMBERSHIP.read_text().splitlines()
    except OSError:
        return math.inf
    limits = [math.inf]
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            root, read = _CGROUPS, _quota_v2
        elif "cpu" in controllers.split(","):
            root, read = _CGROUPS / "cpu", _quota_v1
        else:
            continue
        # A container often sees its own group as the root, and the path of the host: folders
        # that are not there have no quota.
        folder = root / group.lstrip("/")
        limits += [read(at) for at in (folder, *folder.parents) if at.is_relative_to(root)]
    return math.ceil(min(limits)) if min(limits) < math.inf else math.inf


def _quota_v2(folder):
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return _ratio(quota, period)
    except (OSError, ValueError):
        return math.inf  # no such file, or "max"


def _quota_v1(folder):
    try:
        quota = (folder / "cpu.cfs_quota_us").read_text()
        return _ratio(quota, (folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return math.inf


def _ratio(quota, period):
    quota, period = float(quota), float(period)
    return quota / period if quota > 0 and period > 0 else math.inf
