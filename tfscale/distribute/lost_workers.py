"""Names the worker that TensorFlow's errors are about when one is lost.

Its messages name tasks, if anybody: the error of a worker whose own link was cut is a bare
"Deadline Exceeded" of a heartbeat.
"""

import re

from tfscale.cluster import ClusterConfig

# The reason and, on the next line, who was called. A worker that has got such an error passes it
# on to those who call it: they would name it too if the two lines did not have to be neighbours.
_UNREACHABLE = re.compile(
    r"(?:failed to connect|Connection re(?:set|fused)|Socket closed|Deadline Exceeded)[^\n]*\n"
    r"[^\n]*remote target /job:(\w+)/replica:0/task:(\d+) while"
)
_NO_ANSWER = re.compile(r"Deadline Exceeded\s+RPC: /tensorflow\.CoordinationService/")
_SILENT = re.compile(r"Task /job:(\w+)/replica:0/task:(\d+) heartbeat timeout")
_UNHEALTHY = re.compile(r"^\s*/job:(\w+)/replica:0/task:(\d+)\s*$", re.M)


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
    if not lost:
        return None
    names = ", ".join(dict.fromkeys(_name(*task) if task else _first() for task in lost))
    return (
        f"{names} has ended or does not answer any more, so this worker ends as well; its own "
        "log has the reason. If it still runs, this worker's own link is down. Start all workers "
        "again"
    )


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
