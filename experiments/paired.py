"""Experiments whose arms share their seeds: paired differences, plots, flags, progress.

An arm is one way of doing something; in each seed every arm starts from the same weights and meets
the same examples in the same order. So arms are compared seed by seed, and what the seeds have in
common drops out of the differences.
"""

import math
import statistics
import sys
import time
from pathlib import Path

from experiments.tables import aligned

# Two-sided 95 % of Student's t for 1, 2, ... degrees of freedom.
T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def interval(values):
    """Returns mean, low and high: the 95 % interval of the mean (Student's t).

    ::

        mean -+ t(n - 1) s / sqrt(n)       s^2 = sum (x - mean)^2 / (n - 1)

    Low and high are None for a single value, which says nothing of its own spread.

    Example:
        >>> interval([-0.01, 0.01])
        (0.0, -0.12706, 0.12706)
    """
    mean = statistics.fmean(values)
    if len(values) == 1:
        return mean, None, None
    t = T95[min(len(values) - 2, len(T95) - 1)]  # beyond the table a little too wide
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def differences(rows, arm, baseline, metric="accuracy", key="seed"):
    """Returns mean, low, high and number of the differences of `metric`, arm minus baseline.

    Args:
        rows: `list` of `dict` with "arm", `key` and `metric`.
        arm, baseline: `str`. Only values of `key` that both have are compared.
        metric: `str`. Defaults to "accuracy".
        key: `str`, what pairs the rows. Defaults to "seed".

    Returns:
        ``(mean, low, high, n)``; low and high as in `interval`.

    Raises:
        ValueError: if they have no pair.
    """
    ours, theirs = (_by_key(rows, name, metric, key) for name in (arm, baseline))
    pairs = [ours[k] - theirs[k] for k in ours if k in theirs]
    if not pairs:
        raise ValueError(f"{arm} and {baseline} have no {key} in common")
    return (*interval(pairs), len(pairs))


def differences_if_paired(rows, arm, baseline, metric="accuracy", key="seed"):
    """Returns what `differences` does; None if the two have no pair."""
    try:
        return differences(rows, arm, baseline, metric, key)
    except ValueError:
        return None


def compare(rows, baseline, metric="accuracy", key="seed"):
    """Compares every arm with one of them.

    Returns:
        `list` of `dict` with ``arm``, ``mean`` (of the arm's own rows), ``difference``, ``low``,
        ``high`` (of `differences`; the last two are None for the baseline itself) and ``n``, in
        the order of the rows. Arms without a pair are left out.

    Raises:
        ValueError: if there are rows, but none of the baseline.
    """
    if rows and not any(row["arm"] == baseline for row in rows):
        raise ValueError(f"no runs of {baseline}, with which the other arms are compared: run it")
    table = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        apart = differences_if_paired(rows, arm, baseline, metric, key)
        if apart is None:
            continue
        mean, low, high, n = apart
        if arm == baseline:
            low = high = None
        own = statistics.fmean(_by_key(rows, arm, metric, key).values())
        table.append(
            {"arm": arm, "mean": own, "difference": mean, "low": low, "high": high, "n": n}
        )
    return table


def _by_key(rows, arm, metric, key):
    return {row[key]: row[metric] for row in rows if row["arm"] == arm}


def shown(mean, low, high, digits=4):
    """Returns a difference as text, such as ``-0.0025 [-0.0052, +0.0003]``."""
    span = "-" if low is None else f"[{low:+.{digits}f}, {high:+.{digits}f}]"
    return f"{mean:+.{digits}f} {span}"


def table(comparison, metric="accuracy", digits=4, key="seed"):
    """Returns what `compare` found as text for people."""
    lines = [["arm", metric, "difference, 95 % interval", f"{key}s"]]
    for row in comparison:
        difference = shown(row["difference"], row["low"], row["high"], digits)
        lines.append([row["arm"], f"{row['mean']:.{digits}f}", difference, str(row["n"])])
    return aligned(lines)


def new_figure(width=7.0, height=4.0):
    """Returns a matplotlib figure that needs no display; None, and says so, without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: matplotlib is not installed", file=sys.stderr)
        return None
    return Figure(figsize=(width, height), layout="constrained")


def save(figure, path):
    """Writes a figure and says where."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"plot: {path}")


def plot_differences(comparison, path, label, scale=100.0):
    """Draws differences and their intervals, an arm a line.

    Args:
        comparison: of `compare`.
        path: of the file.
        label: `str`, what the axis shows.
        scale: `float`, what the differences are multiplied by; 100 (default) makes points.
    """
    figure = new_figure(7, 0.45 * len(comparison) + 1.5)
    if figure is None:
        return
    axes, rows = figure.add_subplot(), comparison[::-1]
    # Not a number draws no bar.
    half = [math.nan if r["low"] is None else scale * (r["high"] - r["difference"]) for r in rows]
    places, values = range(len(rows)), [scale * r["difference"] for r in rows]
    axes.errorbar(values, places, xerr=half, fmt="o", capsize=3)
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_yticks(places, [r["arm"] for r in rows])
    axes.set_xlabel(label)
    save(figure, path)


def plot_lines(lines, path, x_label, y_label="test accuracy, % (mean and 95 % interval)"):
    """Draws means and their intervals over an axis that doubles, a line for each label.

    Args:
        lines: `dict` of label to a `list` of (x, mean, high), high as in `interval`.
        path: of the file.
        x_label, y_label: `str`. Means are multiplied by 100.
    """
    figure = new_figure(7, 4.2)
    if figure is None:
        return
    axes = figure.add_subplot()
    for label, points in lines.items():
        places, means, highs = zip(*points, strict=True)
        # Not a number draws no bar.
        half = [
            math.nan if high is None else 100 * (high - mean)
            for mean, high in zip(means, highs, strict=True)
        ]
        axes.errorbar(
            places, [100 * mean for mean in means], yerr=half, marker="o", capsize=3, label=label
        )
    axes.set_xscale("log", base=2)
    ticks = sorted({place for points in lines.values() for place, *_ in points})
    axes.set_xticks(ticks, map(str, ticks))
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.legend()
    axes.grid(alpha=0.3)
    save(figure, path)


def parse(parser, argv, quick):
    """Adds ``--report`` and ``--quick`` to a parser, and returns the flags.

    Args:
        parser: `argparse.ArgumentParser`.
        argv: `list` of `str`, or None for the command line.
        quick: `dict`, the defaults that flags have with ``--quick``.
    """
    parser.add_argument("--report", action="store_true", help="only show what is there")
    parser.add_argument("--quick", action="store_true", help=f"other defaults: {quick}")
    args = parser.parse_args(argv)
    if args.quick:
        parser.set_defaults(**quick)
        args = parser.parse_args(argv)
    return args


def say_if_quick(args):
    """Says below what a run with ``--quick`` has found that it is no answer.

    Args:
        args: of `parse`.
    """
    if args.quick:
        print("--quick only shows that the experiment runs: these numbers answer nothing")


def say_that_all_is_there():
    """Says of a run that finds all its results in place that it measures nothing."""
    print("nothing to run: all is in the results; keep others elsewhere to measure anew (--help)\n")


class Progress:
    """Says after each run how many are left, and for about how long.

    Args:
        total: `int`, runs of this call (without those that are there already).
        clock: function that returns seconds. Defaults to `time.monotonic`.

    Example:
        >>> progress = Progress(33)
        >>> progress.done("seed 0  dense  accuracy 0.8896")
        [1/33] seed 0  dense  accuracy 0.8896  (92 s; about 49 min left)
    """

    def __init__(self, total, clock=time.monotonic):
        self._total, self._clock, self._count = total, clock, 0
        self._start = self._last = clock()

    def done(self, text):
        """Prints a line for the run that has just ended."""
        now = self._clock()
        self._count += 1
        took, self._last = now - self._last, now
        left = (now - self._start) / self._count * (self._total - self._count)
        about = f"about {duration(left)} left" if self._total > self._count else "all done"
        print(f"[{self._count}/{self._total}] {text}  ({duration(took)}; {about})", flush=True)


def duration(seconds):
    """Returns ``"42 s"`` or ``"7 min"``."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
