"""Starts workers of one training program on this machine: ``python -m launch.local --help``."""

import argparse
import importlib.util
import os
import shlex
import shutil
import sys
from pathlib import Path

from tfscale.processes import run_group
from tfscale.rendezvous.ports import reserve_ports

from .arguments import ArgumentParser, positive_int, positive_seconds, split_at_dashes
from .local_job import LocalJob, commands

_DESCRIPTION = """\
Starts a training program as several workers on this machine, as a cluster would on several.

Each worker gets its own TF_CONFIG with free ports on loopback, its share of the cores (and of
the GPUs, if there are any), and no proxy in between. When one worker fails, the others are
stopped and its exit code and last lines are shown; Ctrl-C leaves nothing running.
"""

_EXAMPLES = """\
examples:
  # 2 workers with 2 devices each; what follows -- belongs to the program
  {program} --workers=2 --devices_per_worker=2 experiments/train.py -- --config=quickstart

  # one clean display: only worker 0 (the leader) is shown, the others go to log files
  {program} --workers=2 --show=leader --log_dir=/tmp/logs experiments/train.py

  # three processes that read and decode for the two workers, which then only train
  {program} --workers=2 --data_service=3 experiments/train.py -- --cache=none

  # a module instead of a file; show what would start, and start nothing
  {program} --workers=2 --dry_run -m experiments.train -- --epochs=3

environment of each worker (flags win, then what you have set yourself; TF_CONFIG is replaced):
  TF_CONFIG, TFSCALE_DEVICES_PER_WORKER, TFSCALE_START_TIMEOUT, TFSCALE_LOCAL_WORKERS (the input
  pipeline's share of the cores is one in so many; 1 if you pin each worker to its own cores),
  OMP_NUM_THREADS, TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS, CUDA_VISIBLE_DEVICES, no_proxy,
  PYTHONPATH (the current folder is added), PYTHONUNBUFFERED, TF_CPP_MIN_LOG_LEVEL;
  with --data_service: TFSCALE_DATA_SERVICE, its address

exit code: 0, or that of the worker that failed first (128 + n if signal n ended it);
130 after Ctrl-C; 2 if something is wrong with the command line.
"""


def parse(argv, program="python -m launch.local"):
    """Reads the command line; returns the `LocalJob` and the parsed options.

    Raises:
        SystemExit: 2 with one line on standard error, if something is wrong.
    """
    parser = ArgumentParser(
        prog=program,
        usage=f"{program} --workers=N [options] (PROGRAM | -m MODULE) [-- ARGUMENTS]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES.format(program=program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--workers", type=positive_int, default=1, help="number of processes (default 1)")
    add(
        "--devices_per_worker",
        type=positive_int,
        default=os.environ.get("TFSCALE_DEVICES_PER_WORKER") or None,
        help="devices of each: GPUs where there are enough, else logical CPU devices "
        "(default: the worker's share of the GPUs, or 1)",
    )
    add(
        "--start_timeout",
        type=positive_seconds,
        help="seconds that workers wait for each other at the start (default: the program's, 120)",
    )
    add(
        "--grace",
        type=positive_seconds,
        default=10.0,
        help="seconds from SIGTERM to SIGKILL when the group is stopped (default 10)",
    )
    add(
        "--show",
        choices=("all", "leader"),
        default="all",
        help="whose output is shown: all workers' lines, prefixed with [worker 1] and so on; or "
        "only the leader's, as if it ran alone (default all)",
    )
    add("--log_dir", help="folder that gets each worker's whole output as worker-N.log")
    add(
        "--first_port",
        type=positive_int,
        help="use the ports from this number on (default: free ones)",
    )
    add(
        "--data_service",
        type=positive_int,
        metavar="N",
        default=0,
        help="start a data service too, of N processes that read and decode for all workers; the "
        "cores are shared among these and the workers (see python -m tfscale.data.service "
        "--help; default: none, each worker does it itself)",
    )
    add("--dry_run", action="store_true", help="print each worker's environment and command")
    add("-m", "--module", help="run a module instead of a file")
    add("program", nargs="?", metavar="PROGRAM", help="Python file or executable of the training")
    own, after = split_at_dashes(argv)
    options = parser.parse_strictly(
        own, hint="arguments of the program come after --, for example: train.py -- {0}"
    )
    try:
        command = [*_program(options.program, options.module), *after]
        last = options.workers + bool(options.data_service) - 1
        if options.first_port and options.first_port + last > 65535:
            raise ValueError(f"--first_port={options.first_port} leaves no room below port 65536")
        if options.log_dir and not options.dry_run:
            Path(options.log_dir).mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    job = LocalJob(
        command,
        options.workers,
        options.devices_per_worker,
        options.start_timeout,
        options.show,
        options.log_dir,
        options.data_service,
    )
    return job, options


def _program(program, module):
    """The command line that runs a program file, or a module."""
    if module and program:
        raise ValueError(f"both -m {module} and the program {program}; give one")
    if module:
        top = module.partition(".")[0]
        sys.path.insert(0, str(Path.cwd()))
        try:
            found = importlib.util.find_spec(top)
        except ValueError:
            found = None
        finally:
            sys.path.pop(0)
        if found is None:
            raise ValueError(f"no module named {top!r}, from the folder {Path.cwd()}")
        return [sys.executable, "-m", module]
    if not program:
        raise ValueError("no program: give a Python file, or -m and a module (see --help)")
    path = Path(program)
    if not path.exists() and path.name == program and shutil.which(program):
        return [shutil.which(program)]
    if not path.exists():
        raise ValueError(f"no such program: {program}, from the folder {Path.cwd()}")
    if path.suffix == ".py" or (path / "__main__.py").exists():
        return [sys.executable, program]
    if path.is_dir():
        raise ValueError(f"{program} is a folder without __main__.py, not a program")
    if not os.access(path, os.X_OK):
        raise ValueError(
            f"{program} is neither a .py file nor executable; rename it or chmod +x {program}"
        )
    return [str(path.resolve())]


def _dry_run(job, environ, first_port):
    with reserve_ports(job.num_ports, first_port) as reservation:
        planned, summary = commands(job, reservation.ports, environ)
    print(f"# {summary}; {'' if first_port else 'other ports may be chosen when it starts'}")
    for command in planned:
        changed = {k: v for k, v in sorted(command.env.items()) if environ.get(k) != v}
        assignments = " \\\n    ".join(f"{k}={shlex.quote(v)}" for k, v in changed.items())
        print(f"# {command.name}\nenv {assignments} \\\n    {shlex.join(command.argv)}")


def _notify(text):
    print(f"tfscale-launch: {text}", file=sys.stderr, flush=True)


def main(argv=None, program="python -m launch.local"):
    """Runs the launcher; returns the exit code."""
    job, options = parse(sys.argv[1:] if argv is None else argv, program)
    environ = dict(os.environ)
    try:
        if options.dry_run:
            _dry_run(job, environ, options.first_port)
            return 0
        with reserve_ports(job.num_ports, options.first_port) as reservation:
            planned, summary = commands(job, reservation.ports, environ)
            if environ.get("TF_CONFIG", "").strip() not in ("", "{}"):
                _notify("the TF_CONFIG of your environment is replaced for the workers")
            ports = ", ".join(map(str, reservation.ports))
            _notify(f"{summary}, ports {ports}" if job.num_ports > 1 else summary)
            if hasattr(sys.stdout, "reconfigure"):
                sys.stdout.reconfigure(errors="replace")
            result = run_group(planned, notify=_notify, grace_seconds=options.grace)
    except BrokenPipeError:
        # The reader of our output is gone (`| head`); nothing more can be shown.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        _notify(str(error))
        return 1
    if result.describe():
        _notify(result.describe())
        if job.log_dir:
            _notify(f"the whole output of each worker is in {job.log_dir}")
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main())
