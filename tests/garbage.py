"""Whether an object is given back: for tests that nothing keeps a model alive."""

import gc
import time


def assert_collected(reference, seconds=20):
    """Raises AssertionError, with what refers to it, if the object of a weakref stays alive.

    One collection is not enough: it does nothing while another thread is collecting, and
    TensorFlow's threads run Python too and may still end.
    """
    until = time.monotonic() + seconds
    gc.collect()
    while reference() is not None and time.monotonic() < until:
        time.sleep(0.05)
        gc.collect()
    if reference() is not None:
        referrers = [repr(r)[:200] for r in gc.get_referrers(reference())]
        raise AssertionError(f"{reference()!r} is kept alive by {referrers}")
