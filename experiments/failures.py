"""How the training program says what went wrong: one line, in place of a traceback."""

import contextlib
import fcntl
import os
import re
import signal
import sys


def report(error):
    """Says on standard error why the program ends; TFSCALE_TRACEBACK=1 asks for tracebacks.

    Returns:
        the exit code, or None for an error that nobody foresaw: it should be raised.
    """
    if isinstance(error, KeyboardInterrupt):
        _say("stopped by Ctrl-C; the same command goes on from the last checkpoint")
        return 128 + signal.SIGINT
    expected = isinstance(error, (ValueError, OSError, RuntimeError)) or is_from_tensorflow(error)
    if os.environ.get("TFSCALE_TRACEBACK") or not expected:
        return None
    _say(f"error: {explain(error)}")
    if is_from_tensorflow(error):
        _say("TFSCALE_TRACEBACK=1 shows where it was raised")
    return 1


def explain(error):
    """The text of an error; that of TensorFlow for a lost worker in our words."""
    from tfscale.distribute import explain_lost_worker  # loads TensorFlow, which --help does not

    text = getattr(error, "message", None) or str(error)
    if lost := explain_lost_worker(text):
        return f"{lost}: they go on from the last checkpoint"
    if raised := re.search(r"^\w+Error: (.+?)\nTraceback \(most recent", text, re.M | re.S):
        return raised[1].strip()  # By Python code inside the graph: the input names a bad record.
    return f"{type(error).__name__}: {text[:2000]}" if is_from_tensorflow(error) else text


def is_from_tensorflow(error):
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(error, tensorflow.errors.OpError)


@contextlib.contextmanager
def run_folder(folder):
    """Makes the folder of a run and keeps other runs of this machine out of it meanwhile.

    Two runs in one folder would remove each other's checkpoints. The system drops the lock with
    the process, however that ends.

    Raises:
        OSError: the folder cannot be written, which would else be found minutes later; or
            another run is using it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "a")  # noqa: SIM115
    except OSError as error:
        raise OSError(f"--model_dir={folder} cannot be written: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(
                f"--model_dir={folder} is in use by another run, which has not ended yet; wait "
                "for it, stop it, or take another folder"
            ) from None
        except OSError:
            pass  # A file system without locks.
        yield


def check_same_classes(train, held_out):
    """Raises ValueError where the labels of two data contracts mean different things."""
    if train.class_names and held_out.class_names not in ((), train.class_names):
        raise ValueError(
            f"split {train.split!r} has the classes {_shorten(train.class_names)}, but split "
            f"{held_out.split!r} has {_shorten(held_out.class_names)}: a label would mean one "
            "thing in training and another in evaluation. Prepare both from one source"
        )


def _shorten(names, shown=8):
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if names[shown:] else "")


def _say(text):
    print(text, file=sys.stderr, flush=True)
