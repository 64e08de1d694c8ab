"""Times all-reduces, or whole training steps, by several methods on links of a given rate.

Sets up the network lab (see `experiments.allreduce.lab`), checks its links by iperf3, starts a
worker program on every host, and measures all methods in one run, in the same processes and in
turns: stock, 2d, ..., stock, 2d, ... Needs root, and Linux with ip, tc and iperf3.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from pathlib import Path

from experiments import outputs
from experiments.allreduce import methods as methods_lib
from experiments.allreduce import peers, results, shapes, workers
from experiments.allreduce.lab import CONGESTION, Lab
from experiments.commands import exit_code
from experiments.rates import format_rate, parse_rate
from tfscale.processes import run_group

_EPILOG = f"""\
methods:
{methods_lib.__doc__.split("written.", 1)[1].strip(chr(10))}

columns:
    seconds       one all-reduce of the slowest worker: median, min and max of the repeats
    x stock       how many times faster than stock's default; x best stock: than its best row
    MB per link   what the interface of one worker sent, headers included
    link share    payload that the method has to send, over the rate that iperf3 got through the
                  link, over the time: 100 % means that no exchange of these bytes can be faster
    CPU s         of one worker, user and system

examples:
    sudo python -m experiments.allreduce.benchmark --rate=200mbit --methods=stock,2d,2d+bfloat16
    sudo python -m experiments.allreduce.benchmark --rate=none --devices_per_worker=1 \\
        --methods=stock,2d,gloo,horovod
    sudo python -m experiments.allreduce.benchmark --mode=train --timeline=overlap.png \\
        --methods=stock,2d,2d+bfloat16
    sudo python -m experiments.allreduce.benchmark --workers=2 --parameters=small --repeats=2
"""


def main(argv=None):
    """Runs the command; returns its exit code."""
    args = _arguments(sys.argv[1:] if argv is None else argv)

    def run():
        if args.plot or args.timeline:
            outputs.check_matplotlib()
        outputs.check_writable(args, "json", "plot", "timeline", folders=("logs",))
        return _run(args)

    return exit_code(run, "stopped by Ctrl-C; the lab is taken down")


def _arguments(argv):
    parser = argparse.ArgumentParser(
        prog="python -m experiments.allreduce.benchmark",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--workers", type=_positive, default=4, help="hosts in the lab (default: 4)")
    add("--devices_per_worker", type=_positive, default=2, help="replicas of each (default: 2)")
    add("--rate", default="200mbit", help="of each link; none: no limit (default: 200mbit)")
    add(
        "--congestion",
        default=CONGESTION,
        help="TCP's congestion control (default: %(default)s); none: the machine's own",
    )
    add(
        "--methods",
        default="stock,2d,2d+bfloat16,2d+int8,2d+topk",
        help="list with commas, see below (default: %(default)s)",
    )
    add("--repeats", type=_positive, default=5, help="of each method (default: 5)")
    add(
        "--parameters",
        choices=sorted(shapes.SETS),
        default="resnet50",
        help="25.6 M in 161 tensors (default), the same in one tensor, or 0.3 M for a quick look",
    )
    add("--json", metavar="F", help="write the rows there")
    add("--plot", metavar="F", help="draw the times there (needs matplotlib)")
    add("--logs", metavar="DIR", help="keep every worker's output there")
    add("--timeout", type=float, help="seconds for all of it (default: by rate and repeats)")
    add("--mode", choices=("allreduce", "train"), default="allreduce", help="default: allreduce")
    train = parser.add_argument_group("--mode=train: Keras's fit, in place of a bare all-reduce")
    train.add_argument(
        "--compute_seconds",
        default="auto",
        help="computation of one step without the exchange; auto (default): half of the time of "
        "stock's all-reduce, which is measured first",
    )
    train.add_argument(
        "--compute",
        choices=("sleep", "cpu"),
        default="sleep",
        help="sleep (default): layers wait without using the CPU, as for an accelerator; cpu: "
        "they compute for that long",
    )
    train.add_argument(
        "--forward_share",
        type=float,
        default=0.0,
        help="part of the computation in the forward pass, which no exchange can overlap "
        "(default: 0; about 0.33 in real networks)",
    )
    train.add_argument("--steps", type=_positive, default=3, help="of each repeat (default: 3)")
    train.add_argument("--timeline", metavar="F", help="draw when which bucket travelled")
    args = parser.parse_args(argv)
    try:
        parse_rate(args.rate)
        args.parsed = methods_lib.parse_methods(args.methods)
        if args.compute_seconds != "auto":
            args.compute_seconds = float(args.compute_seconds)
            if not args.compute_seconds > 0:
                raise ValueError("--compute_seconds must be above 0")
        if not 0 <= args.forward_share < 1:
            raise ValueError("--forward_share must be at least 0 and below 1")
        _check_fit(args)
    except ValueError as error:
        parser.error(str(error))
    return args


def _check_fit(args):
    """Raises ValueError for what would be noticed in the workers only, after minutes."""
    for method in args.parsed:
        if method.grid and method.grid[0] * method.grid[1] != args.workers:
            raise ValueError(f"{method.name!r}: the grid does not have {args.workers} cells")
        if method.family == "peer" and args.mode == "train":
            raise ValueError(f"{method.name!r} takes part in --mode=allreduce only")
    if args.timeline and args.mode != "train":
        raise ValueError("--timeline needs --mode=train: without a model nothing is overlapped")
    if args.timeline and not any(method.family == "2d" for method in args.parsed):
        raise ValueError("--timeline shows a 2d method, and none is named")


def _run(args):
    tensors = shapes.SETS[args.parameters]()
    print(
        f"{shapes.elements(tensors) / 1e6:.2f} M parameters in {len(tensors)} tensors, "
        f"{args.workers} workers x {args.devices_per_worker} devices",
        flush=True,
    )
    with Lab(args.workers, args.rate, congestion=args.congestion) as lab:
        check = lab.verify()
        print(f"lab {lab.number}: {check.describe()}", flush=True)
        rows, code = [], 0
        if any(method.family != "peer" for method in args.parsed) or args.mode == "train":
            rows, code = _run_workers(args, lab, tensors)
        if code:
            return code
        for method in args.parsed:
            if method.family == "peer":
                print(f"{method.name} ...", flush=True)
                try:
                    row = peers.run(method.name, lab, args.workers, args.repeats, tensors)
                except peers.PeerFailed as error:
                    # The others' rows, of minutes or hours, are shown and written all the same.
                    print(f"error: {error}", file=sys.stderr)
                    row, code = None, 1
                rows += [row] if row else []
        if not rows:
            return code
    title = (
        f"{args.mode}: {args.workers} workers x {args.devices_per_worker} devices, "
        f"{format_rate(parse_rate(args.rate))}, {shapes.elements(tensors) / 1e6:.1f} M parameters"
    )
    print(f"\n{title}\n{results.table(rows)}", flush=True)
    if args.devices_per_worker > 1 and any(row["method"] in peers.METHODS for row in rows):
        print("peers have one device a worker", flush=True)
    if args.json:
        outputs.write_json(
            args.json,
            rows,
            mode=args.mode,
            workers=args.workers,
            devices_per_worker=args.devices_per_worker,
            rate=args.rate,
            congestion=args.congestion,
            link_bits_per_second=check.bits_per_second,
            cores=len(os.sched_getaffinity(0)),
            parameters=args.parameters,
            repeats=args.repeats,
        )
    if args.plot:
        results.plot(args.plot, rows, title)
    return code


def _run_workers(args, lab, tensors):
    """Runs the worker programs; returns ``(rows, exit code)``."""
    with tempfile.TemporaryDirectory(prefix="tfscale-allreduce-") as folder:
        settings = {
            "folder": folder,
            "mode": args.mode,
            "workers": args.workers,
            "devices_per_worker": args.devices_per_worker,
            "methods": [m.name for m in args.parsed if m.family != "peer"],
            "repeats": args.repeats,
            "shapes": tensors,
            "compute_seconds": args.compute_seconds,
            "compute": args.compute,
            "forward_share": args.forward_share,
            "steps": args.steps,
            "timeline": bool(args.timeline),
        }
        path = Path(folder) / "settings.json"
        path.write_text(json.dumps(settings))
        result = run_group(
            workers.commands(
                lab,
                [sys.executable, "-m", "experiments.allreduce.worker", str(path)],
                args.devices_per_worker,
                # A sleeping op holds a thread, which an accelerator would not.
                busy_threads=args.devices_per_worker if args.mode == "train" else 0,
                log_dir=args.logs,
            ),
            write=_show,
            timeout_seconds=args.timeout or _time_limit(args, settings),
        )
        if result.exit_code:
            print(f"error: {result.describe()}", file=sys.stderr)
            return [], result.exit_code
        reports = [
            json.loads((Path(folder) / f"worker-{worker}.json").read_text())
            for worker in range(args.workers)
        ]
    if args.timeline:
        from experiments.allreduce import timeline

        timeline.plot(args.timeline, [report["timeline"] for report in reports])
        print(f"timeline written to {args.timeline}", flush=True)
    return results.rows_of(reports, lab.payload_bytes_per_second), 0


def _show(text):
    """Shows what worker 0 says, without TensorFlow's remarks from before its log is set up."""
    if not re.match(r"WARNING: All log messages before absl|[IW]\d{4} \d\d:|I0000 ", text):
        print(text, end="", flush=True)


def _time_limit(args, settings):
    """Seconds in which even a slow machine should be through: something hangs after that."""
    bits = parse_rate(args.rate) or 10**9
    elements = shapes.elements(settings["shapes"])
    one = 20 + 3 * 64 * elements / bits + elements * args.workers * args.devices_per_worker / 1e7
    steps = args.repeats * (args.steps + 1 if args.mode == "train" else 1) + 4
    tries = sum(2 * len(methods_lib.PACKS) for m in args.parsed if m.pack == "best")
    return 300 + one * ((len(settings["methods"]) + 1) * steps + tries)


def _positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


if __name__ == "__main__":
    sys.exit(main())
