"""The verdicts, the table and the plot of `experiments.input.memory`."""

import math
from pathlib import Path

from experiments.tables import aligned

NO_GROWTH, GROWS, UNCLEAR = "no growth", "GROWS", "unclear"
_SHARE = 0.01  # of the resident memory: a rise that counts
_SLACK = 64 << 20  # bytes above the budget: tables, and what the allocator keeps
_BUDGETED = ("memory_half", "memory_disk")


def judge(rows):
    """Adds to each row `slope` and `error` (bytes per epoch), `verdict`, and the budget's.

    Args:
        rows: list of `dict` with `tier`, `iterators`, `budget`, `samples`, see `memory_run`.
    """
    plain = {row["iterators"]: _most(row) for row in rows if row["tier"] == "none"}
    for row in rows:
        values = [sample["rss"] for sample in row["samples"][1:]]
        values = values[len(values) // 2 :]
        row["slope"], row["error"] = fit(values)
        row["verdict"] = verdict(row["slope"], row["error"], values)
        row["most"] = _most(row)
        row["above_none"] = row["within_budget"] = None
        if row["iterators"] in plain:
            row["above_none"] = row["most"] - plain[row["iterators"]]
            if row["tier"] in _BUDGETED:
                row["within_budget"] = row["above_none"] <= row["budget"] + _SLACK


def fit(values):
    """Fits a line ``a + b x``, x = 0, 1, ..., by least squares.

    Returns:
        `(b, error)`: the slope, and two standard errors of it.

    Example:
        >>> fit([1.0, 3.0, 5.0])
        (2.0, 0.0)
    """
    count = len(values)
    centre, mean = (count - 1) / 2, sum(values) / count
    spread = sum((x - centre) ** 2 for x in range(count))
    slope = sum((x - centre) * (y - mean) for x, y in enumerate(values)) / spread
    rest = sum((y - mean - slope * (x - centre)) ** 2 for x, y in enumerate(values))
    return slope, 2 * math.sqrt(rest / (count - 2) / spread)


def verdict(slope, error, values):
    """Says whether memory grows, by the rule that ``--help`` of the command states."""
    epochs, counts = len(values) - 1, _SHARE * sum(values) / len(values)
    if (slope + error) * epochs < counts:
        return NO_GROWTH
    if slope > error and slope * epochs >= counts:
        return GROWS
    return UNCLEAR


def _most(row):
    return max(sample["rss"] for sample in row["samples"])


def table(rows):
    """Returns the rows as text for people: MiB, and MiB per epoch."""
    epochs = [row["samples"][-1]["epoch"] for row in rows]
    lines = [
        ["tier, iterators", "epoch 1", "half", "last", "most", "growth/epoch", "error", "verdict",
         "above none", "budget", "kept to"]
    ]  # fmt: skip
    for row, count in zip(rows, epochs, strict=True):
        samples = row["samples"]
        places = samples[1], samples[1 + count // 2], samples[-1]
        budgeted = row["within_budget"] is not None
        lines.append(
            [
                f"{row['tier']}, {row['iterators']}",
                *(_mib(sample["rss"]) for sample in places),
                _mib(row["most"]),
                _mib(row["slope"], 2),
                _mib(row["error"], 2),
                row["verdict"],
                "-" if row["above_none"] is None else _mib(row["above_none"]),
                _mib(row["budget"]) if budgeted else "-",
                {True: "yes", False: "NO", None: "-"}[row["within_budget"]],
            ]
        )
    return aligned(lines) + "\nMiB, resident"


def _mib(size, digits=0):
    return f"{size / 2**20:.{digits}f}"


def plot(path, rows):
    """Draws the resident memory over the epochs."""
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(row["iterators"] for row in rows))
    titles = {"one": "one endless iterator", "new": "a new iterator in each epoch"}
    figure = Figure(figsize=(4.5 * len(kinds) + 1, 4), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        for row in rows:
            if row["iterators"] == kind:
                samples = row["samples"]
                axes.plot(
                    [sample["epoch"] for sample in samples],
                    [sample["rss"] / 2**20 for sample in samples],
                    marker=".",
                    label=f"{row['tier']}: {row['verdict']}",
                )
        axes.set_title(titles[kind], fontsize="medium")
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right", fontsize="small")
    panels[0].set_ylim(0, 1.1 * max(map(_most, rows)) / 2**20)  # the panels share it
    panels[0].set_ylabel("resident memory, MiB")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
