"""Does the size of batch-norm groups matter when the batch of each replica is small?

    python -m experiments.batch_norm.run            # groups of 1, 2, 4, 8 replicas: 35 min
    python -m experiments.batch_norm.run --quick    # does it run? digits, under 3 minutes
    python -m experiments.batch_norm.run --report   # tables and plot of what is there

Accuracy: one device computes what the replicas would, group by group. Cost: the real layer, in
processes of its own (2 workers x 2 devices). Resumable: what is in the results is not run again.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from experiments import commands, fashion, flag_ranges, launched, paired
from experiments.batch_norm import report
from experiments.outputs import check_writable
from experiments.results_file import Results, above_0, check_arms, from_0_to_1

RESULTS = Path(__file__).resolve().parent / "results"
QUICK = {
    "dataset": "digits",
    "epochs": 6,
    "seeds": 2,
    "per_replica": "2",
    "rounds": 2,
    "cost_steps": 10,
    "results": "runs/batch_norm",
}
SETTINGS = ("dataset", "examples", "replicas", "epochs", "learning_rate")
COST_SETTINGS = ("dataset", "workers", "devices_per_worker", "cost_per_replica", "cost_steps")


def main(argv=None):
    args = parse(argv)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return commands.exit_code(lambda: run(args), "stopped; started again, it goes on")


def run(args):
    folder = Path(args.results)
    runs = Results(
        folder / "runs.json",
        {name: getattr(args, name) for name in SETTINGS},
        {"per_replica": int, "group": int, "accuracy": from_0_to_1},
    )
    check_arms(runs, lambda row: arm(row["per_replica"], row["group"]))
    cost = Results(
        folder / "cost.json",
        {name: getattr(args, name) for name in COST_SETTINGS},
        {"group": int, "milliseconds": above_0},
        key=("arm", "round"),
    )
    check_arms(cost, cost_arm)
    if not args.report:
        check_writable(args, folders=("results",))
        run_all(args, runs)
        if args.rounds and not cost.rows:
            code = measure_cost(args, cost)
            if code:
                return code
    if not runs.rows:
        raise FileNotFoundError(f"{runs.path} is not there; run without --report first")
    print(report.table(runs.rows))
    if cost.rows:
        print()
        print(report.cost_table(cost.rows))
    paired.say_if_quick(args)
    report.plot(runs.rows, folder / "accuracy.png")
    return 0


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="python -m experiments.batch_norm.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, count = parser.add_argument, flag_ranges.COUNT
    add("--replicas", type=count, default=8, help="(default: %(default)s)")
    add(
        "--per_replica",
        type=flag_ranges.listed(count),
        default="2,4",
        help="examples, list with commas (default: %(default)s)",
    )
    add(
        "--groups",
        type=flag_ranges.listed(count),
        help="sizes, list with commas (default: 1, 2, 4, ... all replicas)",
    )
    add("--seeds", type=count, default=5, help="runs of each size (default: %(default)s)")
    add("--epochs", type=count, default=2, help="of each run (default: %(default)s)")
    add(
        "--learning_rate",
        type=flag_ranges.POSITIVE,
        default=0.1,
        help="for 128 examples a step; it follows them, and falls to 0 by a cosine "
        "(default: %(default)s)",
    )
    fashion.add_flags(parser)
    cost = parser.add_argument_group("cost of a step, of the real layer")
    add = cost.add_argument
    add("--workers", type=count, default=2, help="processes (default: %(default)s)")
    add("--devices_per_worker", type=count, default=2, help="(default: %(default)s)")
    add("--cost_per_replica", type=count, default=4, help="examples (default: %(default)s)")
    add(
        "--rounds",
        type=flag_ranges.whole(0),
        default=10,
        help="turns, 0 for none (default: %(default)s)",
    )
    add(
        "--cost_steps",
        type=flag_ranges.whole(4),
        default=40,
        help="of a turn, of which the first 3 do not count (default: %(default)s)",
    )
    add = parser.add_argument
    add("--results", default=str(RESULTS), help="folder, read and added to (default: %(default)s)")
    args = paired.parse(parser, argv, QUICK)
    if args.groups is None:
        args.groups = [g for g in range(1, args.replicas + 1) if divides(g, args)]
    for group in args.groups:
        if not divides(group, args):
            parser.error(f"--groups: {group} does not divide --replicas={args.replicas}")
    return args


def divides(group, args):
    return args.replicas % group == 0


def run_all(args, runs):
    """Trains what is not there yet."""
    todo = [
        (seed, per_replica, group)
        for seed in range(args.seeds)
        for per_replica in args.per_replica
        for group in args.groups
        if not runs.has(arm=arm(per_replica, group), seed=seed)
    ]
    if not todo:
        paired.say_that_all_is_there()
        return
    from experiments.batch_norm.training import load, train

    data = load(args.dataset, args.data_dir, args.examples)
    check_batch(args, len(data[0][0]))
    progress = paired.Progress(len(todo))
    for seed, per_replica, group in todo:
        start = time.monotonic()
        row = train(per_replica, group, seed, data, args)
        name = arm(per_replica, group)
        runs.add(
            {
                "arm": name,
                "per_replica": per_replica,
                "group": group,
                "seed": seed,
                **row,
                "seconds": round(time.monotonic() - start, 2),
            }
        )
        progress.done(f"seed {seed}  {name:24s} accuracy {row['accuracy']:.4f}")


def check_batch(args, pictures):
    """Raises ValueError if a step of all replicas needs more pictures than there are."""
    if max(args.per_replica) * args.replicas > pictures:
        raise ValueError(
            f"--per_replica={max(args.per_replica)} --replicas={args.replicas}: a step needs more "
            f"than the {pictures} training pictures"
        )


def arm(per_replica, group):
    """The name of an arm, such as ``2 a replica, groups of 4``."""
    return f"{per_replica} a replica, groups of {group}"


def measure_cost(args, cost):
    """Measures the steps of the real layer; returns the launcher's exit code."""
    replicas = args.workers * args.devices_per_worker
    groups = [
        g
        for g in range(1, replicas + 1)
        if replicas % g == 0
        and (args.devices_per_worker % g == 0 or g % args.devices_per_worker == 0)
    ]
    print(
        f"cost of a step: groups {groups} of {replicas} replicas, {args.rounds} rounds", flush=True
    )
    flags = {
        "groups": ",".join(map(str, groups)),
        "per_replica": args.cost_per_replica,
        "rounds": args.rounds,
        "steps": args.cost_steps,
        "dataset": args.dataset,
        "data_dir": args.data_dir,
    }
    code, rows = launched.call(
        "experiments.batch_norm.cost",
        args.workers,
        args.devices_per_worker,
        [f"--{name}={value}" for name, value in flags.items() if value is not None],
    )
    for row in rows or ():
        cost.add({"arm": cost_arm(row), **row})
    return code


def cost_arm(row):
    return f"groups of {row['group']}"


if __name__ == "__main__":
    sys.exit(main())
