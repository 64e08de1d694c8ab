"""Do several workers on one machine read as many pictures in all as one worker alone?

Processes that each take all cores get in each other's way. tfscale divides the cores among the
workers that the launcher says are on this machine (TFSCALE_LOCAL_WORKERS). Each number of workers
is measured in turn, in fresh processes, which start to count together.

    python -m experiments.input.sharing --data_dir=records --json=sharing.json
"""

import argparse
import os
import statistics
import sys

from experiments.commands import exit_code
from experiments.input import sharing_run
from experiments.outputs import check_writable, write_json
from experiments.tables import aligned
from tfscale.cores import LOCAL_WORKERS
from tfscale.testing import run_in_processes


def main(argv=None):
    """Runs the command; returns its exit code."""
    args = _arguments(sys.argv[1:] if argv is None else argv)
    return exit_code(lambda: _run(args))


def _run(args):
    check_writable(args, "json")
    rows = _measure(args)
    print(table(rows))
    if args.json:
        settings = {"image_size": args.image_size, "batch": args.batch, "seconds": args.seconds}
        write_json(args.json, rows, cores=len(os.sched_getaffinity(0)), **settings)
    return 0


def _arguments(argv):
    parser = argparse.ArgumentParser(
        prog="python -m experiments.input.sharing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data_dir", required=True, metavar="DIR", help="records, made by tfscale.data.prepare")
    add("--workers", default="1,2,4", help="numbers of workers (default: %(default)s)")
    add("--repeats", type=int, default=3, help="turns of each (default: 3)")
    add("--seconds", type=float, default=8.0, help="of a turn (default: 8)")
    add("--image_size", type=int, default=224, help="pixels (default: 224)")
    add("--batch", type=int, default=64, help="pictures in a worker's batch (default: 64)")
    add("--json", metavar="F", help="write the rows there")
    args = parser.parse_args(argv)
    try:
        args.workers = [int(number) for number in args.workers.split(",")]
    except ValueError:
        parser.error(f"--workers={args.workers}: wanted numbers with commas, such as 1,4")
    for name, values in (("workers", args.workers), ("repeats", [args.repeats])):
        if min(values) < 1:
            parser.error(f"--{name}: {min(values)} is below 1")
    if not args.seconds > 0:
        parser.error(f"--seconds={args.seconds:g} must be above 0")
    return args


def _measure(args):
    rates = {workers: [] for workers in args.workers}
    threads = {}
    for turn in range(1, args.repeats + 1):
        for workers in args.workers:
            settings = (args.data_dir, args.image_size, args.batch, args.seconds, workers)
            found = run_in_processes(
                sharing_run.read, workers, args=settings, timeout=args.seconds + 300,
                env={LOCAL_WORKERS: str(workers)},
            )  # fmt: skip
            begin, end = max(row["begin"] for row in found), min(row["end"] for row in found)
            total = sum(row["pictures"] / (row["end"] - row["begin"]) for row in found)
            rates[workers].append(total)
            threads[workers] = found[0]["threads"]
            print(
                f"turn {turn}/{args.repeats}, {workers} workers: {total:.0f} images/s in all "
                f"({end - begin:.1f} s together)",
                flush=True,
            )
    alone = rates[args.workers[0]]
    return [
        {
            "workers": workers,
            "threads": threads[workers],
            "images_per_second": statistics.median(mine),
            "repeats": mine,
            "share": statistics.median(a / b for a, b in zip(mine, alone, strict=True)),
        }
        for workers, mine in rates.items()
    ]


def table(rows):
    """Returns the rows as text for people."""
    lines = [["workers", "threads each", "images/s in all", "share of the first"]]
    for row in rows:
        rate, share = f"{row['images_per_second']:.0f}", f"{row['share']:.2f}"
        lines.append([str(row["workers"]), str(row["threads"]), rate, share])
    return aligned(lines)


if __name__ == "__main__":
    sys.exit(main())
