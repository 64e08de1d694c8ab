"""Command lines that answer a mistake with one line: what is wrong, and what was meant."""

import argparse
import difflib


class ArgumentParser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` whose errors are one line and suggest the nearest flag."""

    def __init__(self, **kwargs):
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message):
        self.exit(2, f"{self.prog}: {message} (see --help)\n")

    def parse_strictly(self, argv, hint):
        """Parses `argv`; an unknown argument is an error with a suggestion, or with `hint`.

        Args:
            argv: `list` of `str`.
            hint: `str` in which ``{0}`` stands for the unknown argument.
        """
        options, unknown = self.parse_known_args(argv)
        if unknown:
            flag = unknown[0].partition("=")[0]
            close = difflib.get_close_matches(flag, self._option_string_actions, n=1, cutoff=0.7)
            advice = f"did you mean {close[0]}?" if close else hint.format(unknown[0])
            self.error(f"unknown argument {unknown[0]!r}; {advice}")
        return options


def split_at_dashes(argv):
    """Splits ``[a, "--", b]`` into ``[a]`` and ``[b]``."""
    argv = list(argv)
    if "--" not in argv:
        return argv, []
    place = argv.index("--")
    return argv[:place], argv[place + 1 :]


def positive_int(text):
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return value


def positive_seconds(text):
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of seconds above 0")
    return value
