"""How many records are read and decoded at a time: measured at the start, and remembered.

On a fast disk decoding is the limit and one call for each core does: more share the same cores.
From a slow or remote source each call waits for its bytes most of the time, and many more calls
than cores are needed. tf.data never has more calls under way than its pool has threads, which
by default is the number of cores, whatever `num_parallel_calls` says; so the number chosen here
must also be that of a private pool.
"""

import dataclasses
import logging
import queue
import socket
import threading
import time

import tensorflow as tf

import tfscale
from tfscale import cores
from tfscale.data import arguments, thread_memory

usable_cores = cores.usable_cores

MOST = 64
GAIN = 1.1  # doubling goes on while it brings 10 %
NEAR = 0.95  # the fewest calls within 5 % of the fastest are kept
BUSY = 0.85  # share of the cores' time above which more calls cannot help
WAITING = 0.125  # share of a call's time on a core below which it only waits
PATIENCE = 5.0  # seconds for the first batch of a trial
TRIAL, WINDOW, TOTAL = 3.0, 0.3, 15.0  # seconds: longest trial, shortest measurement, all trials
FEW_RECORDS = 256

logger = logging.getLogger("tfscale")
_found = {}


def check(threads):
    """Returns `threads`, if it is "auto" or an integer from 1 to 1024.

    Raises:
        TypeError, ValueError: if it is not.

    Example:
        >>> check(4)
        4
    """
    if threads == "auto":
        return threads
    if isinstance(threads, str):
        raise ValueError(f'threads={threads!r}: wanted "auto" or an integer of at least 1')
    return arguments.integer("threads", threads, 1, 1024)


@tf.autograph.experimental.do_not_convert
def choose(threads, make_dataset, contract, image_size, **settings):
    """Returns the number of parallel calls for a dataset: what was asked for, or measured.

    Args:
        threads: `int`, or "auto".
        make_dataset: see `tuned_calls`.
        contract: `contract.DataContract`.
        image_size: (height, width), pixels.
        **settings: JSON-able, whatever else changes the speed of the source: the cache.

    Raises:
        TypeError, ValueError: see `check`.
    """
    if check(threads) != "auto":
        return threads
    source = contract.index.directory
    if contract.num_records < FEW_RECORDS and "://" not in source:
        calls = usable_cores()
        logger.info(
            "input threads [%s]: %d, the number of cores; %d records are too few to measure",
            contract.split, calls, contract.num_records,
        )  # fmt: skip
        return calls
    if source in _found:
        return _found[source]
    key = {
        "host": socket.gethostname(),
        "cores": usable_cores(),
        "source": source,
        "split": contract.split,
        "index": contract.index.digest(),
        "image_size": list(image_size),
        "tensorflow": tf.__version__,
        "tfscale": tfscale.__version__,
        **settings,
    }
    # Training and evaluation read the same source: it is measured once in a process.
    _found[source] = tuned_calls(make_dataset, key=key)
    return _found[source]


@tf.autograph.experimental.do_not_convert
def tuned_calls(make_dataset, candidates=None, key=None, file=None, log=logger.info):
    """Measures how many parallel calls a dataset needs, or recalls it.

    The candidates are tried in turn, each for a second or so, as long as one brings 10 % more
    images per second than the best before it, and cores are idle; where calls do little but
    wait, every other one is left out. The fewest calls within 5 % of the fastest are kept.

    Args:
        make_dataset: function of (calls, first step) that returns the dataset with so many
            parallel calls, of batches whose first part has a leading axis. Each trial starts at
            a step of its own: what an earlier one has read may be in a cache.
        candidates: ascending `int`s. Defaults to the usable cores and their doubles up to 64.
        key: JSON-able `dict` by which the result is remembered; None to measure always.
        file: path of the memory; None for `thread_memory.default_file()`.
        log: function of a line of text. Defaults to the logger "tfscale".

    Returns:
        `int`. If no batch comes in 5 s, the largest candidate: the source is slow.

    Example:
        >>> tuned_calls(lambda calls, step: tf.data.Dataset.range(9).batch(3), [2], log=print)
        input threads: 2
        2
    """
    candidates = list(candidates or doubled(usable_cores()))
    if key is not None:
        file = file or thread_memory.default_file()
        known = thread_memory.recall(file, key, log)
        if known:
            log(f"input threads: {known} (remembered in {file}; delete it to measure again)")
            return known
    if len(candidates) == 1:
        log(f"input threads: {candidates[0]}")
        return candidates[0]
    logger.info("input threads: measuring what the source needs, at most %.0f s", TOTAL)
    rates, remark, certain = _measure(make_dataset, candidates)
    calls = _kept(rates) if rates else candidates[0 if certain is None else -1]
    measured = ", ".join(f"{n}: {rate:,.0f}" for n, rate in rates.items())
    text = f"input threads: {calls}"
    notes = [f"measured {measured} images/s"] if rates else []
    notes += [remark] if remark else []
    text += f" ({'; '.join(notes)})"
    if key is not None and certain and thread_memory.remember(file, key, calls, rates, log):
        text += f"; remembered in {file}"
    log(text)
    return calls


def doubled(first, most=MOST):
    """Returns `first` and its doubles that are not above `most`.

    Example:
        >>> doubled(6)
        [6, 12, 24, 48]
    """
    found = [first]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    return found


def _kept(rates):
    fastest = max(rates.values())
    return min(calls for calls, rate in rates.items() if rate >= NEAR * fastest)


def _measure(make_dataset, candidates):
    """Returns `(rates, remark, certain)`.

    `certain`: True, or False where time was too short, or None after an error.
    """
    rates, step, end = {}, 0, time.monotonic() + TOTAL
    waiting = list(candidates)
    while waiting:
        calls = waiting.pop(0)
        trial = _Trial(make_dataset, calls, step)
        images = trial.run(end)
        if trial.error is not None:
            return rates, f"not measured further: {trial.error}", None
        if not images:
            waited = f"no batch in {PATIENCE:.0f} s"
            if not rates:
                return rates, f"not measured: {waited}, the source is slow", False
            return rates, f"{calls}: {waited}", False
        best = max(rates.values(), default=0)
        rates[calls] = images
        if images < GAIN * best:
            return rates, "", True
        if trial.cpu_share > BUSY:
            return rates, "all cores busy", True
        if time.monotonic() >= end:
            return rates, f"stopped after {TOTAL:.0f} s", False
        step += trial.batches + calls + 4  # beyond what its buffers had read ahead
        if trial.cpu_share * usable_cores() < WAITING * calls and len(waiting) > 1:
            waiting.pop(0)  # so far from busy that twice as many will not do
    return rates, "", True


@dataclasses.dataclass
class _Arrival:
    images: int
    seconds: float
    cpu_seconds: float


class _Trial:
    """One dataset, read for a second or so by a thread: a read that hangs must not hang us."""

    def __init__(self, make_dataset, calls, step):
        self.error, self.batches, self.cpu_share, self._calls = None, 0, 0.0, calls
        self._arrivals, self._stop = queue.SimpleQueue(), threading.Event()
        # The caller may be tracing a function, in which no dataset can be read.
        with tf.init_scope(), tf.device("CPU:0"):
            self._iterator = iter(make_dataset(calls, step))

    def run(self, end):
        """Returns images per second, until `end` at most; None if no batch came."""
        thread = threading.Thread(target=self._read, name="tfscale-input-trial", daemon=True)
        start = time.monotonic()
        begun = _Arrival(0, start, time.process_time())
        thread.start()
        seen = [begun]
        while not self._enough(seen):
            limit = start + (TRIAL if len(seen) > 1 else PATIENCE)
            try:
                arrival = self._arrivals.get(timeout=max(0, min(limit, end) - time.monotonic()))
            except queue.Empty:
                break
            if arrival is None:
                break
            seen.append(dataclasses.replace(arrival, images=seen[-1].images + arrival.images))
        self._stop.set()
        if len(seen) > 1:
            # Its last batch is under way; a new trial would share the source with it.
            thread.join(TRIAL)
        self.batches = len(seen) - 1
        if not self.batches:
            return None
        last = seen[-1]
        first = self._drained(seen)
        first = begun if first is None or first is last else first
        seconds = max(last.seconds - first.seconds, 1e-9)
        self.cpu_share = (last.cpu_seconds - first.cpu_seconds) / seconds / usable_cores()
        return (last.images - first.images) / seconds

    def _read(self):
        try:
            while not self._stop.is_set():
                batch = next(self._iterator, None)
                if batch is None:
                    break
                images = tf.nest.flatten(batch)[0].shape[0]
                self._arrivals.put(_Arrival(images, time.monotonic(), time.process_time()))
        except Exception as error:  # noqa: BLE001 - the run itself will meet it, and name it
            self.error = str(error).split("\n")[0][:200]
        finally:
            self._iterator = None
            self._arrivals.put(None)

    def _drained(self, seen):
        """The arrival after which nothing comes any more from buffers filled at the start."""
        return next((a for a in seen[2:] if a.images >= 2 * self._calls), None)

    def _enough(self, seen):
        first = self._drained(seen)
        if first is None:
            return False
        last = seen[-1]
        return last.images - first.images >= 4 * self._calls and (
            last.seconds - first.seconds >= WINDOW
        )
