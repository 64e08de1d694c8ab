"""The database of a search: SQLite in its folder, or what a URL names."""

import contextlib
import fcntl
import warnings
from pathlib import Path

import optuna
import sqlalchemy

from tfscale.tuning.settings import HEARTBEAT_SECONDS, SILENCE_SECONDS


def open_storage(settings):
    """Returns the `optuna.storages.RDBStorage` of a search; makes its tables where they are not.

    Raises:
        ValueError: it cannot be opened; names it, without its password.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    url = settings.storage_url
    try:
        local = sqlalchemy.make_url(url).get_backend_name() == "sqlite"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.storages.RDBStorage(
                url,
                # SQLite has one writer at a time: the others wait.
                engine_kwargs={"connect_args": {"timeout": 60}}
                if local
                else {"pool_pre_ping": True},
                heartbeat_interval=HEARTBEAT_SECONDS,
                grace_period=SILENCE_SECONDS,
            )
    except (sqlalchemy.exc.SQLAlchemyError, ImportError, RuntimeError) as error:
        raise ValueError(
            f"the storage {shown(url)} cannot be opened: {type(error).__name__}: "
            f"{str(error).splitlines()[0]}"
        ) from error


def shown(url):
    """A URL for people: without its password."""
    try:
        return sqlalchemy.make_url(url).render_as_string(hide_password=True)
    except sqlalchemy.exc.ArgumentError:
        return "(which is no URL such as postgresql://user:password@host/database)"


@contextlib.contextmanager
def opening(settings):
    """Keeps other searches in this folder from making the tables at the same time."""
    with open(Path(settings.folder) / ".opening", "w") as file:
        with contextlib.suppress(OSError):  # A file system without locks.
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
