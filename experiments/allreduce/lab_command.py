"""The command ``python -m experiments.allreduce.lab``: sets a lab up that stays, and removes it."""

import argparse
import sys

from experiments.allreduce import claims
from experiments.allreduce import lab as lab_lib
from experiments.allreduce.lab import Lab
from experiments.allreduce.network_commands import LabError, check_machine
from experiments.rates import format_rate, parse_rate


def main(argv=None):
    """The command: ``up``, ``down``, ``verify`` or ``shape``."""
    args = _arguments(sys.argv[1:] if argv is None else argv)
    try:
        return {"up": _up, "down": _down, "verify": _verify, "shape": _shape}[args.command](args)
    except (LabError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _arguments(argv):
    parser = argparse.ArgumentParser(
        prog="python -m experiments.allreduce.lab",
        description=lab_lib.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("up", "down", "verify", "shape"))
    parser.add_argument("--workers", type=int, default=4, help="hosts (up; default: 4)")
    parser.add_argument(
        "--rate",
        default="200mbit",
        help="of each link in each direction: kbit, mbit, gbit (up, shape; default: 200mbit); "
        "none: no limit",
    )
    parser.add_argument(
        "--congestion",
        default=lab_lib.CONGESTION,
        help="TCP's congestion control (up; default: %(default)s); none: the machine's own",
    )
    parser.add_argument("--lab", type=int, help="its number, if several are up (not for up)")
    return parser.parse_args(argv)


def _up(args):
    lab = Lab(args.workers, args.rate, congestion=args.congestion)
    lab.up()
    lab.keep()
    print(f"lab {lab.number} is up: {lab.workers} hosts, {format_rate(parse_rate(lab.rate))}")
    for name, address in zip(lab.namespaces, lab.addresses, strict=True):
        print(f"  {name}  {address}")
    print("  run there: ip netns exec NAME COMMAND; take it down: ... lab down")
    return 0


def _down(args):
    check_machine()
    removed = claims.remove_leftovers()
    for number in claims.kept() if args.lab is None else [args.lab]:
        lab = Lab.attach(number)
        removed += [*lab.namespaces, lab.switch]
        lab.down()
    print(f"removed {', '.join(removed)}" if removed else "no lab was up")
    return 0


def _verify(args):
    check_machine()
    print(Lab.attach(args.lab).verify().describe())
    return 0


def _shape(args):
    check_machine()
    lab = Lab.attach(args.lab)
    lab.shape(args.rate)
    print(f"lab {lab.number}: {format_rate(parse_rate(lab.rate))}")
    return 0
