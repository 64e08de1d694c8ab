"""Does LARS hold accuracy as the batch grows, where SGD with momentum does not?

    python -m experiments.large_batch.run            # search, then 3 seeds: 2 hours, 2 cores
    python -m experiments.large_batch.run --quick    # does it run? digits, under 3 minutes
    python -m experiments.large_batch.run --report   # tables and plot of what is there

Both optimizers have the same schedule, the same range of learning rates and as many trials of the
search, at the same two batches; between them the rate is interpolated. Resumable: what is in the
results (search.json, runs.json) is not run again.
"""

import dataclasses
import os
import sys
import time
from pathlib import Path

from experiments import commands, paired
from experiments.large_batch import report, search
from experiments.large_batch.settings import OPTIMIZERS, arm, parse
from experiments.outputs import check_writable
from experiments.results_file import Results, above_0, check_arms, check_rate, from_0_to_1

# Of the search; the final runs have 0, 1, ...
SEARCH_SEED = 1000


def main(argv=None):
    settings, args = parse(argv, __doc__)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return commands.exit_code(lambda: run(settings, args), "stopped; started again, it goes on")


def run(settings, args):
    folder, shared = Path(args.results), dataclasses.asdict(settings)
    scored = {"learning_rate": above_0, "accuracy": from_0_to_1, "training_accuracy": from_0_to_1}
    trials = Results(folder / "search.json", shared, scored, key=("arm", "trial"))
    of_runs = {"optimizer": set(OPTIMIZERS), "batch": int, "steps": int}
    runs = Results(folder / "runs.json", shared, scored | of_runs)
    check_arms(runs, lambda row: arm(row["optimizer"], row["batch"]))
    if not args.report:
        check_writable(args, folders=("results",))
        run_all(settings, args, trials, runs)
    if not runs.rows:
        raise FileNotFoundError(f"{runs.path} is not there; run without --report first")
    print(report.search_table(trials.rows))
    print()
    print(report.table(runs.rows))
    print()
    print(report.verdict(runs.rows))
    paired.say_if_quick(args)
    report.plot(runs.rows, folder / "accuracy.png")
    return 0


def run_all(settings, args, trials, runs):
    """Searches and trains what is not there yet."""
    wanted = [
        (optimizer, batch, seed)
        for seed in range(args.seeds)
        for batch in args.batches
        for optimizer in OPTIMIZERS
        if not runs.has(arm=arm(optimizer, batch), seed=seed)
    ]
    missing = {
        (optimizer, batch): settings.trials
        - len(search.tried_of(trials.rows, arm(optimizer, batch)))
        for batch in settings.tuned_batches
        for optimizer in OPTIMIZERS
    }
    if not wanted and not any(missing.values()):
        paired.say_that_all_is_there()
        return
    from experiments.large_batch.training import check_batches, splits, train

    for_search, final = splits(settings, args.data_dir)
    check_batches(settings, args.batches, len(final.images))
    progress = paired.Progress(sum(missing.values()) + len(wanted))

    def timed(optimizer, rate, batch, seed, split):
        start = time.monotonic()
        row = train(optimizer, rate, batch, seed, split, settings)
        return row | {"learning_rate": rate, "seconds": round(time.monotonic() - start, 2)}

    for (optimizer, batch), count in missing.items():
        name = arm(optimizer, batch)
        for _ in range(count):
            tried = search.tried_of(trials.rows, name)
            row = timed(
                optimizer, search.next_rate(tried, settings), batch, SEARCH_SEED, for_search
            )
            trials.add({"arm": name, "trial": len(tried), **row})
            progress.done(f"search {name:10s} trial {len(tried)}  {_outcome(row)}")
    rates = tuned_rates(settings, trials.rows)
    for optimizer, batch, seed in wanted:
        name, rate = arm(optimizer, batch), search.interpolated(rates[optimizer], batch)
        check_rate(runs, name, rate)
        row = timed(optimizer, rate, batch, seed, final)
        runs.add({"arm": name, "optimizer": optimizer, "batch": batch, "seed": seed, **row})
        progress.done(f"seed {seed}  {name:10s}  {_outcome(row)}")


def tuned_rates(settings, rows):
    """Returns ``{optimizer: {tuned batch: best learning rate}}``."""
    return {
        optimizer: {
            batch: search.best(search.tried_of(rows, arm(optimizer, batch)))
            for batch in settings.tuned_batches
        }
        for optimizer in OPTIMIZERS
    }


def _outcome(row):
    tail = "  DIVERGED" if row["diverged"] else ""
    return f"rate {row['learning_rate']:<8.3g} accuracy {row['accuracy']:.4f}{tail}"


if __name__ == "__main__":
    sys.exit(main())
