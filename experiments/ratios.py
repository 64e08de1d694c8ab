"""Ratios of two arms of paired runs, as geometric means."""

import math

from experiments import paired


def ratio(rows, arm, baseline, metric="training_seconds"):
    """Returns the ratio of a metric, arm by baseline, of the same seeds.

    ::

        exp(mean of log(arm / baseline)), and exp of the ends of that mean's 95 % interval

    Args:
        rows: `list` of `dict` with ``arm``, ``seed`` and the metric, a number above 0.

    Returns:
        ``(ratio, low, high, n)``; low and high are None for one seed.

    Raises:
        ValueError: if they have no seed in common.
    """
    logs = [{**row, metric: math.log(row[metric])} for row in rows if row["arm"] in (arm, baseline)]
    *found, n = paired.differences(logs, arm, baseline, metric)
    return (*(None if value is None else math.exp(value) for value in found), n)


def cell(rows, arm, baseline, metric="training_seconds"):
    """Returns the ratio for a table: "1" for the baseline itself, "-" without a common seed."""
    if arm == baseline:
        return "1"
    try:
        return shown(*ratio(rows, arm, baseline, metric)[:3])
    except ValueError:
        return "-"


def shown(value, low, high):
    """Returns a ratio as text, such as ``0.51 [0.49, 0.53]``."""
    return f"{value:.2f} {'-' if low is None else f'[{low:.2f}, {high:.2f}]'}"
