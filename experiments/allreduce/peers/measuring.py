"""What every peer's worker program measures, so that all methods are timed alike.

It runs in the peers' environments: nothing but the standard library.
"""

import json
import os
import time
from pathlib import Path

from experiments.allreduce.lab import parse_counters

WARM_UP = 4  # DDP settles its buckets after the first step; PowerSGD begins with the third.


def sent_bytes():
    """Bytes that this worker's host has sent so far, headers included."""
    return parse_counters(Path("/proc/net/dev").read_text()).sent


def measure(step, barrier, repeats):
    """Times `step`, which has returned only when the reduced gradients are there.

    Args:
        step: function without arguments.
        barrier: function without arguments that returns when all workers have called it.
        repeats: `int`, measured calls, after a few that are not.

    Returns:
        `dict` with ``"seconds"`` (list, one for each repeat) and, as means per repeat,
        ``"cpu_seconds"`` (user and system, all threads) and ``"sent_bytes"``.
    """
    for _ in range(WARM_UP):
        step()
    seconds, cpu = [], 0.0
    barrier()
    first = sent_bytes()
    for _ in range(repeats):
        barrier()
        start, used = time.perf_counter(), time.process_time()
        step()
        seconds.append(time.perf_counter() - start)
        cpu += time.process_time() - used
    barrier()  # What a worker sends may still be on its way when it has received all of its own.
    sent = sent_bytes() - first
    return {"seconds": seconds, "cpu_seconds": cpu / repeats, "sent_bytes": sent / repeats}


def settings():
    """What the launcher asks of this worker: rank, workers, method, repeats, shapes."""
    return json.loads(os.environ["TFSCALE_PEER"])


def report(measured):
    """Hands the result to the launcher, all at once."""
    path = Path(settings()["report"])
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(measured))
    partial.rename(path)


def expect(value, expected, what):
    """Ends the worker if an all-reduce gave something else than the sum: its time is no time."""
    error = abs(float(value) - expected) / abs(expected)
    if not error < 2e-3:
        raise SystemExit(f"{what} is {float(value)!r} after the all-reduce, expected {expected!r}")
