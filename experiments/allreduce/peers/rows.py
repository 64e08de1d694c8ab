"""Runs a peer and makes the benchmark's row of what its workers measured."""

import statistics

from experiments.allreduce.peers import environments, launch, measuring
from experiments.allreduce.shapes import elements

# 25.6 M float32 take 6.5 s at 200 Mbit/s; a start with imports takes 10 to 60 s on a busy machine.
_START_SECONDS = 120
_SECONDS_PER_MEGABYTE = 1.0


def run(method, lab, workers, repeats, shapes, *, folder=None, timeout_seconds=None):
    """Times all-reduces of a peer on the links of the network lab.

    Args:
        method: `str`, one of `METHODS`: ``"gloo"``, ``"gloo+fp16"``, ``"gloo+powersgd"``,
            ``"horovod"``, ``"horovod+fp16"``.
        lab: the network lab, already up (see `launch.run_workers` for what is used of it);
            ``payload_bytes_per_second`` is what a link carries at most, None where unshaped.
        workers: `int`, number of workers, one device each.
        repeats: `int`, measured all-reduces.
        shapes: shapes of the float32 gradients that are summed.
        folder: where the environments are; see `environments.python_of`.
        timeout_seconds: `float`, when a peer that hangs is ended. Defaults to two minutes and
            one second for each megabyte that travels.

    Returns:
        `dict` with the benchmark's columns, or None, after a line that says so, if the peer's
        environment is missing.

    Raises:
        launch.PeerFailed: if a worker fails or hangs, with every worker's last lines.
    """
    python = environments.python_of(method, folder)
    if python is None:
        print(environments.how_to_install(method), flush=True)
        return None
    if timeout_seconds is None:
        megabytes = 4e-6 * elements(shapes)
        steps = repeats + measuring.WARM_UP + 1
        timeout_seconds = _START_SECONDS + _SECONDS_PER_MEGABYTE * megabytes * steps
    reports = launch.run_workers(method, python, lab, workers, repeats, shapes, timeout_seconds)
    wire_bytes = environments.METHODS[method].wire_bytes
    payload = wire_bytes and 2 * (workers - 1) / workers * wire_bytes * elements(shapes)
    return row(method, reports, payload, lab.payload_bytes_per_second)


def row(method, reports, payload=None, payload_bytes_per_second=None):
    """Makes the row of one method.

    An all-reduce is over when the slowest worker has it, so each repeat counts with its slowest
    worker. Bytes and CPU seconds are means per repeat and worker.

    Args:
        method: `str`, name of the method.
        reports: list of what the workers measured (see `measuring.measure`).
        payload: `float`, bytes that one worker has to send; None takes what it has sent.
        payload_bytes_per_second: `float`, what a link carries at most; None where that is not
            known, and then there is no share of it.

    Example:
        >>> report = {"seconds": [2.0], "cpu_seconds": 0.5, "sent_bytes": 105.0}
        >>> row("gloo", [report], payload=100.0, payload_bytes_per_second=100.0)["link_share"]
        0.5
    """
    slowest = [max(times) for times in zip(*(r["seconds"] for r in reports), strict=True)]
    median = statistics.median(slowest)
    sent = statistics.mean(r["sent_bytes"] for r in reports)
    share = None
    if payload_bytes_per_second:
        share = (payload or sent) / payload_bytes_per_second / median
    return {
        "method": method,
        "seconds_median": median,
        "seconds_min": min(slowest),
        "seconds_max": max(slowest),
        "bytes_per_link": sent,
        "link_share": share,
        "cpu_seconds": statistics.mean(r["cpu_seconds"] for r in reports),
    }
