"""How long do sync batch norm's small messages wait while gradients travel?

    sudo python -m experiments.allreduce.small_messages --workers=4 --rate=50mbit

Gradients and a chain of small messages, as those of sixteen layers of sync batch norm, leave at
the same moment, for several sizes of buckets. The messages have collectives of their own, but
TensorFlow sends all that one worker asks of another over one TCP connection (printed: how many
there were, one for each direction), so a message waits for the chunks that lie there already: at
most

    streams * bucket bytes / workers / rate        for each of its two hops

Groups of batch norm inside a worker send nothing over the network, and wait for nothing.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
from pathlib import Path

from experiments import outputs, tables
from experiments.allreduce import workers
from experiments.allreduce.lab import Lab
from experiments.allreduce.network_commands import LabError, run
from experiments.rates import format_bytes, parse_rate
from tfscale.processes import run_group

PLANS = ((0, 4), (64 << 10, 2), (256 << 10, 2), (1 << 20, 2), (1 << 20, 4), (4 << 20, 4))


def main(argv=None):
    args = _arguments(argv)
    try:
        outputs.check_writable(args, "json")
        rows, connections = _measure(args)
    except (LabError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"\n{args.workers} workers, {args.rate}; TCP connections between two: {connections}")
    print(table(rows))
    if args.json:
        facts = {"workers": args.workers, "rate": args.rate, "connections": connections}
        outputs.write_json(args.json, rows, **facts)
    return 0


def _arguments(argv):
    parser = argparse.ArgumentParser(
        prog="python -m experiments.allreduce.small_messages",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=int, default=2, help="hosts in the lab (default: 2)")
    parser.add_argument("--rate", default="50mbit", help="of each link (default: 50mbit)")
    parser.add_argument("--repeats", type=int, default=3, help="of each plan (default: 3)")
    parser.add_argument("--json", metavar="F", help="write the rows there")
    args = parser.parse_args(argv)
    try:
        bits = parse_rate(args.rate)
    except ValueError as error:
        parser.error(str(error))
    if (bits or 10**10) > 10**9 or args.workers < 2:
        parser.error("wants two workers or more and a rate of at most 1gbit: a link to queue at")
    if bits < 10**7:
        parser.error(
            f"--rate={args.rate}: wants at least 10mbit; each step sends 16 MiB of gradients, "
            "which takes longer than 20 seconds on slower links"
        )
    if args.repeats < 1:
        parser.error(f"--repeats={args.repeats} must be at least 1")
    return args


def _measure(args):
    bytes_per_second = parse_rate(args.rate) / 8
    # They travel for some two seconds.
    gradient_bytes = max(PLANS)[0] * max(4, round(bytes_per_second / max(PLANS)[0]))
    steps = len(PLANS) * (args.repeats + 1)
    with Lab(args.workers, args.rate) as lab, tempfile.TemporaryDirectory() as folder:
        settings = {
            "folder": folder,
            "repeats": args.repeats,
            "gradient_bytes": gradient_bytes,
            "plans": [{"bucket_bytes": b, "streams": s} for b, s in PLANS],
        }
        path = Path(folder) / "settings.json"
        path.write_text(json.dumps(settings))
        argv = [sys.executable, "-m", f"{__package__}.small_messages_worker", str(path)]
        with _Connections(lab) as connections:
            result = run_group(
                workers.commands(lab, argv, 1),
                # Twice what the gradients take at the link's rate, and the start.
                timeout_seconds=300 + 2 * steps * 2 * gradient_bytes / bytes_per_second,
            )
        if result.exit_code:
            raise LabError(result.describe())
        reports = [
            json.loads((Path(folder) / f"worker-{w}.json").read_text())["rows"]
            for w in range(args.workers)
        ]
    return rows_of(reports, args.repeats, args.workers, bytes_per_second), connections.most


class _Connections:
    """Counts the open connections between worker 0 and 1, while the body runs."""

    def __init__(self, lab):
        self.most = 0
        self._lab, self._ended = lab, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def _watch(self):
        while not self._ended.wait(1):
            files = ["/proc/net/tcp", "/proc/net/tcp6"]
            text = run(*self._lab.command(0, ["cat", *files]), check=False)
            self.most = max(self.most, established(text, self._lab.address(1)))


def established(text, peer):
    """How many lines of ``/proc/net/tcp`` and ``tcp6`` are open connections to an IPv4 address."""
    code = "".join(f"{int(part):02X}" for part in reversed(peer.split(".")))
    rows = [line.split() for line in text.splitlines()]
    return sum(f"{code}:" in row[2] and row[3] == "01" for row in rows if len(row) > 3)


def rows_of(reports, repeats, workers, bytes_per_second):
    """One row for each plan: the median seconds of a message, and of all gradients.

    A message is late by the slowest worker. Only messages that came before the last gradient
    count: those after it met nobody.
    """
    rows = []
    for first in range(0, len(reports[0]), repeats):
        seconds, gradients = [], []
        for repeat in range(first, first + repeats):
            each = [report[repeat] for report in reports]
            messages = [max(times) for times in zip(*(r["messages"] for r in each), strict=True)]
            end = max(one["gradients"] or float("inf") for one in each)
            during = [moment for moment in messages if moment <= end] or [messages[0]]
            seconds.append(during[-1] / len(during))
            gradients.append(end)
        plan = {key: reports[0][first][key] for key in ("bucket_bytes", "streams")}
        chunks = plan["streams"] * plan["bucket_bytes"] / workers
        rows.append(
            {
                **plan,
                "seconds_per_message": statistics.median(seconds),
                "seconds_of_gradients": statistics.median(gradients) if plan["bucket_bytes"] else 0,
                "bound_seconds": 2 * chunks / bytes_per_second,
            }
        )
    return rows


def table(rows):
    """The rows as text."""
    lines = [["gradients in buckets of", "streams", "ms a message", "bound, ms", "gradients, s"]]
    for row in rows:
        size = row["bucket_bytes"]
        lines.append(
            [
                format_bytes(size) if size else "none under way",
                str(row["streams"]) if size else "-",
                f"{1e3 * row['seconds_per_message']:.1f}",
                f"{1e3 * row['bound_seconds']:.0f}" if size else "-",
                f"{row['seconds_of_gradients']:.2f}" if size else "-",
            ]
        )
    return tables.aligned(lines)


if __name__ == "__main__":
    sys.exit(main())
