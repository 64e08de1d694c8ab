"""The database of a search: SQLite in its folder, or what a URL names."""

import contextlib
import fcntl
import sqlite3
import warnings
from pathlib import Path

import optuna
import sqlalchemy

from tfscale.tuning.settings import HEARTBEAT_SECONDS, SILENCE_SECONDS

# Where it has another name than the module.
_PACKAGES = {
    "MySQLdb": "mysqlclient",
    "psycopg": "'psycopg[binary]'",
    "psycopg2": "psycopg2-binary",
}


def open_storage(settings):
    """Returns the `optuna.storages.RDBStorage` of a search; makes its tables where they are not.

    Raises:
        ValueError: it cannot be opened; names it, without its password.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    url, options = settings.storage, {"pool_pre_ping": True}
    # SQLite has one writer at a time: the others wait.
    wait = {"timeout": 60}
    try:
        if url is None:
            # Not by its URL: what becomes of % and ? there depends on the version of SQLAlchemy.
            file = storage_file(settings)
            url = f"sqlite:///{file.name}"
            options = {"creator": lambda: sqlite3.connect(file, check_same_thread=False, **wait)}
        elif sqlalchemy.make_url(url).get_backend_name() == "sqlite":
            options = {"connect_args": wait}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.storages.RDBStorage(
                url,
                engine_kwargs=options,
                heartbeat_interval=HEARTBEAT_SECONDS,
                grace_period=SILENCE_SECONDS,
            )
    except (sqlalchemy.exc.SQLAlchemyError, ImportError, RuntimeError) as error:
        text = str(error).splitlines()[0]
        raise ValueError(
            f"the storage {shown(settings)} cannot be opened: {type(error).__name__}: "
            + "; ".join(filter(None, [text.rstrip("."), way_out(error, settings)]))
        ) from error


def way_out(error, settings):
    """What to do about an error of the storage; None where that is not known."""
    text, module = str(error), getattr(error.__cause__, "name", None)
    if isinstance(error, ImportError) and module:
        return f"pip install {_PACKAGES.get(module, module)}"
    if any(sign in text for sign in ("malformed", "not a database", "Could not decode")):
        return (
            "it is damaged: put a copy of it back, or move it away and start anew with another "
            f"--folder; what the runs left stays in {settings.home}/trial-*/"
        )
    if "disk I/O error" in text or "disk is full" in text:
        return "has its disk space left? If so, the same command goes on with the search"
    return None


def storage_file(settings):
    """The path of the database where no URL names another."""
    return Path(settings.folder).resolve() / "trials.db"


def shown(settings):
    """The storage for people: without its password."""
    if settings.storage is None:
        return str(storage_file(settings))
    try:
        return sqlalchemy.make_url(settings.storage).render_as_string(hide_password=True)
    except sqlalchemy.exc.ArgumentError:
        return "(which is no URL such as postgresql://user:password@host/database)"


@contextlib.contextmanager
def alone(settings):
    """Keeps other searches in this folder out: of making tables, of queueing the same trial."""
    with open(Path(settings.folder) / ".opening", "w") as file:
        with contextlib.suppress(OSError):  # A file system without locks.
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
