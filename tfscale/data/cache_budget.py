"""How much a cache may keep: budgets in bytes, what the machine has free, and what fits."""

import pathlib
import re

import numpy as np

UNITS = {"": 1, "B": 1}
UNITS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)}
UNITS |= {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)}
MEMORY_SHARE, DISK_SHARE = 0.5, 0.9  # of what is free, for "auto"
MEMORY_LIMIT = 0.9  # of what is free, whatever was asked for


def parse(name, budget):
    """Returns a budget as a number of bytes; None and "auto" as they are.

    Args:
        name: `str`, for errors.
        budget: None, "auto", `int` bytes, or text such as "8GiB" or "500 MB".

    Raises:
        TypeError, ValueError: if it is none of these, or not positive.

    Example:
        >>> parse("memory", "1.5KiB")
        1536
    """
    if budget is None or budget == "auto":
        return budget
    if not isinstance(budget, str):
        from tfscale.data import arguments  # loads TensorFlow, which a check of flags does not

        return arguments.integer(name, budget, 1)
    found = re.fullmatch(r"\s*(\d{1,20}(?:\.\d+)?)\s*([A-Za-z]*)\s*", budget)
    if not found or found[2] not in UNITS or not round(float(found[1]) * UNITS[found[2]]):
        raise ValueError(
            f"{name}={budget!r} is no budget; wanted 'auto', an integer (bytes), or a positive "
            f"number and one of {', '.join(unit for unit in UNITS if unit)}, such as '8GiB'"
        )
    return round(float(found[1]) * UNITS[found[2]])


def text(size):
    """Returns a number of bytes for people.

    Example:
        >>> text(3 * 2**29)
        '1.5 GiB'
    """
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    power = min(max(int(size).bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{size / 1024**power:.{1 if power else 0}f} {units[power]}"


def free_memory():
    """Returns the bytes of memory that can still be had; None where the system does not say.

    What the host has available, or what the container may still use if that is less.
    """
    found = []
    try:
        lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
        fields = dict(line.split(":") for line in lines)
        found.append(int(fields["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        pass
    found += filter(None, map(_left_in_group, _memory_groups()))
    return min(found, default=None)


def _memory_groups(mount="/sys/fs/cgroup"):
    """Returns the folders of the control groups that may limit this process's memory."""
    try:
        lines = pathlib.Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            root = pathlib.Path(mount, "memory" if controllers else "")
            own = root / path.lstrip("/")
            # In a container the path is often the host's, and only the root is there.
            found += [own, *(folder for folder in own.parents if root in [folder, *folder.parents])]
    return found


def _left_in_group(folder):
    """Returns the bytes that a control group may still use; None if it sets no limit."""
    for limit, used, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most = int((folder / limit).read_text())
            stat = dict(x.split() for x in (folder / "memory.stat").read_text().splitlines())
            # The page cache gives way to us, but counts as used.
            return max(0, most - int((folder / used).read_text()) + int(stat.get(cached, 0)))
        except (OSError, ValueError):
            continue  # "max": no limit
    return None


def fitting(sizes, budget):
    """Returns which of `sizes` fit into `budget`, a bool array: all up to the first that does not.

    Example:
        >>> fitting([3, 3, 3, 1], 7).tolist()
        [True, True, False, False]
    """
    return np.cumsum(np.asarray(sizes, np.int64)) <= budget
