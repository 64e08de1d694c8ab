"""Is the same accuracy there sooner when the pictures grow in the course of the training?

    python -m experiments.progressive.run --data_dir=imagenette2-160
    python -m experiments.progressive.run --quick    # does it run? digits, under 3 minutes
    python -m experiments.progressive.run --report   # tables and plot of what is there

Two arms: all epochs at the full size, and as many epochs in phases of growing size. Resumable:
what is in the results is not run again. Each run is a process of its own.
"""

import sys
from pathlib import Path

from experiments import commands, imagenette, paired, ratios
from experiments.outputs import check_writable
from experiments.progressive import flags, report, training
from experiments.results_file import Results

RESULTS = Path(__file__).resolve().parent / "results"
QUICK = {
    "dataset": "digits",
    "phases": "16:3,24:2,32:3",
    "batch": 32,
    "widths": "16,32",
    "stem": "small",
    "seeds": 2,
    "results": "runs/progressive",
}
ARMS = ("fixed", "progressive")
# What the question asks for: accuracy lost at most, and share of the time.
LOST, SHARE = 0.01, 0.6
SETTINGS = (
    "dataset", "phases", "batch", "stem", "widths", "learning_rate", "weight_decay",
    "min_crop_area",
)  # fmt: skip


def main(argv=None):
    args = parse(argv)
    return commands.exit_code(lambda: run(args), "stopped; started again, it goes on")


def run(args):
    results = Results(
        Path(args.results) / "runs.json",
        {name: getattr(args, name) for name in SETTINGS},
        report.FORM | {"arm": set(ARMS)},
    )
    if not args.report:
        check_writable(args, folders=("results",))
        run_all(args, results)
    if not results.rows:
        raise FileNotFoundError(f"{results.path} is not there; run without --report first")
    print(paired.table(paired.compare(results.rows, "fixed")))
    print()
    print(report.time_table(results.rows, "fixed"))
    print()
    print(verdict(results.rows))
    paired.say_if_quick(args)
    report.plot_curves(results.rows, results.path.with_name("accuracy.png"))
    return 0


def parse(argv):
    parser = flags.parser_of("progressive", __doc__, RESULTS)
    add = parser.add_argument
    add(
        "--phases",
        default="32:18,48:8,64:4",
        help="PIXELS:EPOCHS of each phase; the other arm has as many epochs at the last size "
        "(default: %(default)s)",
    )
    flags.add(parser, "seeds", "learning_rate", "weight_decay", "min_crop_area")
    args = paired.parse(parser, argv, QUICK)
    args.epochs, args.image_sizes = flags.phases(parser, "phases", args.phases)
    return args


def run_all(args, results):
    """Trains what is not there yet, arms in turn."""
    todo = results.missing(ARMS, args.seeds)
    if not todo:
        paired.say_that_all_is_there()
        return
    records = imagenette.records(args.dataset, args.data_dir, args.records) / imagenette.FULL
    progress = paired.Progress(len(todo))
    for seed, arm in todo:
        row = training.apart(run_of(args, arm, str(records.resolve()), seed))
        results.add({"arm": arm, "seed": seed, **row})
        progress.done(
            f"seed {seed}  {arm:11s}  accuracy {row['accuracy']:.4f}  "
            f"training {row['training_seconds']:.0f} s"
        )


def run_of(args, arm, records, seed):
    """Returns the `training.Run` of an arm: they differ in the sizes of the phases alone."""
    epochs, sizes = args.epochs, args.image_sizes
    if arm == "fixed":
        epochs, sizes = (sum(epochs),), (sizes[-1],)
    return training.Run(
        records,
        seed,
        epochs,
        sizes,
        args.image_sizes[-1],
        args.learning_rate,
        (args.min_crop_area,) * len(epochs),
        weight_decay=args.weight_decay,
        **flags.network(args),
    )


def verdict(rows):
    """The answer: is the accuracy kept, and how much of the time is needed?"""
    lost, low, high, n = paired.differences(rows, "progressive", "fixed")
    time, shortest, longest, _ = ratios.ratio(rows, "progressive", "fixed")
    asked = f"within {100 * LOST:g} point in at most {SHARE:g} of the time"
    is_kept, is_fast = lost >= -LOST, time <= SHARE
    answer = "yes" if is_kept and is_fast else "no"
    doubts = []
    if low is None:
        doubts.append("one seed says nothing of the noise")
    else:
        if (low >= -LOST) != (high >= -LOST):
            doubts.append("the interval of the accuracy holds the bound")
        if (longest <= SHARE) != (shortest <= SHARE):
            doubts.append("the interval of the time holds the bound")
    found = (
        f"{100 * lost:+.2f} points in {ratios.shown(time, shortest, longest)} of the time, "
        f"{n} seeds"
    )
    return "; ".join([f"{asked}: {answer}: {found}", *doubts])


if __name__ == "__main__":
    sys.exit(main())
