"""Resident memory over many epochs: does it grow, and does a cache keep to its budget?

Each tier runs in a process of its own, twice: with one endless iterator, as model.fit has it, and
with a new iterator of the same dataset in each epoch. After each epoch the process's resident
memory is taken. Records are local.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from experiments.commands import exit_code
from experiments.input import fresh_process, memory_report, memory_run, tiers
from experiments.outputs import check_matplotlib, check_writable
from experiments.rates import parse_bytes

_EPILOG = """\
tiers:
{tiers}
    The last two hold --budget bytes in memory.

verdict:
    A line is fitted to the resident memory after each epoch of the last half. Its rise is what it
    gains over that half, and its error is two standard errors of the slope.
    no growth     rise + error is less than 1 % of the resident memory
    GROWS         rise - error is more than nothing, and the rise is at least 1 %
    unclear       neither: the memory varies too much; take more epochs
    budget        with memory_half and memory_disk: the most resident memory may exceed that
                  without a cache by no more than the budget + 64 MiB

examples:
    python -m experiments.input.memory --data_dir=records --epochs=20 --json=memory.json
    python -m experiments.input.memory --data_dir=records --tiers=none,memory_half --budget=30mib
"""


def main(argv=None):
    """Runs the command; returns its exit code: 1 for an error, 3 if memory grows."""
    argv = sys.argv[1:] if argv is None else argv
    stopped = "stopped by Ctrl-C; the cache's folders are removed"
    return exit_code(lambda: _run(_arguments(argv)), stopped)


def _arguments(argv):
    parser = argparse.ArgumentParser(
        prog="python -m experiments.input.memory",
        description=__doc__,
        epilog=_EPILOG.format(tiers=tiers.help_text()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data_dir", required=True, metavar="DIR", help="records, made by tfscale.data.prepare")
    add("--split", default="train", help="default: train")
    add(
        "--tiers",
        default="none,memory_half,disk,memory_disk",
        help="see below (default: %(default)s)",
    )
    add("--iterators", default="one,new", help="one, new or both (default: %(default)s)")
    add("--epochs", type=int, default=20, help="at least 8 (default: 20)")
    add("--budget", metavar="BYTES", help="such as 50mib (default: half of the records)")
    add("--image_size", type=int, default=224, help="pixels (default: 224)")
    add("--batch", type=int, default=64, help="pictures in a batch (default: 64)")
    add("--cache_dir", metavar="DIR", help="where the disk tiers' folders are made, and removed")
    add("--json", metavar="F", help="write the rows there: one for each tier and kind of iterator")
    add("--plot", metavar="F", help="draw the resident memory there (needs matplotlib)")
    args = parser.parse_args(argv)
    args.tiers = tiers.parse(args.tiers, "tiers")
    args.iterators = args.iterators.split(",")
    for kind in args.iterators:
        if kind not in ("one", "new"):
            raise ValueError(f"--iterators: {kind!r} is neither 'one' nor 'new'")
    try:
        args.budget = None if args.budget is None else parse_bytes(args.budget)
    except ValueError as error:
        raise ValueError(f"--budget: {error}") from None
    for flag, least in (("epochs", 8), ("image_size", 8), ("batch", 1)):
        if getattr(args, flag) < least:
            raise ValueError(f"--{flag}={getattr(args, flag)}: wanted at least {least}")
    tiers.check(args)
    return args


def _run(args):
    if args.plot:
        check_matplotlib()
    check_writable(args, "json", "plot")
    folder = Path(tempfile.mkdtemp(prefix="tfscale-memory-", dir=args.cache_dir))
    rows = []
    try:
        for kind in args.iterators:
            for name in args.tiers:
                rows.append(_measure(args, name, kind, folder / f"{kind}-{name}"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    memory_report.judge(rows)
    if args.json:
        Path(args.json).parent.mkdir(parents=True, exist_ok=True)
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    print(memory_report.table(rows))
    if args.plot:
        memory_report.plot(args.plot, rows)
    return 3 if any(row["verdict"] == memory_report.GROWS for row in rows) else 0


def _measure(args, name, kind, folder):
    print(f"{name}, {kind} iterator(s): starts ...", flush=True)
    folder.mkdir()
    settings = {
        "tier": name,
        "iterators": kind,
        "data_dir": args.data_dir,
        "split": args.split,
        "epochs": args.epochs,
        "budget": args.budget,
        "image_size": args.image_size,
        "batch": args.batch,
        "folder": str(folder),
    }
    found = fresh_process.call(memory_run.measure, settings, f"the tier {name!r}")
    shutil.rmtree(folder)
    facts = {key: settings[key] for key in ("tier", "iterators", "image_size", "batch")}
    return {**facts, "cores": len(os.sched_getaffinity(0)), **found}


if __name__ == "__main__":
    fresh_process.end_on_sigterm()
    sys.exit(main())
