"""The console script ``tfscale-launch``: one subcommand per kind of cluster."""

import difflib
import sys

import tfscale

from . import local

_COMMANDS = {"local": (local.main, "several workers on this machine")}


def main(argv=None):
    """Dispatches to a subcommand; returns its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if argv else 2
    if argv[0] == "--version":
        print(f"tfscale {tfscale.__version__}")
        return 0
    name, *rest = argv
    if name not in _COMMANDS:
        close = difflib.get_close_matches(name, _COMMANDS, n=1)
        advice = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(_COMMANDS)}"
        print(f"tfscale-launch: unknown command {name!r}; {advice}", file=sys.stderr)
        return 2
    command, _ = _COMMANDS[name]
    return command(rest, program=f"tfscale-launch {name}")


def _usage():
    lines = [f"  {name:<8} {summary}" for name, (_, summary) in _COMMANDS.items()]
    return "\n".join(
        [
            "usage: tfscale-launch COMMAND ...",
            "",
            "Starts the same training program wherever its workers run.",
            "",
            "commands:",
            *lines,
            "",
            "example:",
            "  tfscale-launch local --workers=2 --devices_per_worker=2 train.py -- --epochs=3",
            "",
            "More about a command: tfscale-launch COMMAND --help",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
