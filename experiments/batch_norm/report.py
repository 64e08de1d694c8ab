"""What came out: accuracy over the span of the statistics, and the cost of a step."""

import statistics

from experiments import paired
from experiments.tables import aligned


def curves(rows):
    """Returns a `dict` for each arm, by examples of a replica and size of groups.

    Each has ``per_replica``, ``group``, ``span`` (examples that share statistics), ``accuracy``
    (mean over seeds), ``low`` and ``high`` (of that mean), ``apart``: `paired.differences` from
    the largest groups, None of those themselves; and ``seeds``.
    """
    points = []
    for per_replica in sorted({row["per_replica"] for row in rows}):
        mine = [row for row in rows if row["per_replica"] == per_replica]
        groups = sorted({row["group"] for row in mine})
        names = {row["group"]: row["arm"] for row in mine}
        for group in groups:
            own = [row["accuracy"] for row in mine if row["group"] == group]
            mean, low, high = paired.interval(own)
            apart = None
            if group != groups[-1]:
                apart = paired.differences_if_paired(mine, names[group], names[groups[-1]])
            points.append(
                {
                    "per_replica": per_replica,
                    "group": group,
                    "span": per_replica * group,
                    "accuracy": mean,
                    "low": low,
                    "high": high,
                    "apart": apart,
                    "seeds": len(own),
                }
            )
    return points


def table(rows):
    """Returns accuracies as text for people."""
    lines = [
        ["examples a replica", "group", "span", "accuracy", "from all, 95 % interval", "seeds"]
    ]
    for p in curves(rows):
        apart = "-" if p["apart"] is None else paired.shown(*p["apart"][:3])
        cells = [p["per_replica"], p["group"], p["span"], f"{p['accuracy']:.4f}", apart, p["seeds"]]
        lines.append([str(cell) for cell in cells])
    return aligned(lines)


def cost_table(rows):
    """Returns the cost of a step as text: medians, and differences from groups of one replica."""
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    lines = [["real layer", "ms a step", "from " + arms[0] + ", 95 % interval", "rounds"]]
    for arm in arms:
        own = [row["milliseconds"] for row in rows if row["arm"] == arm]
        mean, low, high, n = paired.differences(rows, arm, arms[0], "milliseconds", "round")
        apart = "-" if arm == arms[0] else paired.shown(mean, low, high, digits=1)
        lines.append([arm, f"{statistics.median(own):.1f}", apart, str(n)])
    return aligned(lines)


def plot(rows, path):
    """Draws accuracy over the span, a line for each number of examples a replica."""
    lines = {}
    for p in curves(rows):
        label = f"{p['per_replica']} examples a replica"
        lines.setdefault(label, []).append((p["span"], p["accuracy"], p["high"]))
    paired.plot_lines(
        lines,
        path,
        "examples that share statistics (examples a replica x size of the group)",
    )
