"""What will I get? Predicts step times and advises method, fusion and compression.

From the number of workers, their links and the time that one replica computes for a step, it
predicts how long the exchange of gradients takes by several methods, how much of it the backward
pass hides, and what that leaves of perfect scaling.
"""

import argparse
import dataclasses
import json
import math
import re
import sys
from pathlib import Path

from experiments.outputs import check_matplotlib, check_writable
from experiments.rates import format_rate, parse_rate
from experiments.simulate import advice, curves, light, plots, scaling, selection
from experiments.simulate.calibration_files import read_costs, write_calibration
from experiments.simulate.networks import NETWORKS, network
from experiments.simulate.validation import validate
from tfscale.distribute.cost_model import Cluster, Costs
from tfscale.distribute.cost_model.costs import ACCELERATOR

_EPILOG = """\
columns:
    exchange      all gradients, by themselves
    exposed       what is left of it after the backward pass has ended
    step          --step_time plus that
    scaling       samples/s over those of as many replicas that exchange nothing
    MB per link   payload that one worker sends in a step
    bound         what takes longest: the link, the latency of messages, or the CPU

what to give:
    --step_time is the time of a step on ONE device, with your batch, model and precision, without
    any exchange: run `model.fit` on one device and read it off. Everything else follows.
    --rate is the line rate of one worker's network card, not the sum of several.

methods:
    stock, 2d, 2d+bfloat16, 2d:bucket=adaptive, ...: as in
    `python -m experiments.allreduce.benchmark --help`; and tree, for comparison.

constants:
    What a byte and a message cost in software is assumed unless --calibration names a file. Make
    one from two short runs of the benchmark, one bound by the link and one by the CPU:
      sudo python -m experiments.allreduce.benchmark --rate=200mbit --json=4x2-200mbit.json
      sudo python -m experiments.allreduce.benchmark --rate=1gbit --json=4x2-1gbit.json
      python -m experiments.simulate --calibrate=4x2-200mbit.json,4x2-1gbit.json \\
          --calibration=costs.json
    and see on others whether it predicts what it was not fitted to (exit code 1 beyond 10 %):
      python -m experiments.simulate --validate=2x4-200mbit.json --calibration=costs.json

examples:
    python -m experiments.simulate --workers=16 --devices_per_worker=8 --rate=25gbit \\
        --model=resnet50 --step_time=0.2 --batch_per_device=256 --plot=steps.png
    python -m experiments.simulate --workers=8 --rate=1gbit --parameters=110e6 --step_time=0.5 \\
        --methods=stock,2d,2d+bfloat16,2d+topk=0.001
    python -m experiments.simulate --curve --rate=10gbit --plot=curve.png
    python -m experiments.simulate --light --plot=light.png
"""

_EXAMPLE = (
    "python -m experiments.simulate --workers=4 --rate=1gbit --model=resnet50 --step_time=0.2"
)
# Seconds above which a step was probably meant in milliseconds.
_LONG_STEP = 60


def main(argv=None):
    """Runs the command; returns its exit code."""
    try:
        args = _parser().parse_args(sys.argv[1:] if argv is None else argv)
        if args.plot:
            check_matplotlib()
        check_writable(args, "json", "plot", *["calibration"] * bool(args.calibrate))
        if args.cores_per_host is not None and args.cores_per_host < 1:
            raise ValueError(f"--cores_per_host={args.cores_per_host} must be at least 1")
        if args.light:
            return _light(args)
        if args.curve:
            return _curve(args)
        if args.calibrate:
            return _calibrate(args)
        if args.validate:
            return _validate(args)
        return _simulate(args)
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


class _Parser(argparse.ArgumentParser):
    """Its errors are one line, as all others of the command: its usage would be thirteen."""

    def error(self, message):
        raise ValueError(f"{message}; --help shows all flags")


def _parser():
    parser = _Parser(
        prog="python -m experiments.simulate",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--workers", type=int, help="processes, one on each host")
    add("--devices_per_worker", type=int, default=1, help="replicas of each (default: 1)")
    add("--rate", help="of each worker's link, such as 200mbit or 25gbit; none: no limit")
    add("--model", help=f"one of {', '.join(NETWORKS)}")
    add("--parameters", type=float, help="instead: trainable parameters, such as 110e6")
    add("--step_time", help="of a step on one device without any exchange: 0.2 (s) or 200ms")
    add("--batch_per_device", type=int, default=1, help="samples of that step (default: 1)")
    add("--methods", help="list with commas, named as in the benchmark (default: the usual ones)")
    add("--latency_ms", type=float, default=0.05, help="one way between workers (default: 0.05)")
    add("--cores_per_host", type=int, help="(default: 8, or what a benchmark's rows say)")
    add("--workers_per_host", type=int, default=1, help="that share these cores (default: 1)")
    add(
        "--devices",
        choices=("accelerator", "cpu"),
        default="accelerator",
        help="whose constants to assume without --calibration (default: accelerator)",
    )
    add("--calibration", metavar="F", help="file with the constants")
    add("--json", metavar="F", help="write the result there")
    add("--plot", metavar="F", help="draw it there (needs matplotlib)")
    other = parser.add_argument_group("instead of a prediction").add_mutually_exclusive_group()
    other.add_argument("--calibrate", metavar="F,F", help="fit the constants to benchmark files")
    other.add_argument("--validate", metavar="F,F", help="compare with benchmark files")
    other.add_argument(
        "--curve", action="store_true", help="1-D against 2-D, thousands of replicas"
    )
    other.add_argument("--light", action="store_true", help=f"a published run ({light.LABEL})")
    return parser


def _simulate(args):
    _require_for_prediction(args)
    step_time = _parse_step_time(args.step_time)
    if args.batch_per_device < 1:
        raise ValueError(f"--batch_per_device={args.batch_per_device} must be at least 1")
    cluster = Cluster(
        args.workers,
        args.devices_per_worker,
        parse_rate(args.rate),
        args.latency_ms / 1e3,
        cores_per_host=8 if args.cores_per_host is None else args.cores_per_host,
        workers_per_host=args.workers_per_host,
    )
    net = _network(args)
    costs, source = _costs(args)
    names = scaling.usual_methods(cluster.workers)
    if args.methods is not None:
        names = [name.strip() for name in args.methods.split(",") if name.strip()]
    if not names:
        raise ValueError("--methods names no method; for example --methods=stock,2d")
    rows = scaling.outcomes(cluster, net, names, step_time, args.batch_per_device, costs)
    title = (
        f"{cluster.workers} workers x {cluster.devices_per_worker} devices, "
        f"{format_rate(cluster.bits_per_second)}, {net.name}, {net.parameters / 1e6:.1f} M "
        f"parameters, {step_time:g} s of computation"
    )
    sentences = advice.advise(rows, cluster)
    print(title)
    print(scaling.table(rows))
    print(f"\nconstants: {source}")
    print("not in the model: stragglers, input, other traffic; scaling is an upper bound")
    if not net.exact:
        print(f"{net.name}: tensors of equal size and work are assumed")
    if args.batch_per_device == 1:
        print("samples/s count one sample per device and step; say --batch_per_device")
    if step_time > _LONG_STEP:
        print(
            f"--step_time={args.step_time} is {step_time:g} seconds for one step; milliseconds are "
            "written as 200ms"
        )
    print()
    print("\n".join(sentences))
    if cluster.workers > 1:
        print("\n" + "\n".join(selection.describe(names)))
    if args.json:
        _write(
            args.json,
            {
                "cluster": dataclasses.asdict(cluster),
                "model": net.name,
                "parameters": net.parameters,
                "step_time": step_time,
                "costs": dataclasses.asdict(costs),
                "costs_from": source,
                "rows": [dataclasses.asdict(row) for row in rows],
                "advice": sentences,
            },
        )
    if args.plot:
        plots.draw_outcomes(args.plot, rows, title)
    return 0


def _calibrate(args):
    if not args.calibration:
        raise ValueError("--calibrate needs --calibration=F, where to write the constants")
    lines, rows = write_calibration(
        args.calibration, args.calibrate.split(","), args.cores_per_host
    )
    _show_comparison(args, lines, rows, "Fitted")
    print(f"constants written to {args.calibration}")
    return 0


def _validate(args):
    if not args.calibration:
        raise ValueError("--validate needs --calibration=F, a file made by --calibrate")
    lines, rows = validate(
        args.validate.split(","), read_costs(args.calibration), args.cores_per_host
    )
    _show_comparison(args, lines, rows, "Predicted")
    return 0 if all(row.within for row in rows) else 1


def _show_comparison(args, lines, rows, verb):
    print("\n".join(lines))
    if args.json:
        _write(args.json, [dataclasses.asdict(row) for row in rows])
    if args.plot:
        plots.draw_comparison(args.plot, rows, verb)


def _curve(args):
    if args.rate is None:
        raise ValueError("--rate must be given; for example --curve --rate=10gbit")
    if args.model is None and args.parameters is None:
        args.model = "resnet50"
    net = _network(args)
    rate = parse_rate(args.rate)
    if rate is None:
        raise ValueError("--curve needs a --rate: without a limit there are only hops to compare")
    costs, source = _costs(args)
    points = curves.mesh_curve(
        4 * net.parameters,
        8 * (1 + costs.link_overhead) / rate,
        args.latency_ms / 1e3 + costs.step_seconds,
    )
    title = f"{net.name} on n x n replicas, {format_rate(rate)} per link"
    print(title)
    print(curves.table(points))
    print(f"\nconstants: {source}")
    if args.json:
        _write(args.json, [dataclasses.asdict(point) for point in points])
    if args.plot:
        plots.draw_curve(args.plot, points, title)
    return 0


def _light(args):
    print("\n".join(light.describe()))
    if args.plot:
        plots.draw_light(args.plot)
    return 0


def _network(args):
    parameters = args.parameters
    if parameters is not None:
        if not 1 <= parameters <= 1e13:
            raise ValueError(f"--parameters={parameters:g} is not a number of parameters")
        parameters = int(parameters)
    return network(args.model, parameters)


def _costs(args):
    """The constants, and where they come from."""
    if args.calibration:
        return read_costs(args.calibration), f"measured, {args.calibration}"
    if args.devices == "cpu":
        return Costs(), "of one small machine without accelerators; --help: how to measure yours"
    return ACCELERATOR, "ASSUMED for accelerators, not measured; --help: how to measure yours"


def _require_for_prediction(args):
    names = ("workers", "rate", "step_time")
    missing = [f"--{name}" for name in names if getattr(args, name) is None]
    if args.model is None and args.parameters is None:
        missing.append("--model (or --parameters)")
    if missing:
        raise ValueError(f"{', '.join(missing)} must be given; for example\n  {_EXAMPLE}")


def _parse_step_time(text):
    """Returns seconds from ``0.2``, ``0.2s`` or ``200ms``."""
    number, unit = re.fullmatch(r"(.*?)\s*(ms|s|)", text.strip().lower()).groups()
    try:
        seconds = float(number) / (1e3 if unit == "ms" else 1)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(
            f"--step_time={text} must be a number above 0: seconds, as 0.2, or milliseconds, as "
            "200ms"
        )
    return seconds


def _write(path, content):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
