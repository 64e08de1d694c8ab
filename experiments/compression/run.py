"""Does compression of gradients keep the accuracy? Several arms, the same seeds in each.

    python -m experiments.compression.run                     # all arms, 3 seeds, Fashion-MNIST
    python -m experiments.compression.run --seeds=5 --epochs=10 --workers=4
    python -m experiments.compression.run --report            # table and plot of what is there

Resumable: what is in the results file is not run again. Each arm is compared with "dense" at the
same seeds; the interval is that of the mean difference (95 %, Student's t).
"""

import argparse
import math
import statistics
import sys
from pathlib import Path

from experiments.compression.settings import NAMES, add_settings, read_rows

# Two-sided 95 % of Student's t for 1, 2, ... degrees of freedom.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m experiments.compression.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument(
        "--devices_per_worker", type=int, default=2, help="devices in each (default: 2)"
    )
    add_settings(parser)
    parser.add_argument("--plot", help="default: beside the results, as .png")
    parser.add_argument("--report", action="store_true", help="only show what is there")
    args = parser.parse_args(argv)
    path = Path(args.json)
    try:
        read_rows(path)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not args.report:
        from launch.local import main as launch_local

        path.parent.mkdir(parents=True, exist_ok=True)
        code = launch_local(
            [
                f"--workers={args.workers}",
                f"--devices_per_worker={args.devices_per_worker}",
                "--show=leader",
                "-m",
                "experiments.compression.training",
                "--",
                *settings_flags(args),
            ]
        )
        if code:
            return code
    if not path.exists():
        print(f"error: {path} is not there; run without --report first", file=sys.stderr)
        return 1
    table = compare(read_rows(path))
    for row in table:
        print(describe(row))
    plot(table, args.plot or path.with_suffix(".png"))
    return 0


def settings_flags(args):
    """The flags of a training run, for the workers."""
    given = {name: getattr(args, name) for name in NAMES}
    return [f"--{name}={value}" for name, value in given.items() if value is not None]


def describe(row):
    """One line of the table."""
    interval = "-" if row["low"] is None else f"[{row['low']:+.4f}, {row['high']:+.4f}]"
    seeds = f"{row['seeds']} seed{'s' if row['seeds'] > 1 else ''}"
    return (
        f"{row['arm']:22s} {row['accuracy']:.4f}  {row['difference']:+.4f} {interval:18s}  {seeds}"
    )


def compare(rows):
    """Each arm's mean accuracy, and its difference from dense over the seeds that both have.

    The interval, `low` to `high`, is None of one seed, and of dense itself.
    """
    dense = {row["seed"]: row["accuracy"] for row in rows if row["arm"] == "dense"}
    table = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        accuracy = {row["seed"]: row["accuracy"] for row in rows if row["arm"] == arm}
        differences = [accuracy[seed] - dense[seed] for seed in sorted(accuracy) if seed in dense]
        if not differences:
            continue
        mean, half = statistics.mean(differences), None
        if len(differences) > 1 and arm != "dense":
            t = _T95[min(len(differences) - 2, len(_T95) - 1)]
            half = t * statistics.stdev(differences) / math.sqrt(len(differences))
        table.append(
            {
                "arm": arm,
                "accuracy": statistics.mean(accuracy.values()),
                "difference": mean,
                "low": None if half is None else mean - half,
                "high": None if half is None else mean + half,
                "seeds": len(differences),
            }
        )
    return table


def plot(table, path):
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed", file=sys.stderr)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 0.45 * len(table) + 1.5))
    rows = table[::-1]
    # Not a number draws no bar.
    half = [math.nan if r["low"] is None else 100 * (r["high"] - r["difference"]) for r in rows]
    axes.errorbar(
        [100 * r["difference"] for r in rows],
        range(len(rows)),
        xerr=half,
        fmt="o",
        capsize=3,
    )
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [r["arm"] for r in rows])
    axes.set_xlabel("accuracy, percentage points from dense (mean and 95 % interval)")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"plot: {path}")


if __name__ == "__main__":
    sys.exit(main())
