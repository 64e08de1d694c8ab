"""Does compression of gradients keep the accuracy? Several arms, the same seeds in each.

    python -m experiments.compression.run                     # all arms, 3 seeds, Fashion-MNIST
    python -m experiments.compression.run --quick             # does it run? digits, under 3 minutes
    python -m experiments.compression.run --workers=4 --json=runs/four.json
    python -m experiments.compression.run --report            # table and plot of what is there

Resumable: what is in the results file is not run again. Each arm is compared with "dense" at the
same seeds; the interval is that of the mean difference (95 %, Student's t).
"""

import argparse
import sys
import time

from experiments import commands, fashion, flag_ranges, launched, paired
from experiments.compression.arms import ARMS
from experiments.compression.settings import RESULTS, add_settings, flags_of, settings_of
from experiments.outputs import check_writable
from experiments.results_file import Results, from_0_to_1

BASELINE = "dense"
QUICK = {
    "dataset": "digits",
    "epochs": 4,
    "batch": 64,
    "seeds": 2,
    "arms": "dense,int8,topk,topk-no-feedback",
    "json": "runs/compression/quick.json",
}


def main(argv=None):
    args = parse(argv)
    return commands.exit_code(lambda: run(args), "stopped; started again, it goes on")


def run(args):
    results = Results(args.json, settings_of(args), {"arm": set(ARMS), "accuracy": from_0_to_1})
    if not args.report:
        check_writable(args, "json", "plot")
        code = run_all(args, results)
        if code:
            return code
    if not results.rows:
        raise FileNotFoundError(f"{args.json} is not there; run without --report first")
    comparison = paired.compare(results.rows, BASELINE)
    print(paired.table(comparison))
    paired.say_if_quick(args)
    paired.plot_differences(
        comparison,
        args.plot or results.path.with_suffix(".png"),
        f"accuracy, percentage points from {BASELINE} (mean and 95 % interval)",
    )
    return 0


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="python -m experiments.compression.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, count = parser.add_argument, flag_ranges.COUNT
    # One worker is no job of several, which their strategy is for.
    add("--workers", type=flag_ranges.whole(2), default=2, help="processes (default: %(default)s)")
    add(
        "--devices_per_worker", type=count, default=2, help="devices in each (default: %(default)s)"
    )
    add("--json", default=str(RESULTS), help="results, read and added to (default: %(default)s)")
    add(
        "--arms",
        type=flag_ranges.names(ARMS),
        default=tuple(ARMS),
        help="list with commas (default: all, see README.md)",
    )
    add("--seeds", type=count, default=3, help="runs of each arm (default: %(default)s)")
    add_settings(parser)
    add("--plot", help="default: beside the results, as .png")
    args = paired.parse(parser, argv, QUICK)
    replicas = args.workers * args.devices_per_worker
    if args.batch % replicas:
        parser.error(f"--batch={args.batch} does not divide among {replicas} devices")
    return args


def run_all(args, results):
    """Trains what is not there yet; returns an exit code.

    Each run has processes of its own. In one process past models stay in memory, 90 MB each, until
    Python's collector comes across them; and where workers fail, only one run is lost.
    """
    if BASELINE not in args.arms and not results.has(arm=BASELINE):
        raise ValueError(
            f"--arms={','.join(args.arms)}: the arms are compared with {BASELINE}; name it too"
        )
    todo = results.missing(args.arms, args.seeds)
    if not todo:
        paired.say_that_all_is_there()
        return 0
    # Before any process is started: what is missing is said once, and downloaded once.
    (images, _), _ = fashion.load(args.dataset, args.data_dir, args.examples)
    if args.batch > len(images):
        raise ValueError(f"--batch={args.batch} exceeds the {len(images)} training pictures")
    progress = paired.Progress(len(todo))
    for seed, arm in todo:
        start = time.monotonic()
        code, row = run_one(args, arm, seed)
        if code:
            return code
        seconds = round(time.monotonic() - start, 2)
        results.add({"arm": arm, "seed": seed, **row, "seconds": seconds})
        progress.done(f"seed {seed}  {arm:22s} accuracy {row['accuracy']:.4f}")
    return 0


def run_one(args, arm, seed):
    """Trains one arm from one seed; returns the launcher's exit code, and the worker's results."""
    return launched.call(
        "experiments.compression.training",
        args.workers,
        args.devices_per_worker,
        [f"--arm={arm}", f"--seed={seed}", *flags_of(args)],
    )


if __name__ == "__main__":
    sys.exit(main())
