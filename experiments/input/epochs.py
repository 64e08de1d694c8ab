"""Times cold and warm epochs from a slow source with each cache tier, and after a restart.

The source is a folder of records behind a link of a given rate (see
experiments.input.slow_source). Each tier runs in a process of its own: one endless iterator of
tfscale.data.train_dataset, of which nothing is done with the batches. An epoch is as many batches
as hold every record once. What lies on disk is then taken up by a second process, whose first
epoch should be warm. The local rows read the same files without the link, from memory.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from experiments.commands import exit_code
from experiments.input import epochs_report, epochs_run, fresh_process, slow_source, tiers
from experiments.outputs import check_matplotlib, check_writable

_COLUMNS = """\
columns:
    open          seconds until the dataset is there; its graph is built
    epoch 1       seconds of the cold epoch, in which the cache fills
    epoch 2       seconds of the next one; x: how many times faster than epoch 1
    images/s      of the warm epochs (from the second on), their median; restart: of the first
                  epoch of the second process, after its first batch
    CPU           images per CPU second of a warm epoch: what remains true on a busy machine
    MB 1, MB 2    read from the source in these epochs, and in the second process (MB r)
    link          share of the link's rate that the cold epoch used

What was written to disk a minute ago comes from the machine's memory where that has room for it:
these are the times of the code, not of the disk.

examples:
    python -m experiments.input.epochs --data_dir=records --rate=5MB --json=epochs.json
    python -m experiments.input.epochs --data_dir=records --tiers=none,disk --local_tiers=
"""


def main(argv=None):
    """Runs the command; returns its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    stopped = "stopped by Ctrl-C; the cache's folders are removed"
    return exit_code(lambda: _run(_arguments(argv)), stopped)


def _arguments(argv):
    parser = argparse.ArgumentParser(
        prog="python -m experiments.input.epochs",
        description=__doc__,
        epilog=f"tiers:\n{tiers.help_text()}\n\n{_COLUMNS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data_dir", required=True, metavar="DIR", help="records, made by tfscale.data.prepare")
    add("--split", default="train", help="default: train")
    add("--rate", default="5MB", help="bytes per second of the source, or none (default: 5MB)")
    add("--latency", type=float, default=0.0, help="seconds of each request (default: 0)")
    add(
        "--tiers",
        default="none,memory,disk,decoded,decoded_disk,memory_half,memory_disk",
        help="from the slow source, see below (default: %(default)s)",
    )
    add(
        "--local_tiers",
        default="none,memory,decoded",
        help='without the link; "" for no such rows (default: %(default)s)',
    )
    add("--epochs", type=int, default=3, help="at least 2 (default: 3)")
    add("--local_epochs", type=int, default=6, help="of the local rows (default: 6)")
    add("--image_size", type=int, default=224, help="pixels (default: 224)")
    add("--batch", type=int, default=64, help="pictures in a batch (default: 64)")
    add("--cache_dir", metavar="DIR", help="where the disk tiers' folders are made, and removed")
    add("--json", metavar="F", help="write the rows there: one for each epoch")
    add("--plot", metavar="F", help="draw images/s there (needs matplotlib)")
    args = parser.parse_args(argv)
    args.tiers = tiers.parse(args.tiers, "tiers")
    args.local_tiers = tiers.parse(args.local_tiers, "local_tiers")
    args.bytes_per_second = slow_source.parse_rate(args.rate, "--rate")
    args.latency = slow_source.parse_latency(args.latency, "--latency")
    for flag, least in (("epochs", 2), ("local_epochs", 2), ("image_size", 8), ("batch", 1)):
        if getattr(args, flag) < least:
            raise ValueError(f"--{flag}={getattr(args, flag)}: wanted at least {least}")
    tiers.check(args)
    return args


def _run(args):
    if args.plot:
        check_matplotlib()
    check_writable(args, "json", "plot")
    folder = Path(tempfile.mkdtemp(prefix="tfscale-epochs-", dir=args.cache_dir))
    rows = []
    try:
        for source, names in (("slow", args.tiers), ("local", args.local_tiers)):
            for name in names:
                rows += _measure(args, source, name, folder / f"{source}-{name}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    facts = {
        "bytes_per_second": args.bytes_per_second,
        "latency": args.latency,
        "image_size": args.image_size,
        "batch": args.batch,
        "cores": len(os.sched_getaffinity(0)),
    }
    rows = [{**row, **facts} for row in rows]
    if args.json:
        Path(args.json).parent.mkdir(parents=True, exist_ok=True)
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    found = epochs_report.summaries(rows, args.bytes_per_second)
    print(epochs_report.table(found))
    for line in epochs_report.claims(found):
        print(line)
    if args.plot:
        epochs_report.plot(args.plot, found, _title(rows, args))
    return 0


def _measure(args, source, name, folder):
    """Returns the rows of one tier: of a process, and on disk of a second one after it."""
    folder.mkdir()
    settings = {
        "tier": name,
        "source": source,
        "data_dir": args.data_dir,
        "split": args.split,
        "rate": args.bytes_per_second,
        "latency": args.latency,
        "epochs": args.epochs if source == "slow" else args.local_epochs,
        "image_size": args.image_size,
        "batch": args.batch,
        "folder": str(folder),
    }
    rows = []
    for process in (1, 2) if name in tiers.ON_DISK else (1,):
        print(f"{source}, {name}: process {process} starts ...", flush=True)
        settings = {**settings, "process": process}
        if process > 1:
            settings["epochs"] = 1
        rows += fresh_process.call(epochs_run.measure, settings, f"the tier {name!r}")
    shutil.rmtree(folder)
    return rows


def _title(rows, args):
    source = "no limit" if args.bytes_per_second is None else f"{args.rate}/s"
    return (
        f"{rows[0]['records']} pictures, {rows[0]['record_bytes'] / 1e6:.0f} MB, from a source of "
        f"{source}; {args.image_size} pixels, {len(os.sched_getaffinity(0))} cores"
    )


if __name__ == "__main__":
    fresh_process.end_on_sigterm()
    sys.exit(main())
