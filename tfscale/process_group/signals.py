"""Signals that ask a program to stop, noted in place of obeyed: it stops its children first."""

import contextlib
import signal
import threading

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def caught():
    """Gives a list to which SIGINT, SIGTERM and SIGHUP are added as they come.

    Those that are ignored stay so, and outside of the main thread none are caught.

    Example:

    >>> with caught() as signals:
    ...     os.kill(os.getpid(), signal.SIGTERM)
    >>> signals == [signal.SIGTERM]
    True
    """
    signals, previous = [], {}
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup, or a shell's background.
                handler = lambda number, frame: signals.append(number)  # noqa: E731
                previous[number] = signal.signal(number, handler)
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
