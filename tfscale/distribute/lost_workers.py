"""Names the worker that TensorFlow's errors are about when one is lost.

Its messages name tasks, if anybody: the error of a worker whose own link was cut is a bare
"Deadline Exceeded" of a heartbeat.
"""

import re
import time

import tensorflow as tf

from tfscale.cluster import ClusterConfig
from tfscale.distribute import _tf_private

# What gRPC says of a connection that cannot be made or has broken, or that its peer closed.
_REASONS = (
    "failed to connect",
    "connection (?:reset|refused|aborted|closed|timed out)",
    "caused connection abort",
    "broken pipe",
    "socket closed",
    "(?:host|network) is (?:down|unreachable)",
    "no route to host",
    "(?:recvmsg|sendmsg|getsockopt)[ :(]",
    "endpoint (?:closing|shutdown|closed)",
    "transport (?:closed|is closing)",
    "stream removed",
    "goaway",
    "keepalive (?:watchdog|ping) timeout",
    "ping timeout",
    "deadline exceeded",
)
# The reason and, on the next line, who was called. A worker that has got such an error passes it
# on to those who call it: they would name it too if the two lines did not have to be neighbours.
_UNREACHABLE = re.compile(
    rf"(?i:{'|'.join(_REASONS)})[^\n]*\n"
    r"[^\n]*remote target /job:(\w+)/replica:0/task:(\d+) while"
)
_NO_ANSWER = re.compile(
    r"Deadline Exceeded\s+RPC: /tensorflow\.CoordinationService/"
    r"|Failed to send RPC to coordination service|Leader incarnation ID mismatch"
)
_SILENT = re.compile(r"Task /job:(\w+)/replica:0/task:(\d+) heartbeat timeout")
_UNHEALTHY = re.compile(r"^\s*/job:(\w+)/replica:0/task:(\d+)\s*$", re.M)
# For what the first worker tells the others, on a busy machine.
_SECONDS_TO_HEAR = 1.0


def explain_lost_worker(error):
    """Returns a sentence that names who was lost, or None if the error is about something else.

    Args:
        error: an exception, or its text, as TensorFlow raises it on a worker of a cluster when
            another one ends or does not answer.

    Returns:
        `str` that begins with the name of the lost worker, and its address where ``TF_CONFIG``
        gives it.

    Example:
        >>> try:
        ...     strategy.run(step)  # `fit` says it by itself
        ... except tf.errors.OpError as error:
        ...     raise SystemExit(explain_lost_worker(error) or error)
        worker 1 (10.0.0.2:2222) has ended or does not answer any more, so ...
    """
    text = error if isinstance(error, str) else getattr(error, "message", None) or str(error)
    if silent := _SILENT.search(text):
        return (
            f"{_name(*silent.groups())} was silent for longer than heartbeat_seconds: it was "
            "stopped, or its link was down. The others have given it up, so all workers end; "
            "start them again"
        )
    if "unhealthy" in text:
        lost = _UNHEALTHY.findall(text)
    elif _NO_ANSWER.search(text):
        lost = [None]  # What each worker reports to lives in the first one.
    else:
        lost = _UNREACHABLE.findall(text)
        lost = lost and (_given_up_before() or lost)
    if not lost:
        return None
    _let_the_others_hear()
    names = ", ".join(dict.fromkeys(_name(*task) if task else _first() for task in lost))
    return (
        f"{names} has ended or does not answer any more, so this worker ends as well; its own "
        "log has the reason. If it still runs, this worker's own link is down. Start all workers "
        "again"
    )


def _given_up_before():
    """The tasks that the cluster had given up already; known in its first worker only.

    The others have heard of them and end too. To one who hears of that end first, these look
    like the lost ones.
    """
    config = _config()
    if not _is_first(config):
        return []
    jobs = [("chief", 1)] if config.has_chief else []
    jobs.append(("worker", config.num_workers - len(jobs)))
    try:
        errors = _tf_private.worker_errors(jobs)
    except tf.errors.OpError:
        return []
    return _SILENT.findall("\n".join(errors.values()))


def _let_the_others_hear():
    """Keeps the first worker alive for a moment: it is where the others hear who is lost from."""
    config = _config()
    if _is_first(config) and config.num_workers > 2:
        time.sleep(_SECONDS_TO_HEAR)


def _is_first(config):
    return config.is_leader and config.is_distributed and _tf_private.has_key_value_store()


def _first():
    return _name("chief" if _config().has_chief else "worker", 0)


def _name(job, task):
    config, task = _config(), int(task)
    index = task + (1 if job == "worker" and config.has_chief else 0)
    if job not in ("chief", "worker") or config.num_workers <= max(1, index):
        return f"{job} {task}"  # Nobody knows its address here.
    return f"worker {index} ({config.workers[index]})"


def _config():
    try:
        return ClusterConfig.from_env()
    except ValueError:
        return ClusterConfig.single()
