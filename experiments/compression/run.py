"""Does compression of gradients keep the accuracy? Several arms, the same seeds in each.

    python -m experiments.compression.run                     # all arms, 3 seeds, Fashion-MNIST
    python -m experiments.compression.run --quick             # does it run? digits, 2 minutes
    python -m experiments.compression.run --seeds=5 --epochs=10 --workers=4
    python -m experiments.compression.run --report            # table and plot of what is there

Resumable: what is in the results file is not run again. Each arm is compared with "dense" at the
same seeds; the interval is that of the mean difference (95 %, Student's t).
"""

import argparse
import sys
import time

from experiments import commands, fashion, launched, paired
from experiments.compression.arms import ARMS
from experiments.compression.settings import RESULTS, add_settings, flags_of, settings_of

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
    results = paired.Results(args.json, settings_of(args), required=("arm", "seed", "accuracy"))
    if not args.report:
        code = run_all(args, results)
        if code:
            return code
    if not results.rows:
        raise FileNotFoundError(f"{args.json} is not there; run without --report first")
    comparison = paired.compare(results.rows, "dense")
    print(paired.table(comparison))
    paired.plot_differences(
        comparison,
        args.plot or results.path.with_suffix(".png"),
        "accuracy, percentage points from dense (mean and 95 % interval)",
    )
    return 0


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="python -m experiments.compression.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--workers", type=int, default=2, help="processes (default: %(default)s)")
    add("--devices_per_worker", type=int, default=2, help="devices in each (default: %(default)s)")
    add("--json", default=str(RESULTS), help="results, read and added to (default: %(default)s)")
    add("--arms", default="", help="list with commas (default: all, see README.md)")
    add("--seeds", type=int, default=3, help="runs of each arm (default: %(default)s)")
    add_settings(parser)
    add("--plot", help="default: beside the results, as .png")
    args = paired.parse(parser, argv, QUICK)
    args.arms = args.arms.split(",") if args.arms else list(ARMS)
    if unknown := set(args.arms) - set(ARMS):
        parser.error(f"--arms: {sorted(unknown)} not among {', '.join(ARMS)}")
    return args


def run_all(args, results):
    """Trains what is not there yet; returns an exit code.

    Each run has processes of its own. In one process past models stay in memory, 90 MB each, until
    Python's collector comes across them; and where workers fail, only one run is lost.
    """
    todo = results.missing(args.arms, args.seeds)
    if todo:
        # Before any process is started: what is missing is said once, and downloaded once.
        fashion.load(args.dataset, args.data_dir, args.examples)
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
