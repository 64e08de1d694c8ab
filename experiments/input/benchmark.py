"""Compares input pipelines on the same JPEGs: images per CPU-second, and share of the C bound.

Every pipeline crops at random, decodes, resizes bilinearly, mirrors and batches. Each is a process
of its own; they measure in turns (a, b, c, a, b, c, ...), the others being stopped meanwhile.
"""

import argparse
import json
import math
import os
import sys
import tempfile
import textwrap

from experiments.commands import exit_code
from experiments.input import bound, photos, pipelines, results, running
from experiments.outputs import check_matplotlib, check_writable, write_json

DRAIN = 10  # batches

_EPILOG = f"""\
pipelines:
{textwrap.indent(pipelines.__doc__.split("in.", 1)[1].strip(), "    ")}

columns:
    images/CPU-s    images for each second of CPU time, user and system, of the pipeline's process
                    and all that it has started: median of the repeats; one core kept busy gives as
                    many a second
    spread          largest less smallest of the repeats, of the median
    images/s        images for each second of the clock, with --threads threads or processes (bound
                    and simplejpeg: one)
    share of bound  of the bound's images/CPU-s, each repeat with the bound's in the same turn
    mean area       share of the picture in a crop: samplers differ, and less area is less work
    C ops           whether tfscale's native ops were there and used

A pipeline first takes {DRAIN} batches that do not count: what lies ready in buffers is free.

time: pipelines x repeats x (seconds + 1) s, and some 8 s to start each: all pipelines
with the default of 5 repeats of 5 s take about 11 minutes on 2 cores that are otherwise idle, and
8 GB of memory. On a busy machine look at ratios within the run, and at nothing else.

examples:
    python -m experiments.input.benchmark --data_dir=photos --json=rows.json --plot=rows.png
    python -m experiments.input.benchmark --data_dir=records --repeats=3 \\
        --pipelines=bound,tfscale,by_hand,dali
    python -m experiments.input.claims rows.json
"""


def main(argv=None):
    """Runs the command; returns its exit code."""
    args = _arguments(sys.argv[1:] if argv is None else argv)
    return exit_code(lambda: _run(args))


def _arguments(argv):
    parser = argparse.ArgumentParser(
        prog="python -m experiments.input.benchmark",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add_common(parser)
    add(
        "--pipelines",
        help="list with commas, see below, or all (default: those that are installed)",
    )
    args = parser.parse_args(argv)
    try:
        args.named = args.pipelines is not None
        args.pipelines = pipelines.parse(args.pipelines or "all")
    except ValueError as error:
        parser.error(str(error))
    return args


def check(args):
    """Checks, before anything is measured, that the results can be written."""
    if args.plot:
        check_matplotlib()
    check_writable(args, "json", "plot", folders=("logs",))


def add_common(parser, repeats=5, seconds=5.0):
    """Adds the flags that the ablation has too, with other defaults."""
    add = parser.add_argument
    add(
        "--data_dir",
        required=True,
        help="folder of records (tfscale.data.prepare) with the split 'train', or of class folders "
        "of JPEGs",
    )
    add("--json", metavar="F", help="write the rows there")
    add("--plot", metavar="F", help="draw the rates there (needs matplotlib)")
    default = "default: %(default)g"
    add("--repeats", type=_positive(int), default=repeats, help=f"turns of each ({default})")
    add("--seconds", type=_positive(float), default=seconds, help=f"of a turn ({default})")
    add("--image_size", type=_positive(int), default=224, help="pixels (default: 224)")
    add("--batch", type=_positive(int), default=128, help="images (default: 128)")
    add(
        "--threads",
        type=_positive(int),
        default=len(os.sched_getaffinity(0)),
        help="of each pipeline, or its worker processes (default: the cores, %(default)s)",
    )
    add(
        "--cache_dir",
        metavar="DIR",
        default=photos.default_cache(),
        help="for the forms of the pictures that peers need (default: %(default)s)",
    )
    add("--logs", metavar="DIR", help="keep what the pipelines print there")


def _run(args):
    check(args)
    missing = [
        pipelines.how_to_install(name)
        for name in args.pipelines
        if pipelines.python_of(name) is None
    ]
    if missing and args.named:
        raise ValueError("\n".join(["not installed:", *missing]))
    names = [name for name in args.pipelines if pipelines.python_of(name) is not None]
    program = None
    compiled = [name for name in names if pipelines.PIPELINES[name].worker is None]
    if compiled:
        try:
            program = bound.build(args.cache_dir)
        except bound.CannotBuild as error:
            if args.named:
                raise
            missing.append(str(error))
            names = [name for name in names if name not in compiled]
    data = photos.find(args.data_dir, args.cache_dir, say)
    if data.count < args.batch:
        raise ValueError(f"--batch={args.batch} is more than the {data.count} pictures")
    title = describe(data, args)
    say(title)
    commands = [_command(name, args, data, program) for name in names]
    samples, facts, failures = measure(commands, args)
    for name in compiled:
        facts.get(name, {})["mean_area"] = data.mean_area
    rows = results.rows_of(samples, facts)
    if rows:
        say(f"\n{title}\n{results.table(rows)}")
        write_rows(args, rows, data)
        if args.plot:
            results.plot(args.plot, rows, title)
    for line in missing:
        say(f"left out: {line}")
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return 1 if failures or not rows else 0


def measure(commands, args):
    """Returns ``(samples, facts, failures)`` of `running.Command`s that are measured in turns."""
    with tempfile.TemporaryDirectory(prefix="tfscale-input-") as logs:
        with running.started(commands, args.logs or logs, say) as (programs, failures):
            facts = {program.name: program.facts for program in programs}
            samples = running.in_turns(programs, failures, args.repeats, args.seconds, DRAIN, say)
    return samples, facts, failures


def write_rows(args, rows, data):
    """Writes the JSON that was asked for."""
    if args.json:
        write_json(
            args.json,
            rows,
            image_size=args.image_size,
            batch=args.batch,
            threads=args.threads,
            seconds=args.seconds,
            cores=len(os.sched_getaffinity(0)),
            pictures=data.count,
            mean_bytes=data.mean_bytes,
            mean_pixels=data.mean_pixels,
        )


def describe(data, args):
    """One line about the pictures and the settings."""
    return (
        f"{data.count} pictures, {data.mean_bytes / 1e3:.0f} kB and {data.mean_pixels / 1e3:.0f} "
        f"kpixels each, to {args.image_size} pixels in batches of {args.batch}, "
        f"{args.threads} threads"
    )


def settings(name, args, data):
    """What the program of a pipeline is told."""
    return {
        "pipeline": name,
        "image_size": args.image_size,
        "batch": args.batch,
        "threads": args.threads,
        "records": data.records,
        "paths": data.paths,
        "files": data.files,
        "listing": data.listing,
        "windows": data.windows,
        "count": data.count,
        "mean_area": data.mean_area,
    }


def command(name, python, worker, variables, warm_up, facts):
    """Returns the `running.Command` of a module of ``experiments.input.workers``."""
    return running.Command(
        name,
        [str(python), "-m", f"experiments.input.workers.{worker}", json.dumps(facts)],
        {
            "PYTHONPATH": str(pipelines.ROOT),
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_USE_LEGACY_KERAS": "1",
            **variables,
        },
        str(pipelines.ROOT),
        warm_up,
    )


def _command(name, args, data, program):
    pipeline = pipelines.PIPELINES[name]
    if pipeline.worker is None:
        threads = args.threads if name == "bound_parallel" else 1
        argv = [program, data.windows, str(args.image_size), str(threads)]
        # The paths in the list are relative to the files' folder.
        return running.Command(name, argv, {}, data.files)
    return command(
        name,
        pipelines.python_of(name),
        pipeline.worker,
        pipeline.variables,
        pipeline.epochs * math.ceil(data.count / args.batch),
        settings(name, args, data),
    )


def say(text):
    """Prints at once, as people wait."""
    print(text, flush=True)


def _positive(kind):
    def convert(text):
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
        return value

    return convert


if __name__ == "__main__":
    sys.exit(main())
