"""Which labs there are on this machine, and whose: several may run side by side.

A lab has a number, and its namespaces' names begin with ``tfs`` and that number. A process owns a
number while it holds the lock on the number's file; the system drops the lock with the process,
however that ends, so a lab whose lock is free was left behind by a killed run, unless its file
says that it is to be kept (``lab up``).
"""

import contextlib
import fcntl
import json
import os
import re
import signal
import time
from pathlib import Path

from experiments.allreduce.network_commands import LabError, run

FOLDER = Path("/run/tfscale-lab")
_NETNS = Path("/run/netns")
_MOST_LABS = 100


class Claim:
    """The lock on one lab's number.

    Attributes:
        number: `int`.
    """

    def __init__(self, number, file):
        self.number, self._file = number, file

    @classmethod
    def take(cls, number):
        """Returns the claim on `number`, or None if another process has it."""
        FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = open(FOLDER / f"{number}.json", "a+")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return cls(number, file)

    def read(self):
        """What `write` kept, ``{}`` if nothing."""
        self._file.seek(0)
        with contextlib.suppress(ValueError):
            return json.loads(self._file.read() or "{}")
        return {}  # Its writer was killed meanwhile.

    def write(self, **facts):
        """Keeps facts about the lab for other processes."""
        self._file.seek(0)
        self._file.truncate()
        json.dump(facts, self._file)
        self._file.flush()

    def release(self):
        self._file.close()

    def remove_namespaces(self):
        """Ends what runs in the lab's namespaces and removes them; returns their names."""
        names = [name for name in _namespaces() if _number_of(name) == self.number]
        for name in names:
            _end_processes(name)
        for name in names:
            # Links and queues go with the namespaces that they are in.
            run("ip", "netns", "delete", name, check=False)
        left = [name for name in names if name in _namespaces()]
        if left:
            raise LabError(f"cannot remove the namespaces {', '.join(left)}")
        self.write()
        return names


def claim_free():
    """Removes what killed runs have left, and returns the `Claim` on a free number.

    Returns:
        ``(claim, names)``, the names of the namespaces that were removed.
    """
    removed = remove_leftovers()
    for number in range(_MOST_LABS):
        claim = Claim.take(number)
        if claim is None:
            continue
        if not claim.read().get("keep"):
            return claim, removed
        claim.release()
    raise LabError(
        f"{_MOST_LABS} labs are up; take some down: python -m experiments.allreduce.lab down"
    )


def remove_leftovers():
    """Removes the labs of killed runs; returns the names of the namespaces removed."""
    removed = []
    for number in sorted({_number_of(name) for name in _namespaces()} - {None}):
        claim = Claim.take(number)
        if claim is None:
            continue
        try:
            if not claim.read().get("keep"):
                removed += claim.remove_namespaces()
        finally:
            claim.release()
    return removed


def kept():
    """The numbers of the labs that ``lab up`` has made."""
    numbers = []
    for path in FOLDER.glob("*.json"):
        with contextlib.suppress(ValueError, OSError):
            if json.loads(path.read_text() or "{}").get("keep"):
                numbers.append(int(path.stem))
    return sorted(numbers)


def _namespaces():
    return sorted(os.listdir(_NETNS)) if _NETNS.is_dir() else []


def _number_of(name):
    match = re.fullmatch(r"tfs(\d+)(?:w\d+|net)", name)
    return int(match[1]) if match else None


def _end_processes(name):
    """A namespace lives as long as a process in it."""
    until = time.monotonic() + 5
    while pids := run("ip", "netns", "pids", name, check=False).split():
        if time.monotonic() > until:
            raise LabError(f"processes in {name} do not end: {', '.join(pids)}")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.05)
