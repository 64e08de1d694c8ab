"""Does the whole recipe reach the accuracy of a plain one sooner?

    python -m experiments.recipe.run --data_dir=imagenette2-160
    python -m experiments.recipe.run --quick    # does it run? digits, under 3 minutes
    python -m experiments.recipe.run --report   # tables and plot of what is there

First a search for the learning rate, the same list for both; then runs with other seeds, evaluated
after each epoch. Resumable: what is in the results is not run again. Each run is a process of its
own.
"""

import sys
from pathlib import Path

from experiments import commands, flag_ranges, imagenette, paired
from experiments.outputs import check_writable
from experiments.progressive import flags, training
from experiments.progressive.report import FORM, plot_curves, time_table
from experiments.recipe import report
from experiments.recipe.arms import ARMS, run_of
from experiments.results_file import Results, above_0, check_rate, from_0_to_1

RESULTS = Path(__file__).resolve().parent / "results"
QUICK = {
    "dataset": "digits",
    "phases": "16:2,32:2",
    "plain_epochs": 5,
    "batch": 32,
    "widths": "16,32",
    "stem": "small",
    "rates": "0.1",
    "seeds": 2,
    "results": "runs/recipe",
}
SETTINGS = (
    "dataset", "phases", "plain_epochs", "batch", "stem", "widths", "weight_decay",
    "min_crop_area", "ema", "blur_pool",
)  # fmt: skip
# Of the search; the final runs have 0, 1, ...
SEARCH_SEED = 1000


def main(argv=None):
    args = parse(argv)
    return commands.exit_code(lambda: run(args), "stopped; started again, it goes on")


def run(args):
    folder, shared = Path(args.results), {name: getattr(args, name) for name in SETTINGS}
    scored = {"arm": set(ARMS), "learning_rate": above_0, "accuracy": from_0_to_1}
    trials = Results(folder / "search.json", shared, scored, key=("arm", "learning_rate"))
    runs = Results(folder / "runs.json", shared, FORM | scored)
    if not args.report:
        check_writable(args, folders=("results",))
        run_all(args, trials, runs)
    if {row["arm"] for row in runs.rows} != set(ARMS):
        raise FileNotFoundError(
            f"{runs.path} does not have runs of both arms; run without --report first"
        )
    print(report.search_table(trials.rows))
    print()
    print(paired.table(paired.compare(runs.rows, "plain")))
    print()
    print(time_table(runs.rows, "plain"))
    print()
    print(report.table(runs.rows))
    print()
    print(report.verdict(runs.rows))
    paired.say_if_quick(args)
    plot_curves(runs.rows, folder / "accuracy.png")
    return 0


def parse(argv):
    parser = flags.parser_of("recipe", __doc__, RESULTS)
    add = parser.add_argument
    add(
        "--phases",
        default="32:7,48:4,64:2",
        help="PIXELS:EPOCHS of each phase of the recipe; the plain one has the last size "
        "(default: %(default)s)",
    )
    add("--plain_epochs", type=flag_ranges.COUNT, default=20, help="(default: %(default)s)")
    add(
        "--rates",
        type=flag_ranges.listed(flag_ranges.POSITIVE),
        default="0.05,0.1,0.2,0.4",
        help="learning rates that the search tries in each arm, list with commas; one leaves "
        "nothing to search (default: %(default)s)",
    )
    flags.add(parser, "seeds", "weight_decay", "min_crop_area")
    add(
        "--ema",
        type=flag_ranges.BELOW_1,
        default=0.98,
        help="momentum of the recipe's average of the weights (default: %(default)s)",
    )
    add("--blur_pool", action="store_true", help="blur what is strided, in the recipe")
    args = paired.parse(parser, argv, QUICK)
    args.epochs, args.image_sizes = flags.phases(parser, "phases", args.phases)
    return args


def run_all(args, trials, runs):
    """Searches and trains what is not there yet, arms in turn."""
    tried = [
        (arm, rate)
        for rate in args.rates
        for arm in ARMS
        if not trials.has(arm=arm, learning_rate=rate)
    ]
    wanted = runs.missing(ARMS, args.seeds)
    if not tried and not wanted:
        paired.say_that_all_is_there()
        return
    records = imagenette.records(args.dataset, args.data_dir, args.records).resolve()
    progress = paired.Progress(len(tried) + len(wanted))
    for arm, rate in tried:
        trial = run_of(args, arm, str(records / imagenette.SEARCH), rate, SEARCH_SEED)
        row = training.apart(trial, may_diverge=True)
        trials.add({"arm": arm, "learning_rate": rate, "seed": SEARCH_SEED, **row})
        progress.done(f"search  {arm:6s}  rate {rate:<6g}  accuracy {row['accuracy']:.4f}")
    for seed, arm in wanted:
        rate = report.best(trials.rows, arm)
        check_rate(runs, arm, rate)
        row = training.apart(run_of(args, arm, str(records / imagenette.FULL), rate, seed))
        runs.add({"arm": arm, "seed": seed, "learning_rate": rate, **row})
        progress.done(
            f"seed {seed}  {arm:6s}  accuracy {row['accuracy']:.4f}  "
            f"training {row['training_seconds']:.0f} s"
        )


if __name__ == "__main__":
    sys.exit(main())
