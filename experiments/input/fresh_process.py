"""Runs a function in a process of its own, so that nothing is left over from what ran before."""

import multiprocessing
import os
import signal
import sys
import traceback


def call(function, settings, what):
    """Returns ``function(settings)`` of a new process, which ends with this call whatever happens.

    Args:
        function: of a module that can be imported.
        settings: whatever can be pickled.
        what: `str`, what an error calls the process.

    Raises:
        RuntimeError: with what the function raised, or if the process ends before it answers.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # input is the CPU's work
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(function, settings, sender))
    process.start()
    sender.close()
    try:
        done, value = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(
            f"{what}: its process ended before it was done, with exit code {process.exitcode} "
            "(-9: killed, perhaps out of memory)"
        ) from None
    finally:
        process.kill()
        process.join()
    if not done:
        raise RuntimeError(f"{what}: {value}")
    return value


def _answer(function, settings, sender):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller gets it as well, and ends this
    try:
        sender.send((True, function(settings)))
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller reports it
        if not isinstance(error, ValueError | OSError):  # those say all that there is to know
            traceback.print_exc()
        sender.send((False, f"{type(error).__name__}: {error}"))


def end_on_sigterm():
    """Makes SIGTERM end this process as Ctrl-C does: what was begun is cleared away."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
