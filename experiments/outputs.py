"""Files that a measurement leaves: looked at before it starts, and written."""

import json
from pathlib import Path


def check_writable(args, *flags, folders=()):
    """Raises ValueError for a file or folder that could not be written after the measurement.

    Args:
        args: of `argparse`.
        flags: `str`, names of arguments that name a file, or are None.
        folders: those that name a folder.
    """
    for flag in (*flags, *folders):
        path = getattr(args, flag)
        if not path:
            continue
        file = Path(path) / ".writable" if flag in folders else Path(path)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            is_new = not file.exists()
            file.open("ab").close()
            if is_new:
                file.unlink(missing_ok=True)  # another program's check may have
        except (FileExistsError, NotADirectoryError) as error:
            raise ValueError(
                f"--{flag}={path} can't be written: {file.parent} is not a folder; give another"
            ) from error
        except OSError as error:
            raise ValueError(
                f"--{flag}={path} can't be written: {error.strerror}; give another"
            ) from error


def check_matplotlib():
    """Raises ImportError with the way out where plots cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "plots need matplotlib, which is not installed: pip install matplotlib"
        ) from error


def write_json(path, rows, **facts):
    """Writes the list of rows; `facts` about the run (workers, rate, ...) go into each of them."""
    write_whole(Path(path), json.dumps([{**row, **facts} for row in rows], indent=1) + "\n")


def write_whole(path, text):
    """Writes a text file: whole, or not at all.

    Args:
        path: `Path`, in a folder that is made where it is missing.
        text: `str`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)
