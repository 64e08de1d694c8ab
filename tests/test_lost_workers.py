"""Who is lost, read from the texts that TensorFlow 2.20 raised in each case; heartbeat_seconds."""

import json

import pytest

from tfscale.distribute import lost_workers
from tfscale.distribute.lost_workers import explain_lost_worker
from tfscale.distribute.strategy import create_strategy

UNHEALTHY = (
    "Graph execution error:\n\nCollective ops is aborted by: Error reported from "
    "/job:worker/task:{first}: The following tasks are unhealthy (stopped sending heartbeats):\n"
    "{tasks}\nThe tasks have crashed. Check the task logs for an earlier error"
)
CONNECTION = (
    "{what}\nAdditional GRPC error information from remote target /job:{job}/replica:0/task:{task}"
    " while calling /tensorflow.{call}:\n:UNKNOWN:Error received from peer"
)
HEARTBEAT = (
    "Collective ops is aborted by: Deadline Exceeded\n\nRPC: /tensorflow.CoordinationService/"
    "Heartbeat\nThe error could be from a previous operation. Restart your program to reset."
)
# Worker 1 was stopped, and goes on when worker 0 has ended.
NO_LEADER = (
    "Collective ops is aborted by: Failed to send RPC to coordination service. Either the leader "
    "task was preempted/died/restarted unexpectedly or this task is experiencing network issues.\n"
    "Additional GRPC error information from remote target /job:worker/replica:0/task:0 while "
    "calling /tensorflow.CoordinationService/Heartbeat:\n:UNKNOWN:Error received from peer"
)
SILENT = (
    "Collective ops is aborted by: Unexpected heartbeat request from an already-in-error task: "
    "/job:worker/replica:0/task:1 with existing error: UNAVAILABLE: Task /job:worker/replica:0/"
    "task:1 heartbeat timeout. This indicates that the remote task has failed"
)
REFUSED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:2: refused"
# Worker 1 was killed; worker 0 hears it itself and from worker 2, which still runs.
PASSED_ON = (
    "Collective ops is aborted by: "
    + CONNECTION.format(what=REFUSED, job="worker", task=1, call="WorkerService/RecvBuf")
    + "\nThe error could be from a previous operation. Restart your program to reset.\nAdditional "
    "GRPC error information from remote target /job:worker/replica:0/task:2 while calling "
    '/tensorflow.WorkerService/RecvBuf:\n:UNKNOWN:Error received from peer {grpc_message:"'
    "Collective ops is aborted by: failed to connect to all addresses\\nAdditional GRPC error "
    'information from remote target /job:worker/replica:0/task:1 while calling"}'
)
BROKEN = [
    "Collective ops is aborted by: sendmsg: Broken pipe (32)",
    "recvmsg:Connection timed out",
    "sendmsg:No route to host",
    "Socket closed",
    "Stream removed",
    "Endpoint closing",
    "GOAWAY received",
    "keepalive watchdog timeout",
    "Failed to connect to remote host: Network is unreachable",
]
# What a worker that goes on may answer.
ALIVE = [
    "Invalid argument: Input to reshape is a tensor with 12 values",
    "Collective ops is aborted by: Out of memory: 1024 bytes",
    "Cancelled by graph mgr",
    "the stream of the pipe was removed from the connection",
]
ADDRESSES = ["10.0.0.1:2", "10.0.0.2:2", "10.0.0.3:2"]


def connection(what):
    return CONNECTION.format(what=what, job="worker", task=2, call="WorkerService/RecvBuf")


def unhealthy(*tasks):
    lines = "\n".join(f"/job:worker/replica:0/task:{task}" for task in tasks)
    return UNHEALTHY.format(first=tasks[0], tasks=lines)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (unhealthy(1), "worker 1 (10.0.0.2:2) has ended or does not"),
        (unhealthy(2, 1), "worker 2 (10.0.0.3:2), worker 1 (10.0.0.2:2) has"),
        (HEARTBEAT, "worker 0 (10.0.0.1:2) has ended or does not answer any more"),
        (NO_LEADER, "worker 0 (10.0.0.1:2) has ended or does not answer any more"),
        (SILENT, "worker 1 (10.0.0.2:2) was silent for longer than heartbeat_seconds"),
        (
            CONNECTION.format(
                what=REFUSED, job="worker", task=0, call="CoordinationService/InsertKeyValue"
            ),
            "worker 0 (10.0.0.1:2) has ended",
        ),
        (
            CONNECTION.format(
                what="recvmsg:Connection reset by peer",
                job="worker",
                task=2,
                call="WorkerService/RecvBuf",
            ),
            "worker 2 (10.0.0.3:2) has ended",
        ),
        (PASSED_ON, "worker 1 (10.0.0.2:2) has ended"),
        *((connection(reason), "worker 2 (10.0.0.3:2) has ended") for reason in BROKEN),
        *((connection(reason), None) for reason in ALIVE),
        ("Input to reshape is a tensor with 12 values", None),
        ("Deadline Exceeded", None),
    ],
)
def test_the_lost_worker_is_named(monkeypatch, text, name):
    task = {"type": "worker", "index": 1}
    cluster = {"worker": ADDRESSES}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    for error in (text, RuntimeError(text)):
        said = explain_lost_worker(error)
        assert said is None if name is None else said.startswith(name), said
    monkeypatch.delenv("TF_CONFIG")
    assert (explain_lost_worker(text) is None) == (name is None)
    monkeypatch.setenv("TF_CONFIG", "{broken")
    assert (explain_lost_worker(text) is None) == (name is None)


def test_who_was_given_up_before_is_named_and_not_who_followed(monkeypatch):
    """Worker 2 has ended since it heard that worker 1 is lost; worker 0 hears of that end first."""
    asked, waited = [], []

    def worker_errors(jobs):
        asked.append(jobs)
        return errors

    monkeypatch.setattr(lost_workers._tf_private, "has_key_value_store", lambda: True)
    monkeypatch.setattr(lost_workers._tf_private, "worker_errors", worker_errors)
    monkeypatch.setattr(lost_workers.time, "sleep", waited.append)
    text = connection("recvmsg:Connection reset by peer")
    silent = "Task /job:worker/replica:0/task:1 heartbeat timeout. This indicates"
    for index, errors, name in (
        (0, {1: silent}, "worker 1 (10.0.0.2:2) has"),
        (0, {}, "worker 2 (10.0.0.3:2) has"),
        (0, {1: "it has closed its connection"}, "worker 2 (10.0.0.3:2) has"),
        (1, {1: silent}, "worker 2 (10.0.0.3:2) has"),  # only the first worker can ask
    ):
        task = {"type": "worker", "index": index}
        monkeypatch.setenv(
            "TF_CONFIG", json.dumps({"cluster": {"worker": ADDRESSES}, "task": task})
        )
        assert explain_lost_worker(text).startswith(name), errors
    assert asked == [[("worker", 3)]] * 3
    # The others hear from the first worker who is lost.
    assert len(waited) == 3
    assert explain_lost_worker("something else") is None and len(asked) == 3


def test_a_chief_is_worker_0(monkeypatch):
    cluster = {"chief": ADDRESSES[:1], "worker": ADDRESSES[1:]}
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    assert explain_lost_worker(HEARTBEAT).startswith("worker 0 (10.0.0.1:2) has")
    assert explain_lost_worker(unhealthy(1)).startswith("worker 2 (10.0.0.3:2) has")


@pytest.mark.parametrize("seconds", [0, 0.5, -1, float("nan"), float("inf"), "10", None, True])
def test_heartbeat_seconds_are_checked(seconds):
    with pytest.raises(ValueError, match="heartbeat_seconds must be a number of seconds, 1 at"):
        create_strategy("one_device", heartbeat_seconds=seconds)
