"""What this machine has to share among workers: cores and GPUs."""

import math
import os
from pathlib import Path

_CGROUP_V2 = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_V1 = Path("/sys/fs/cgroup/cpu")


def available_cores():
    """Cores that this process may use: its affinity, and a container's limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, _container_limit()))


def _container_limit():
    try:
        if _CGROUP_V2.exists():
            quota, period = _CGROUP_V2.read_text().split()
        else:
            quota = (_CGROUP_V1 / "cpu.cfs_quota_us").read_text()
            period = (_CGROUP_V1 / "cpu.cfs_period_us").read_text()
        limit = float(quota) / float(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf  # "max", or no cgroup.
    return math.ceil(limit) if limit > 0 else math.inf


def visible_gpus(environ, devices=Path("/dev")):
    """The ids of the NVIDIA GPUs that a program would see, as `CUDA_VISIBLE_DEVICES` names them."""
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        numbers = (path.name.removeprefix("nvidia") for path in devices.glob("nvidia[0-9]*"))
        return [str(number) for number in sorted(int(n) for n in numbers if n.isdigit())]
    ids = []
    for entry in (part.strip() for part in text.split(",")):
        if not entry or entry.startswith("-"):
            break  # CUDA ignores everything after the first invalid id.
        ids.append(entry)
    return ids
