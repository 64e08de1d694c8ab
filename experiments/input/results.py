"""Rows of the benchmark: from the samples of the turns, to a table and a plot."""

import statistics
from pathlib import Path

from experiments.tables import aligned


def rows_of(samples, facts):
    """Returns a row for each pipeline.

    Args:
        samples: ``{pipeline: [{"images", "wall_seconds", "cpu_seconds"}, ...]}``, all lists in
            step: the i-th of each were measured in the same turn.
        facts: ``{pipeline: {"dtype", "mean_area", "native"}}``, the last two where known.

    Returns:
        `list` of `dict`: medians of the repeats, and in ``repeats`` and ``repeats_per_second``
        the images per CPU-second and per second of each. ``share_of_bound`` is None without the
        bound; ``native`` says whether tfscale's C ops were used, and is None for others.
    """
    rows = []
    for name, turns in samples.items():
        rates = [turn["images"] / turn["cpu_seconds"] for turn in turns]
        per_second = [turn["images"] / turn["wall_seconds"] for turn in turns]
        rows.append(
            {
                "pipeline": name,
                "images_per_cpu_second": statistics.median(rates),
                "images_per_second": statistics.median(per_second),
                "share_of_bound": None,
                "dtype": facts[name]["dtype"],
                "mean_area": facts[name].get("mean_area"),
                "native": facts[name].get("native"),
                "spread": (max(rates) - min(rates)) / statistics.median(rates),
                "repeats": rates,
                "repeats_per_second": per_second,
            }
        )
    bound = next((row for row in rows if row["pipeline"] == "bound"), None)
    if bound:
        for row in rows:
            row["share_of_bound"] = paired_ratio(row["repeats"], bound["repeats"])
    return rows


def paired_ratio(ours, theirs):
    """Returns the median of ``ours[i] / theirs[i]``: both of a pair met the same machine.

    Raises:
        ValueError: if there are not as many of one as of the other, or none.

    Example:
        >>> paired_ratio([10, 5, 21], [5, 2.5, 10])
        2.0
    """
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"{len(ours)} and {len(theirs)} repeats are no pairs")
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def table(rows):
    """Returns the rows as text for people."""
    headers = ["pipeline", "images/CPU-s", "spread", "images/s", "share of bound", "out"]
    lines = [[*headers, "mean area", "C ops"]]
    for row in rows:
        share, area = row["share_of_bound"], row["mean_area"]
        lines.append(
            [
                row["pipeline"],
                f"{row['images_per_cpu_second']:.0f}",
                f"{row['spread']:.0%}",
                f"{row['images_per_second']:.0f}",
                "-" if share is None else f"{share:.2f}",
                row["dtype"],
                "-" if area is None else f"{area:.3f}",
                yes_or_no(row["native"]),
            ]
        )
    return aligned(lines)


def yes_or_no(value):
    """Returns "yes", "no", or "-" for None."""
    return "-" if value is None else "yes" if value else "no"


def plot(path, rows, title):
    """Draws images per CPU-second as bars, with their smallest and largest, into a file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.6 + 0.35 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    places = range(len(rows))
    medians = [row["images_per_cpu_second"] for row in rows]
    spread = [
        [row["images_per_cpu_second"] - min(row["repeats"]) for row in rows],
        [max(row["repeats"]) - row["images_per_cpu_second"] for row in rows],
    ]
    colors = ["tab:blue" if row["dtype"] == "uint8" else "tab:orange" for row in rows]
    axes.barh(places, medians, xerr=spread, capsize=3, color=colors, ecolor="black")
    axes.set_yticks(places, [f"{row['pipeline']} ({row['dtype']})" for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("images per CPU-second (median; smallest and largest)")
    axes.set_title(title, fontsize="small")
    for place, row in zip(places, rows, strict=True):
        axes.annotate(
            f" {row['images_per_cpu_second']:.0f}",
            (max(row["repeats"]), place),
            verticalalignment="center",
        )
    axes.margins(x=0.12)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
