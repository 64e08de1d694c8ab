"""What came out of runs that differ in speed: ratios of times, and accuracy over the time."""

import statistics

from experiments import paired, ratios
from experiments.results_file import above_0, from_0_to_1
from experiments.tables import aligned

# What the rows of a file have to have for `time_table` and `plot_curves`; see `Results`.
FORM = {
    "accuracy": from_0_to_1,
    "training_seconds": above_0,
    "first_steps_seconds": float,
    "images_per_second": [above_0],
    "curve": [{"seconds": float, "accuracy": from_0_to_1}],
}


def time_table(rows, baseline):
    """Returns training times and their ratios to the baseline as text."""
    lines = [
        ["arm", "training time", "ratio, 95 % interval", "of it first steps", "images/s by phase"]
    ]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        first = statistics.fmean(row["first_steps_seconds"] for row in own)
        speeds = zip(*(row["images_per_second"] for row in own), strict=True)
        lines.append(
            [
                arm,
                f"{statistics.fmean(row['training_seconds'] for row in own):.1f} s",
                ratios.cell(rows, arm, baseline),
                f"{first:.1f} s",
                ", ".join(f"{statistics.median(speed):.0f}" for speed in speeds),
            ]
        )
    return aligned(lines)


def plot_curves(rows, path, title=None):
    """Draws accuracy over training time: each arm's mean curve, and the end of each run."""
    figure = paired.new_figure(7, 4.2)
    if figure is None:
        return
    axes = figure.add_subplot()
    for number, arm in enumerate(dict.fromkeys(row["arm"] for row in rows)):
        curves = [row["curve"] for row in rows if row["arm"] == arm]
        points = list(zip(*curves, strict=True))  # all runs of an arm have the same epochs

        def mean(name, points=points):
            return [statistics.fmean(point[name] for point in epoch) for epoch in points]

        accuracy = [100 * value for value in mean("accuracy")]
        axes.plot(mean("seconds"), accuracy, marker=".", color=f"C{number}", label=arm)
        ends = [curve[-1] for curve in curves]
        axes.scatter(
            [end["seconds"] for end in ends],
            [100 * end["accuracy"] for end in ends],
            marker="x",
            color=f"C{number}",
        )
    axes.set_xlabel("training time, s, without evaluations (crosses: ends of the runs)")
    axes.set_ylabel("accuracy on held-out pictures, %")
    if title:
        axes.set_title(title)
    axes.legend()
    axes.grid(alpha=0.3)
    paired.save(figure, path)
