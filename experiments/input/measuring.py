"""What every pipeline's program measures, so that all are timed alike.

It runs in the peers' environments: nothing but the standard library.
"""

import json
import os
import sys
import time
from pathlib import Path

LEAST_BATCHES = 8  # of a turn, however slow: work under way at its ends counts for half a batch
_TICK = os.sysconf("SC_CLK_TCK")


def settings():
    """What the benchmark asks of this program: pipeline, files, image_size, batch, threads, ..."""
    return json.loads(sys.argv[1])


def cpu_seconds():
    """CPU seconds, user and system, of this process and of all that it has started."""
    return time.process_time() + sum(_ticks(pid) for pid in _descendants()) / _TICK


def _stat(pid):
    # The name in parentheses may hold anything.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _ticks(pid):
    try:
        # Its own, and those of its children that have ended.
        return sum(map(int, _stat(pid)[11:15]))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _descendants():
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                children.setdefault(int(_stat(entry)[1]), []).append(int(entry))
            except (FileNotFoundError, ProcessLookupError):
                continue
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def serve(batches, **facts):
    """Measures on demand, until standard input ends.

    Each line of standard input is ``DRAIN SECONDS``: that many batches are taken and not
    counted, as what was prefetched while nobody looked cost nothing; then batches are taken for
    that time. The answer is a line of JSON on what was standard output when the program began.

    Args:
        batches: endless iterator of batches of pictures: arrays or tensors [n, ...].
        **facts: told to the benchmark with the first answer, such as ``mean_area``.
    """
    # Libraries print what they like; only answers go to the benchmark.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**content):
        print(json.dumps(content), file=answers, flush=True)

    first = next(batches)
    dtype = str(first.dtype).removeprefix("torch.").removeprefix("<dtype: '").removesuffix("'>")
    answer(dtype=dtype, shape=list(map(int, first.shape)), mean=_mean(first), **facts)
    for line in sys.stdin:
        drain, seconds = int(line.split()[0]), float(line.split()[1])
        for _ in range(drain):
            next(batches)
        images = count = 0
        start, used = time.perf_counter(), cpu_seconds()
        while count < LEAST_BATCHES or time.perf_counter() - start < seconds:
            images += len(next(batches))
            count += 1
        wall, used = time.perf_counter() - start, cpu_seconds() - used
        answer(images=images, wall_seconds=wall, cpu_seconds=used)


def _mean(batch):
    """The mean pixel of the first picture, by which a pipeline that gives none is found out."""
    picture = batch[0]
    picture = picture.numpy() if hasattr(picture, "numpy") else picture
    return float(picture.mean())
