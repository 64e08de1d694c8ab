"""What each optimisation of the input is worth: added one at a time, left out one at a time.

Parts: `add` begins with the pipeline that one writes first and switches on one optimisation after
the other, up to tfscale's own with its native ops; `leave` takes one away from the full pipeline,
in plain tf.data and in tfscale; `sweep` decodes in 1, 2, 4 and 8 calls at a time. The arms of a
part measure in turns, as in experiments.input.benchmark.
"""

import argparse
import math
import sys
from pathlib import Path

from experiments.commands import exit_code
from experiments.input import ablation_arms, benchmark, photos, results
from experiments.tables import aligned

_EPILOG = """\
optimisations:
    parallel    files are read and pictures decoded in --threads calls at a time
    prefetch    batches are made while the last ones are used
    fused       only the window is decoded, in place of decode, then crop
    uint8       pictures go out as bytes, in place of float32, normalised in the pipeline
    sizes       height and width are known, in place of read from the JPEG's header
    cache       encoded pictures stay in memory after the first epoch
    native ops  tfscale's C ops read, decode, crop and resize, where they are installed

columns:
    images/CPU-s, images/s   see experiments.input.benchmark
    x CPU, x                 of the arm named in `against`: medians over the turns

time: with the default of 3 repeats of 4 s, 10 minutes on 2 cores that are otherwise idle, and up to
7 GB of memory.

example:
    python -m experiments.input.ablation --data_dir=photos --json=ablation.json --plot=ablation.png
"""


def main(argv=None):
    """Runs the command; returns its exit code."""
    args = _arguments(sys.argv[1:] if argv is None else argv)
    return exit_code(lambda: _run(args))


def _arguments(argv):
    parser = argparse.ArgumentParser(
        prog="python -m experiments.input.ablation",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    benchmark.add_common(parser, repeats=3, seconds=4.0)
    names = ",".join(ablation_arms.PARTS)
    parser.add_argument("--parts", default=names, help="list with commas (default: %(default)s)")
    args = parser.parse_args(argv)
    args.parts = args.parts.split(",")
    for part in args.parts:
        if part not in ablation_arms.PARTS:
            parser.error(f"unknown part {part!r}; choose from {names}")
    return args


def _run(args):
    benchmark.check(args)
    data = photos.find(args.data_dir, args.cache_dir, benchmark.say)
    title = benchmark.describe(data, args)
    benchmark.say(title)
    rows, failures = [], []
    for part in args.parts:
        arms = ablation_arms.PARTS[part]()
        samples, facts, failed = benchmark.measure(
            [_command(arm, args, data) for arm in arms], args
        )
        failures += failed
        rows += compare(part, arms, results.rows_of(samples, facts))
        benchmark.say(f"\n{part}\n{table([row for row in rows if row['part'] == part])}\n")
    if rows:
        benchmark.write_rows(args, rows, data)
        if args.plot:
            plot(args.plot, rows, title)
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _command(arm, args, data):
    return benchmark.command(
        arm.name,
        sys.executable,
        arm.worker,
        arm.variables,
        arm.epochs * math.ceil(data.count / args.batch),
        {**benchmark.settings("", args, data), **arm.facts},
    )


def compare(part, arms, rows):
    """Adds to each row its `part`, what it is held `against`, and how many times faster it is."""
    found = {row["pipeline"]: row for row in rows}
    for arm in arms:
        row, reference = found.get(arm.name), found.get(arm.reference)
        if row is None:
            continue
        row |= {"part": part, "against": arm.reference, "times_cpu": None, "times": None}
        if reference is not None:
            row["times_cpu"] = results.paired_ratio(row["repeats"], reference["repeats"])
            row["times"] = results.paired_ratio(
                row["repeats_per_second"], reference["repeats_per_second"]
            )
    return rows


def table(rows):
    """Returns the rows of one part as text for people."""
    lines = [["arm", "images/CPU-s", "x CPU", "images/s", "x", "against", "C ops"]]
    for row in rows:
        lines.append(
            [
                row["pipeline"],
                f"{row['images_per_cpu_second']:.0f}",
                "-" if row["times_cpu"] is None else f"{row['times_cpu']:.3f}",
                f"{row['images_per_second']:.0f}",
                "-" if row["times"] is None else f"{row['times']:.3f}",
                row["against"] or "-",
                results.yes_or_no(row["native"]),
            ]
        )
    return aligned(lines)


def plot(path, rows, title):
    """Draws the arms of each part, one below the other, into a picture file."""
    from matplotlib.figure import Figure

    parts = list(dict.fromkeys(row["part"] for row in rows))
    counts = [sum(row["part"] == part for row in rows) for part in parts]
    figure = Figure(figsize=(8, 1 + 0.3 * len(rows) + 0.8 * len(parts)), layout="constrained")
    figure.suptitle(title, fontsize="small")
    grid = figure.subplots(len(parts), 1, height_ratios=counts, sharex=True, squeeze=False)
    for part, axes in zip(parts, grid[:, 0], strict=True):
        here = [row for row in rows if row["part"] == part]
        places = range(len(here))
        axes.barh(places, [row["images_per_second"] for row in here], label="images/s")
        axes.plot(
            [row["images_per_cpu_second"] for row in here], places, "k|", markersize=12,
            label="images/CPU-s",
        )  # fmt: skip
        axes.set_yticks(places, [row["pipeline"] for row in here])
        axes.invert_yaxis()
        axes.set_title(part, loc="left")
    grid[0, 0].legend()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
