"""Does bfloat16 keep the accuracy, and what does it save here?

    python -m experiments.precision.run --data_dir=imagenette2-160
    python -m experiments.precision.run --quick    # does it run? digits, under 3 minutes
    python -m experiments.precision.run --report   # table and plot of what is there

Two arms, the same but for the precision that activations and gradients are computed in: float32,
and mixed_bfloat16, whose weights and statistics are float32 too. Resumable: what is in the results
is not run again. Each run is a process of its own.
"""

import statistics
import sys
from pathlib import Path

from experiments import commands, imagenette, paired, ratios
from experiments.outputs import check_writable
from experiments.progressive import flags, training
from experiments.results_file import Results, above_0, from_0_to_1
from experiments.tables import aligned

RESULTS = Path(__file__).resolve().parent / "results"
QUICK = {
    "dataset": "digits",
    "image_size": 16,
    "epochs": 5,
    "batch": 32,
    "widths": "16,32",
    "stem": "small",
    "seeds": 2,
    "results": "runs/precision",
}
ARMS = ("float32", "mixed_bfloat16")
SETTINGS = (
    "dataset", "image_size", "epochs", "batch", "stem", "widths", "learning_rate", "weight_decay",
)  # fmt: skip


def main(argv=None):
    args = parse(argv)
    return commands.exit_code(lambda: run(args), "stopped; started again, it goes on")


def run(args):
    results = Results(
        Path(args.results) / "runs.json",
        {name: getattr(args, name) for name in SETTINGS},
        {
            "arm": set(ARMS),
            "accuracy": from_0_to_1,
            "images_per_second": [above_0],
            "memory_mb": above_0,
        },
    )
    if not args.report:
        check_writable(args, folders=("results",))
        run_all(args, results)
    if not results.rows:
        raise FileNotFoundError(f"{results.path} is not there; run without --report first")
    comparison = paired.compare(results.rows, "float32")
    print(paired.table(comparison))
    print()
    print(cost_table(results.rows))
    print()
    print(verdict(results.rows))
    paired.say_if_quick(args)
    paired.plot_differences(
        [row for row in comparison if row["arm"] != "float32"],
        results.path.with_name("accuracy.png"),
        "accuracy, percentage points from float32 (mean and 95 % interval)",
    )
    return 0


def parse(argv):
    parser = flags.parser_of("precision", __doc__, RESULTS)
    flags.add(parser, "image_size", "epochs", "seeds", "learning_rate", "weight_decay")
    return paired.parse(parser, argv, QUICK)


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
            f"seed {seed}  {arm:14s}  accuracy {row['accuracy']:.4f}  "
            f"{row['images_per_second'][0]:.0f} images/s"
        )


def run_of(args, arm, records, seed):
    """Returns the `training.Run` of an arm."""
    return training.Run(
        records,
        seed,
        (args.epochs,),
        (args.image_size,),
        args.image_size,
        args.learning_rate,
        (0.35,),
        weight_decay=args.weight_decay,
        precision=arm,
        evaluate_every=args.epochs,  # before it, memory is that of training alone
        **flags.network(args),
    )


def cost_table(rows):
    """Returns speed and memory as text: medians and means, and ratios to float32."""
    flat = [{**row, "speed": row["images_per_second"][0]} for row in rows]
    lines = [["arm", "images/s", "ratio, 95 % interval", "memory", "ratio, 95 % interval"]]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in flat if row["arm"] == arm]
        cells = [arm, f"{statistics.median(row['speed'] for row in own):.0f}"]
        cells += [ratios.cell(flat, arm, "float32", "speed")]
        cells += [f"{statistics.fmean(row['memory_mb'] for row in own):.0f} MB"]
        cells += [ratios.cell(flat, arm, "float32", "memory_mb")]
        lines.append(cells)
    return aligned(lines)


def verdict(rows):
    """The answer: does the interval of the difference hold 0?"""
    mean, low, high, n = paired.differences(rows, "mixed_bfloat16", "float32")
    found = f"mixed_bfloat16 {100 * mean:+.2f} points from float32"
    if low is None:
        return f"{found}; one seed says nothing of the noise"
    if low <= 0 <= high:
        return f"{found}: within the noise of {n} seeds ({100 * (high - low) / 2:.2f} either way)"
    return f"{found}: beyond the noise of {n} seeds ({100 * low:+.2f} to {100 * high:+.2f})"


if __name__ == "__main__":
    sys.exit(main())
