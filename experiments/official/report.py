"""What came out: accuracy and speed against the baseline, and accuracy per step as a plot."""

import statistics

from experiments import paired, ratios
from experiments.official.arms import ARMS, BASELINE
from experiments.tables import aligned


def accuracy_table(rows):
    """Returns the final accuracy of each arm, and its difference from the baseline's, as text."""
    return paired.table(paired.compare(rows, BASELINE))


def speed_table(rows):
    """Returns the images per second of each arm, and by what factor it is faster, as text.

    The factor is the geometric mean over the seeds, with its 95 % interval: runs of one seed
    follow each other, so that what else the machine does meets all arms of it alike.
    """
    measured = [row for row in rows if row["images_per_second"]]
    lines = [["arm", "images/s", f"of {BASELINE}'s, 95 % interval", "seeds"]]
    for arm in dict.fromkeys(row["arm"] for row in measured):
        speeds = [row["images_per_second"] for row in measured if row["arm"] == arm]
        factor = ratios.cell(measured, arm, BASELINE, "images_per_second")
        lines.append([arm, f"{statistics.geometric_mean(speeds):.0f}", factor, str(len(speeds))])
    return aligned(lines)


def curve_table(rows):
    """Returns the mean accuracy of each arm after each part of the steps, as text."""
    steps = rows[0]["steps_done"]
    lines = [["accuracy after", *(f"{step} steps" for step in steps), "seeds"]]
    for arm, mean, count in curves(rows):
        lines.append([arm, *(f"{value:.4f}" for value in mean), str(count)])
    return aligned(lines)


def curves(rows):
    """Returns ``(arm, mean accuracies, seeds)`` for each arm, in the order of `ARMS`."""
    found = []
    for arm in ARMS:
        runs = [row["accuracies"] for row in rows if row["arm"] == arm]
        if runs:
            mean = [sum(values) / len(runs) for values in zip(*runs, strict=True)]
            found.append((arm, mean, len(runs)))
    return found


def plot(rows, path):
    """Draws accuracy over steps: the mean of the seeds, an arm a line."""
    figure = paired.new_figure(7.5, 4.5)
    if figure is None:
        return
    axes = figure.add_subplot()
    for (arm, mean, _), marker in zip(curves(rows), "osv^D<>Px", strict=False):
        line = 2.5 if arm == BASELINE else 1.2
        axes.plot(
            rows[0]["steps_done"],
            [100 * value for value in mean],
            marker=marker,
            linewidth=line,
            markersize=4,
            label=arm,
        )
    axes.set_xlabel("steps")
    axes.set_ylabel("held-out accuracy, % (mean of the seeds)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    paired.save(figure, path)
