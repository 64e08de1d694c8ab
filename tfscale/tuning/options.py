"""The command line of ``python -m tfscale.tuning``: the flags of `Settings`, and the space."""

import argparse
import dataclasses
import difflib
import typing

from tfscale.config_types import read_value, value_name
from tfscale.tuning.settings import Settings
from tfscale.tuning.space import read_space

_PROGRAM = "python -m tfscale.tuning"

_DESCRIPTION = """\
Searches hyperparameters of a training program.

Each trial is a run of its own: the program's own processes (or several workers of it), run
folder, ports, temporary folder and share of the cores and GPUs, with values drawn here and given
as flags. A trial that is poorer than the others at the same epoch is stopped; one that crashes,
is not finite or takes too long is a failed trial. Kill the search at any time: the same command
goes on with it, and repeats the trials that were running.
"""

_EPILOG = """\
ranges (both ends included; the names are flags of the program):
  momentum=0.8:0.95              a number (whole where the flag takes whole numbers)
  label_smoothing=0:0.2:0.05     a number, in steps
  base_learning_rate=log:4:128   a number, every factor with equal probability
  warmup_epochs=int:0:5          a whole number where the flag takes others, too
  global_batch_size=logint:32:512
  optimizer=lars,sgd             one of these
  --space experiments.tuning.quickstart:SPACE    a dict of ranges, or a function of an Optuna
                                 trial that returns {name: value}, from Python

what the program must do: take --name=value flags, --model_dir=FOLDER among them, and write the
scores of its epochs with tfscale.callbacks.EpochLog(model_dir / "epochs.jsonl"). If it lists its
runs as tfscale.config does (CONFIGS), names and values are checked before the first trial.

example: tune the quickstart (a few minutes on two cores)
  python -m experiments.quickstart.datasets digits runs/digits
  {program} experiments/train.py --trials=8 --folder=runs/tuning --prune_from=5 \\
      --space base_learning_rate=log:4:128 momentum=0.8:0.95 warmup_epochs=0:2 -- \\
      --config=quickstart --data_dir=runs/digits --epochs=8 --noexport
  sh runs/tuning/best.sh --epochs=15 --export

  two trials at a time, each of two workers:    --parallel=2 --workers=2
  several machines, the same command on each:   --storage=postgresql://user:password@host/db
  only table and plots:  python -m tfscale.tuning --folder=runs/tuning --report

in the folder: trials.db (the storage), trial-0007/ (run folder, output.log), results.json,
results.csv, best.sh (the best run, ready to start), plots/; of a search with a --name of its own
all but the storage in search-NAME/

exit code: 0; 1 if no trial succeeded or the search gave up; 2 if something is wrong with the
command line; 130 after Ctrl-C.
"""


def parse(argv):
    """Reads the command line.

    Args:
        argv: `list` of `str`, without the program's name.

    Returns:
        ``(program words, program flags, space, Settings, report only)``.

    Raises:
        SystemExit: 0 after ``--help``; 2 with one line on standard error after a mistake.

    Example:

    >>> parse(["a.py", "--space", "x=0:1", "--trials=3", "--", "--epochs=2"])[:3]
    (['a.py'], ['--epochs=2'], {'x': '0:1'})
    """
    place = argv.index("--") if "--" in argv else len(argv)
    own, flags = argv[:place], argv[place + 1 :]
    parser = _parser()
    options, unknown = parser.parse_known_args(own)
    if unknown:
        name = unknown[0].partition("=")[0]
        nearest = difflib.get_close_matches(name, parser._option_string_actions, n=1, cutoff=0.7)
        parser.error(
            f"unknown argument {unknown[0]!r}; "
            + (
                f"did you mean {nearest[0]}?"
                if nearest
                else "the program's own flags come after --"
            )
        )
    try:
        settings = Settings(**{item.name: getattr(options, item.name) for item in _fields()})
        if options.report:
            return [], [], {}, settings, True
        # First: a program after --space is taken for one of its ranges.
        space = read_space(options.space or [])
        if options.module and options.program:
            raise ValueError(f"both -m {options.module} and {options.program}: give one program")
        if not options.module and not options.program:
            raise ValueError("no program: give a Python file, or -m and a module")
        words = ["-m", options.module] if options.module else [options.program]
        if not space:
            raise ValueError("--space is needed: FIELD=RANGE, such as momentum=0.8:0.95")
    except ValueError as error:
        parser.error(str(error))
    return words, flags, space, settings, False


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def _fields():
    return dataclasses.fields(Settings)


def _parser():
    parser = _Parser(
        prog=_PROGRAM,
        usage=f"{_PROGRAM} (PROGRAM | -m MODULE) --space FIELD=RANGE ... [options] [-- FLAGS]",
        description=_DESCRIPTION,
        epilog=_EPILOG.replace("{program}", _PROGRAM),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("program", nargs="?", metavar="PROGRAM", help="Python file to run")
    parser.add_argument("-m", "--module", help="run a module instead of a file")
    parser.add_argument(
        "--space",
        nargs="+",
        action="extend",
        metavar="FIELD=RANGE",
        help="what is searched; see below",
    )
    hints = typing.get_type_hints(Settings)
    for item in _fields():
        kind = hints[item.name]
        default = "none" if item.default is None else item.default
        parser.add_argument(
            f"--{item.name}",
            type=_reader(kind),
            default=item.default,
            metavar=value_name(kind),
            help=f"{item.metadata['help']} [{default}]".replace("%", "%%"),
        )
    parser.add_argument(
        "--report", action="store_true", help="run nothing: table and plots of what is there"
    )
    return parser


def _reader(kind):
    def read(text):
        return read_value(text, kind)

    read.__name__ = value_name(kind)  # What argparse says of a bad value.
    return read
