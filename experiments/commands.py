"""What all measuring commands do when something goes wrong: one line, and an exit code."""

import sys


def exit_code(function, stopped="stopped by Ctrl-C"):
    """Returns what `function()` returns; 1 for an error that people can mend, which it says.

    Args:
        function: called without arguments; returns the exit code of a command.
        stopped: `str`, what to say after Ctrl-C.

    Returns:
        `int`: 130 after Ctrl-C.

    Example:
        >>> exit_code(lambda: int("x"))
        1
    """
    try:
        return function()
    except (ValueError, ImportError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(stopped, file=sys.stderr)
        return 130
