"""What holds a run up, in plain words: the step, or its input, and what of the input."""

import dataclasses
import logging
import threading
import weakref

from tfscale import cores
from tfscale.data import probe

WAITING = 0.10  # share of a step above which a run is called input-bound
STEP = 0.10  # of the share, by which a verdict must change to be told again
BUSY = 0.7  # share of the cores' time

logger = logging.getLogger("tfscale")
_lock = threading.Lock()
_sources = []


@dataclasses.dataclass
class _Source:
    """What a probe needs; nothing is kept alive by it."""

    contract: weakref.ref
    store: weakref.ref
    worker: int
    calls: int
    image_size: tuple
    cached: bool
    tuned: bool
    service: bool
    costs: probe.Costs | None = None
    probes: int = 0

    @property
    def alive(self):
        return self.contract() is not None and self.store() is not None


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What holds a run up.

    Attributes:
        share: float, of the step's time, that it waited for input.
        cause: "compute", "filling", "reading", "decoding", "busy", "service" or "unknown".
        text: str.
    """

    share: float
    cause: str
    text: str

    def differs(self, other):
        """Whether it is worth telling after `other` (or None): another cause, or 10 points."""
        return other is None or self.cause != other.cause or abs(self.share - other.share) > STEP


def register(
    contract, worker, store, calls, image_size, *, cached=False, tuned=True, service=False
):
    """Tells `judge` where the pictures of a training dataset come from.

    Args:
        contract: `contract.DataContract`. It and the store are held weakly.
        worker: `int`.
        store: `cache.Store`.
        calls: `int`, pictures read and decoded at a time.
        image_size: (height, width), pixels.
        cached: `bool`, whether `store` keeps records. Defaults to False.
        tuned: `bool`, whether `calls` was measured. Defaults to True.
        service: `bool`, whether a data service decodes. Defaults to False.
    """
    with _lock:
        _sources[:] = [source for source in _sources if source.alive]
        _sources.append(
            _Source(
                weakref.ref(contract),
                weakref.ref(store),
                worker,
                calls,
                tuple(image_size),
                cached,
                tuned,
                service,
            )  # fmt: skip
        )


def judge(interval):
    """Says what holds a run up. The first time input does, records are tried for half a second.

    Args:
        interval: has `steps`, `seconds`, `input_wait_fraction` and `cpu_seconds`, as
            `callbacks.rates.Interval`.

    Returns:
        `Verdict`. Without a dataset of this package its text is about the share alone.

    Example:
        >>> from tfscale.callbacks.rates import Interval
        >>> judge(Interval(steps=10, seconds=1.0, waited_seconds=0.01)).text
        'compute-bound: 1 % of the step is waiting for input'
    """
    share = interval.input_wait_fraction
    waiting = f"{100 * share:.0f} % of the step is waiting for"
    if share <= WAITING:
        return Verdict(share, "compute", f"compute-bound: {waiting} input")
    with _lock:
        source = next((s for s in reversed(_sources) if s.alive), None)
    if source is None:
        return Verdict(share, "unknown", f"input-bound: {waiting} input")
    cause, why = _why(source, interval)
    return Verdict(share, cause, f"input-bound: {waiting} pictures; {why}")


def _why(source, interval):
    """Returns `(cause, text)`."""
    contract, store = source.contract(), source.store()
    if source.service:
        return "service", "the data service is the limit; start more of its workers"
    # A cache that was being filled at the first probe is tried once more.
    if source.costs is None or (source.probes == 1 and source.cached):
        source.probes += 1
        source.costs = probe.measure(
            contract, source.worker, store, source.calls, source.image_size
        )
    costs, mine = source.costs, cores.usable_cores()
    share = contract.global_batch_size / contract.num_workers
    rate = interval.images_per_second(share)
    reading = rate * costs.read_seconds
    decoding = rate * costs.decode_seconds / mine
    busy = interval.cpu_seconds / interval.seconds / mine
    if reading >= 0.5 and not reading < decoding:
        return "reading", _reading(source, store, costs)
    if decoding >= min(0.5, 0.5 * max(busy, BUSY)):
        return "decoding", _decoding(store, costs, mine)
    if source.cached and source.probes == 1 and busy < BUSY:
        # What was tried is in the cache, which was being filled while the run waited.
        return "filling", "the cache was being filled; what comes next is read from it"
    numbers = (
        f"reading takes {_percent(reading)} of its time, decoding {_percent(decoding)} of the "
        f"{_cores(mine)}, this process as a whole {_percent(busy)}"
    )
    if busy >= BUSY:
        return "busy", (f"the cores are busy with the step itself ({numbers})")
    return "unknown", (
        f"neither reading nor decoding is the limit ({numbers}); other programs may use this "
        "machine"
    )


def _reading(source, store, costs):
    if costs.read_seconds == float("inf"):
        text = f"reading is the limit (no picture came in {probe.FIRST_SECONDS:.0f} s"
    else:
        text = (
            f"reading is the limit ({_milliseconds(costs.read_seconds)} each, "
            f"{costs.read_bytes / costs.read_seconds / 1e6:.3g} MB/s"
        )
    text += f", {source.calls} at a time); "
    if source.cached:
        text += "a cache is filled in the first epoch: if this goes on, its budget is too small"
    else:
        text += "a cache (--cache=disk or memory) would read each picture only once"
    return text + ("; more at a time may help (--threads)" if not source.tuned else "")


def _decoding(store, costs, mine):
    if store.decoded:
        return (
            f"cropping and resizing is the limit ({_milliseconds(costs.decode_seconds)} of CPU "
            f"each, {_cores(mine)})"
        )
    text = (
        f"decoding is the limit ({_milliseconds(costs.decode_seconds)} of CPU each, "
        f"{_cores(mine)}); "
    )
    gain = costs.decode_seconds / costs.copy_seconds
    if gain >= 1.2:
        return text + (
            f"a short-side-{costs.short_side} copy would decode {gain:.1f} times as fast: "
            f"python -m tfscale.data.prepare --short_side={costs.short_side} "
            f"--quality={probe.QUALITY}"
        )
    return text + "--cache=decoded or a data service on other machines would help"


def _cores(count):
    return f"{count} core{'s' if count > 1 else ''}"


def _percent(share):
    return f"{100 * share:.0f} %"


def _milliseconds(seconds):
    return f"{1000 * seconds:.2g} ms" if seconds < 0.01 else f"{1000 * seconds:.0f} ms"
