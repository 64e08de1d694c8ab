"""tf-models-official and tensorflow-addons at work with tfscale, and side by side with it.

    python -m experiments.official.run            # 9 arms x 3 seeds: about 15 minutes, 2 cores
    python -m experiments.official.run --quick    # does it run? digits, under 3 minutes
    python -m experiments.official.run --report   # tables and plot of what is there
    python -m launch.local --workers=2 -m experiments.official.run -- --quick \\
        --arms=their-model,their-loop --json=runs/official/workers.json

An arm takes its network, LARS, training loop, reader and strategy from tfscale or from
tf-models-official; see README.md. Resumable: what is in the results file is not run again.
"""

import dataclasses
import logging
import os
import sys
import time
from pathlib import Path

from experiments import paired
from experiments.commands import exit_code
from experiments.official import report
from experiments.official.arms import ARMS, BASELINE
from experiments.official.settings import parse, settings_of
from experiments.outputs import check_writable
from experiments.quickstart.datasets import ensure_records
from experiments.results_file import Results, above_0, from_0_to_1
from tfscale.cluster import ClusterConfig

FORM = {
    "arm": set(ARMS),
    "accuracy": from_0_to_1,
    "accuracies": [from_0_to_1],
    "steps_done": [int],
    "images_per_second": (above_0, None),
}


def main(argv=None):
    args = parse(argv, __doc__)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return exit_code(lambda: run(args), "stopped by Ctrl-C; the same command goes on from here")


def run(args):
    if args.report:
        return show(args, Results(args.json, form=FORM))
    cluster = ClusterConfig.from_env()
    settings = settings_of(
        args, cluster.num_workers, int(os.environ.get("TFSCALE_DEVICES_PER_WORKER", 0))
    )
    theirs = [arm for arm in args.arms if ARMS[arm].strategy != "tfscale"]
    if theirs and cluster.num_workers > 1:
        raise ValueError(
            f"--arms: {', '.join(theirs)} has TensorFlow's strategy, which with several workers a "
            "process can't make beside that of the other arms; leave it out"
        )
    results = Results(args.json, dataclasses.asdict(settings), FORM)
    if cluster.is_leader:
        check_writable(args, "json")
        ensure_records(settings.dataset, settings.records)
    run_all(args, settings, results, cluster)
    return show(args, results) if cluster.is_leader else 0


def run_all(args, settings, results, cluster):
    """Trains what is not there yet; worker 0 keeps the results."""
    todo = results.missing(args.arms, args.seeds)
    if not todo and cluster.num_workers == 1:
        paired.say_that_all_is_there()
        return
    from tfscale import distribute

    strategy = distribute.create_strategy(devices_per_worker=settings.devices_per_worker)
    # Worker 0's, for another's file may be an older copy: they would train different arms.
    todo = distribute.gather_values(strategy, "runs to be done", todo, timeout_seconds=600)[0]
    if todo:
        from experiments.official.training import train  # imports tf-models-official: 10 s
    progress = paired.Progress(len(todo))
    for seed, arm in todo:
        start = time.monotonic()
        row = train(ARMS[arm], seed, settings, strategy)
        seconds = round(time.monotonic() - start, 2)
        if cluster.is_leader:
            results.add({"arm": arm, "seed": seed, **row, "seconds": seconds})
            progress.done(
                f"seed {seed}  {arm:19s} accuracy {row['accuracy']:.4f}, "
                f"{row['images_per_second'] or 0:.0f} images/s"
            )
    distribute.gather_values(strategy, "finished", True, timeout_seconds=600)


def show(args, results):
    rows = results.rows
    if not rows:
        raise ValueError(f"{results.path} is not there; run without --report first")
    print(report.curve_table(rows))
    if any(row["arm"] == BASELINE for row in rows):
        print(f"\n{report.accuracy_table(rows)}")
        if any(row["arm"] == BASELINE and row["images_per_second"] for row in rows):
            print(f"\n{report.speed_table(rows)}")
    paired.say_if_quick(args)
    report.plot(rows, Path(results.path).with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
