"""Before TensorFlow starts: the workers meet, or somebody says at once why they cannot.

TensorFlow itself waits in silence for a worker that never comes, and does not even end on
SIGTERM while it does (tensorflow/tensorflow#46931, #42498).
"""

import json
import os

from tfscale.addresses import split_address
from tfscale.rendezvous.channels import MAX_LINE_BYTES
from tfscale.rendezvous.leader import Leader
from tfscale.rendezvous.member import Member
from tfscale.rendezvous.proxies import proxy_warning

_MET = {}  # Of each cluster: what was declared when its workers met in this process.


class PreflightError(RuntimeError):
    """The workers did not meet, or do not fit together; the text is one paragraph for people."""


def _print_line(text):
    print(text, flush=True)  # A pipe would keep it back just when somebody waits for it.


def meet(
    config,
    declared,
    timeout_seconds=120,
    log=_print_line,
    *,
    again=False,
    first_notice_seconds=5.0,
    notice_every_seconds=10.0,
    environ=None,
):
    """Waits until all workers are there, reachable, and agree on what they declare.

    Every worker listens on its own address and calls worker 0, which calls back. All end with
    the same verdict, and the ports are free again for TensorFlow's servers. A second call in
    the same process for the same cluster returns at once, unless `again` asks for more; so do a
    single worker and an evaluator.

    Args:
        config: `tfscale.cluster.ClusterConfig`.
        declared: mapping of `str` to `str`, equal on all workers if the job is right: versions,
            devices per worker, arguments.
        timeout_seconds: `float`, how long to wait. Defaults to 120. The variable
            ``TFSCALE_START_TIMEOUT``, which the launcher's ``--start_timeout`` sets, overrides it.
        log: function of one line of text. Defaults to printing it.
        again: `bool`, meet a second time if `declared` has something that was not compared yet.
            Only before TensorFlow's server has taken the port, and on all workers alike.
            Defaults to `False`.
        first_notice_seconds: `float`, when a line first says who is missing. Defaults to 5.
        notice_every_seconds: `float`, time between the lines after that. Defaults to 10.
        environ: mapping of environment variables. Defaults to `os.environ`.

    Raises:
        PreflightError: somebody is missing after `timeout_seconds`, or the workers disagree.

    Example:

    >>> from tfscale.cluster import ClusterConfig
    >>> meet(ClusterConfig.single(), {"devices_per_worker": "2"})   # nobody to wait for
    """
    declared = {str(name): str(value) for name, value in declared.items()}
    if config.is_evaluator or config.num_workers == 1:
        return
    if has_met(config) and not (again and declared.items() - _MET[_key(config)].items()):
        return
    environ = os.environ if environ is None else environ
    timeout_seconds = _timeout(environ, timeout_seconds)
    size = len(json.dumps(declared))
    if size > MAX_LINE_BYTES // 2:
        raise ValueError(f"declared holds {size} bytes; allowed are {MAX_LINE_BYTES // 2}")
    warning = proxy_warning([split_address(worker)[0] for worker in config.workers], environ)
    if warning:
        log(f"tfscale: {warning}")
    role = Leader if config.worker_index == 0 else Member
    participant = role(
        config, declared, timeout_seconds, log, first_notice_seconds, notice_every_seconds
    )
    verdict = participant.run()
    if verdict != "go":
        raise PreflightError(_explain(config, verdict, timeout_seconds, warning))
    if participant.noticed and config.is_leader:
        log(f"tfscale: all {config.num_workers} workers are here.")
    _MET[_key(config)] = _MET.get(_key(config), {}) | declared


def has_met(config):
    """Whether `meet` has succeeded for this cluster in this process."""
    return _key(config) in _MET


def _key(config):
    return os.getpid(), config


def _timeout(environ, timeout_seconds):
    text = environ.get("TFSCALE_START_TIMEOUT") or timeout_seconds
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(
            f"the start timeout is {text!r} (TFSCALE_START_TIMEOUT or timeout_seconds); it must "
            "be a number of seconds above 0"
        )
    return seconds


def _explain(config, verdict, timeout_seconds, warning):
    kind, _, reason = verdict.partition(": ")
    me = f"This is worker {config.worker_index} of {config.num_workers} ({config.address})."
    if kind == "refused":
        return (
            f"The workers do not fit together, so the job does not start: {reason}. Start all of "
            f"them with the same program, arguments, versions and list of workers. {me}"
        )
    proxy = f" A proxy may be in the way: {warning}." if warning else ""
    return (
        f"The job does not start: after {timeout_seconds:g} s this still lacks: {reason}. Likely "
        "causes: the worker was not started or has failed (see its own log); TF_CONFIG holds a "
        "wrong address, port or task index; a firewall blocks the port; the start took longer "
        f"than the timeout (--start_timeout).{proxy} {me}"
    )
