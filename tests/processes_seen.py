"""What tests of processes look at: whether one is alive, and whether something has come about."""

import time


def is_running(pid):
    """Whether a process is alive, zombies not counted."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, timeout=15):
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until, "timed out"
        time.sleep(0.02)
