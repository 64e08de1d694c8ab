"""Which search runs a trial, whether that search still lives, and what it leaves behind."""

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
import uuid
from pathlib import Path

from tfscale.tuning.settings import SILENCE_SECONDS

_SCRATCH = "tfscale-search-"


class Owner:
    """This search as others see it: its machine, process, scratch folder, and a lock file.

    The system drops the lock with the process, however that ends, so a search on the same
    machine knows at once; those on others see that the heartbeat has stopped.

    Args:
        folder: path of the search, for the lock file.
        study: `str` that no other study has. Searches on one folder must have the same: they
            would move each other's run folders aside.

    Raises:
        ValueError: on entering: a search on another study uses the folder now.

    Example:

    >>> with Owner("runs/tuning", store.id) as owner:
    ...     describe(owner.card)
    'the search of process 4711 on here (taken for dead after 60 s of silence)'
    """

    def __init__(self, folder, study):
        folder = Path(folder).resolve() / ".searches"
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._study = study
        self._file = open(self._path, "w")  # noqa: SIM115
        self._file.write(study)
        self._file.flush()
        with contextlib.suppress(OSError):  # A file system without locks: the heartbeat remains.
            fcntl.flock(self._file, fcntl.LOCK_EX)  # Waits while another looks whether it is held.
        self.scratch = tempfile.mkdtemp(prefix=_SCRATCH)
        self.card = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "lock": str(self._path),
            "scratch": self.scratch,
        }

    def __enter__(self):
        # Each has said its own before it looks, so that of two at once one sees the other.
        for path in self._path.parent.iterdir():
            if _study_of_living(path) not in (None, self._study):
                self.__exit__()
                raise ValueError(
                    f"{path.parent.parent} is in use by a search on another storage, of process "
                    f"{path.name.partition('-')[0]}; give another --folder or --name"
                )
        return self

    def __exit__(self, *_):
        _remove(self.card)
        self._file.close()


def _study_of_living(path):
    """What the search with this lock file works on; None if it is dead."""
    with contextlib.suppress(OSError), open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read()
    return None


@contextlib.contextmanager
def found_dead(card):
    """Yields whether the search with this card is known to be dead.

    Its lock is held meanwhile, and what it left behind is removed afterwards.

    Of several searches that look, one finds so; the others see a lock that is held. A search on
    another machine, or whose lock file is gone, is not known to be.
    """
    dead = False
    with contextlib.ExitStack() as stack:
        if card["host"] == socket.gethostname():
            with contextlib.suppress(OSError):
                file = stack.enter_context(open(card["lock"]))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                dead = True
        yield dead
        if dead:
            _remove(card)


def _remove(card):
    if os.path.basename(card["scratch"]).startswith(_SCRATCH):
        shutil.rmtree(card["scratch"], ignore_errors=True)
    with contextlib.suppress(OSError):
        os.unlink(card["lock"])


def describe(card):
    """A card for people."""
    if card is None:
        return "a search that has not said which"
    return (
        f"the search of process {card['pid']} on {card['host']} (taken for dead after "
        f"{SILENCE_SECONDS} s of silence)"
    )
