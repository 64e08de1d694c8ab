"""Runs a program that can open slow:///absolute/path.

The program and its flags follow the flags of this one:

    python -m experiments.input.slow_source --rate=5MB --latency=0.02 \\
        experiments/train.py --data_dir=slow:///data/records
"""

import argparse
import os
import runpy
import sys

from experiments.input import slow_source


def main(argv=None):
    """The command line; returns the exit code where the program does not leave by itself."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.input.slow_source",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rate", help="bytes per second, such as 5MB (default: SLOW_BYTES_PER_SECOND, else none)")
    add("--latency", help="seconds a request (default: SLOW_LATENCY_SECONDS, else 0)")
    add("--shared", metavar="F", help="file for one link of several processes (or SLOW_SHARED)")
    add("program", help="path of a Python file")
    add("arguments", nargs=argparse.REMAINDER, help="of the program")
    args = parser.parse_args(argv)
    try:
        if not os.path.isfile(args.program):
            raise FileNotFoundError(f"{args.program} is no file; wanted a program in Python")
        slow_source.register(args.rate, args.latency, args.shared)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    sys.argv = [args.program, *args.arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(args.program)))
    runpy.run_path(args.program, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
