"""Ends the processes of a launcher that died without ending them; a program, not a module.

Reads lines ``+ID`` and ``-ID`` of process groups on standard input. At its end, which also comes
when the launcher is killed with SIGKILL, the groups still listed get SIGTERM, and SIGKILL after
the seconds given as first argument. Works on every POSIX system, and for grandchildren too.
"""

import os
import signal
import sys
import time


def _signal(groups, number):
    """Signals the groups and returns those that still exist."""
    alive = set()
    for group in groups:
        try:
            os.killpg(group, number)
            alive.add(group)
        except OSError:
            pass
    return alive


def main():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups = set()
    for line in sys.stdin:
        change = groups.add if line[0] == "+" else groups.discard
        change(int(line[1:]))
    alive = _signal(groups, signal.SIGTERM)
    until = time.monotonic() + float(sys.argv[1])
    while alive and time.monotonic() < until:
        time.sleep(0.05)
        alive = _signal(alive, 0)
    _signal(alive, signal.SIGKILL)


if __name__ == "__main__":
    main()
