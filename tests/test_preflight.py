"""The meeting before TensorFlow starts, on real sockets; signals with real processes."""

import contextlib
import dataclasses
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from tests.processes_seen import wait_until
from tfscale.cluster import ClusterConfig
from tfscale.preflight import PreflightError, has_met, meet
from tfscale.rendezvous.ports import port_is_free, reserve_ports
from tfscale.rendezvous.proxies import exempt, proxy_warning

DECLARED = {"tfscale": "0.1.0", "devices_per_worker": "2", "arguments": "--epochs=3"}


@pytest.fixture
def cluster():
    """A function that gives the configurations of `count` workers on free loopback ports."""
    with contextlib.ExitStack() as stack:

        def make(count, host="127.0.0.1"):
            ports = stack.enter_context(reserve_ports(count)).ports
            workers = tuple(f"{host}:{port}" for port in ports)
            return [ClusterConfig(workers, task_index=index) for index in range(count)]

        yield make


@pytest.fixture(autouse=True)
def short_settling(monkeypatch):
    monkeypatch.setattr("tfscale.rendezvous.leader._SETTLE_SECONDS", 0.5)


class Meeting:
    """Several workers in threads; each one's verdict, log lines and duration."""

    def __init__(self, configs, declared=None, timeout=8, delays=None, **options):
        options = {
            "first_notice_seconds": 0.3,
            "notice_every_seconds": 0.3,
            "environ": {},
        } | options
        self.logs = [[] for _ in configs]
        self.errors = [None] * len(configs)
        self.seconds = [None] * len(configs)
        declared = declared or [DECLARED] * len(configs)
        delays = delays or [0] * len(configs)

        def work(place):
            time.sleep(delays[place])
            start = time.monotonic()
            try:
                log = self.logs[place].append
                meet(configs[place], declared[place], timeout, log, **options)
            except Exception as error:
                self.errors[place] = error
            self.seconds[place] = time.monotonic() - start

        self._threads = [
            threading.Thread(target=work, args=(place,), daemon=True)
            for place in range(len(configs))
        ]
        for thread in self._threads:
            thread.start()

    def join(self, timeout=20):
        until = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
            assert not thread.is_alive(), "a worker hangs"
        return self

    def refusals(self):
        for error in self.errors:
            assert isinstance(error, PreflightError), self.errors
            assert "\n" not in str(error)
        return [str(error) for error in self.errors]


def bind_as_tensorflow_does(address):
    port = int(address.rpartition(":")[2])
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("0.0.0.0", port))
        server.listen()


@pytest.mark.parametrize("count", [2, 5])
def test_all_meet_and_leave_their_ports_free(cluster, count):
    configs = cluster(count)
    meeting = Meeting(configs, first_notice_seconds=5).join()
    assert meeting.errors == [None] * count
    assert all(lines == [] for lines in meeting.logs), meeting.logs
    for config in configs:
        bind_as_tensorflow_does(config.address)
        assert has_met(config)
    assert max(meeting.seconds) < 4
    start = time.monotonic()
    meet(configs[1], DECLARED, timeout_seconds=5)  # A second call returns at once.
    assert time.monotonic() - start < 0.1


def test_meeting_again_compares_what_is_new(cluster):
    configs = cluster(2)
    assert Meeting(configs, [{"a": "1"}] * 2).join().errors == [None] * 2
    different = [{"a": "1", "b": "2"}, {"a": "1", "b": "3"}]
    assert Meeting(configs, different).join().errors == [None] * 2, "returns at once"
    start = time.monotonic()
    meet(configs[0], {"a": "1"}, 5, again=True)  # Nothing new, so nobody to wait for.
    assert time.monotonic() - start < 0.1
    for text in Meeting(configs, different, again=True).join().refusals():
        assert "b: worker 0 has 2, worker 1 has 3" in text


def test_chief_leads_and_ipv6_and_names_work(cluster):
    ports = [config.address.rpartition(":")[2] for config in cluster(3)]
    workers = (f"localhost:{ports[0]}", f"127.0.0.1:{ports[1]}", f"localhost:{ports[2]}")
    if socket.has_dualstack_ipv6():
        workers = (*workers[:2], f"[::1]:{ports[2]}")
    chief = ClusterConfig(workers, has_chief=True, task_type="chief")
    others = [ClusterConfig(workers, has_chief=True, task_index=index) for index in range(2)]
    assert Meeting([chief, *others]).join().errors == [None] * 3


def test_nobody_to_wait_for():
    start = time.monotonic()
    meet(ClusterConfig.single(), {})
    meet(ClusterConfig(("10.255.255.1:1", "b:2"), task_type="evaluator"), {})
    assert time.monotonic() - start < 0.1


def test_late_worker_is_named_and_then_welcomed(cluster):
    configs = cluster(3)
    meeting = Meeting(configs, delays=[0, 0, 1.2]).join()
    assert meeting.errors == [None] * 3
    lines = meeting.logs[0]
    assert f"worker 0 waits for worker 2 ({configs[2].address}: connection refused" in lines[0]
    assert "worker 1" not in lines[0] and " s left" in lines[0]
    assert lines[-1] == "tfscale: all 3 workers are here."
    assert len(lines) >= 3, "a countdown, not a single line"
    # The workers that are there learn from the leader who is missing.
    assert f"worker 2 ({configs[2].address}" in meeting.logs[1][0]


def test_late_leader(cluster):
    configs = cluster(2)
    meeting = Meeting(configs, delays=[1.0, 0]).join()
    assert meeting.errors == [None] * 2
    assert (
        f"worker 1 waits for worker 0, the leader ({configs[0].address}: connection refused"
        in (meeting.logs[1][0])
    )


def test_a_missing_worker_ends_the_wait_of_all_with_the_same_reason(cluster):
    configs = cluster(3)
    meeting = Meeting(configs[:2], timeout=1.5, delays=[0.5, 0]).join()
    reason = f"worker 2 ({configs[2].address}: connection refused"
    for index, text in enumerate(meeting.refusals()):
        assert text.startswith("The job does not start: after 1.5 s this still lacks:")
        assert reason in text and "firewall" in text and f"This is worker {index} of 3" in text
        assert "worker 1 (" not in text
    assert not has_met(configs[0])
    bind_as_tensorflow_does(configs[0].address)
    # The same cluster may try again.
    assert Meeting(configs).join().errors == [None] * 3


def test_leader_alone_and_member_alone(cluster):
    configs = cluster(2)
    (text,) = Meeting(configs[:1], timeout=0.6).join().refusals()
    assert f"worker 1 ({configs[1].address}" in text
    (text,) = Meeting(configs[1:], timeout=0.6).join().refusals()
    assert f"worker 0, the leader ({configs[0].address}" in text


def test_disagreement_is_refused_on_all_with_both_values(cluster):
    configs = cluster(3)
    declared = [DECLARED, DECLARED | {"devices_per_worker": "3"}, DECLARED | {"python": "3.11"}]
    meeting = Meeting(configs, declared, timeout=30).join()
    for text in meeting.refusals():
        assert "devices_per_worker: workers 0, 2 have 2, worker 1 has 3" in text
        assert "python: workers 0, 1 have none, worker 2 has 3.11" in text
    assert max(meeting.seconds) < 4, "no need to wait once all are there"
    assert any("disagree" in line for line in meeting.logs[0])


def test_disagreement_does_not_wait_for_a_missing_worker(cluster):
    configs = cluster(3)
    declared = [DECLARED, DECLARED | {"devices_per_worker": "3"}]
    meeting = Meeting(configs[:2], declared, timeout=30).join()
    assert all("devices_per_worker" in text for text in meeting.refusals())
    assert max(meeting.seconds) < 6


def test_long_values_are_cut_to_where_they_differ(cluster):
    configs = cluster(2)
    common = "--flag=value " * 100
    declared = [{"arguments": common + tail} for tail in ("--seed=1", "--seed=2")]
    for text in Meeting(configs, declared).join().refusals():
        assert "--seed=1" in text and "--seed=2" in text and len(text) < 900


def test_another_list_of_workers(cluster):
    configs = cluster(3)
    changed = (configs[0].workers[0], configs[0].workers[1], "127.0.0.1:9")
    other = ClusterConfig(changed, task_index=1)
    meeting = Meeting([configs[0], other, configs[2]], timeout=30).join(30)
    for text in meeting.refusals():
        assert f"worker 0 has the address {configs[0].workers[2]} for worker 2" in text
        assert "has 127.0.0.1:9" in text
    shorter = ClusterConfig(configs[0].workers[:2], task_index=1)
    meeting = Meeting([configs[0], shorter, configs[2]], timeout=30).join(30)
    for text in meeting.refusals():
        assert "worker 0 lists 3 workers" in text and "lists 2" in text


def test_two_processes_with_one_index(cluster):
    configs = cluster(3)
    meeting = Meeting([configs[0], configs[1], configs[1]], timeout=30, delays=[0, 0, 0.5]).join(30)
    for text in meeting.refusals():
        assert "two processes say that they are worker 1" in text
        assert f"process {os.getpid()}" in text


def test_two_leaders(cluster):
    configs = cluster(2)
    meeting = Meeting([configs[0], configs[0]], timeout=30, delays=[0, 0.5]).join(30)
    for text in meeting.refusals():
        assert "two processes say that they are worker 0" in text


@pytest.mark.parametrize("taken", [0, 1])
@pytest.mark.slow
def test_a_taken_port_is_named_and_waited_for(cluster, taken):
    configs = cluster(2)
    port = int(configs[taken].address.rpartition(":")[2])
    with socket.socket() as other_program:
        other_program.bind(("127.0.0.1", port))
        other_program.listen()
        meeting = Meeting(configs, timeout=0.9).join()
        for text in meeting.refusals():
            assert f"worker {taken}" in text
        assert f"port {port} cannot be opened" in str(meeting.errors[taken])
        assert "Address already in use" in str(meeting.errors[taken])
        # Both the one who lacks the port and the leader say so while they wait.
        assert any(f"port {port}" in line for line in meeting.logs[taken])
        if taken == 1:
            assert any(f"port {port}" in line for line in meeting.logs[0])
            assert f"port {port} cannot be opened" in str(meeting.errors[0])
        meeting = Meeting(configs)
        time.sleep(0.5)
    assert meeting.join().errors == [None, None], "goes on when the port comes free"


def test_unresolvable_names(cluster):
    configs = cluster(2)
    workers = (configs[0].workers[0], "no-such-host.invalid:2222")
    (text,) = Meeting([ClusterConfig(workers)], timeout=0.6).join().refusals()
    assert "the name 'no-such-host.invalid' cannot be resolved" in text
    (text,) = Meeting([ClusterConfig(workers[::-1], task_index=1)], timeout=0.6).join().refusals()
    assert "the name 'no-such-host.invalid' cannot be resolved" in text


def test_an_address_of_another_machine_is_hinted_at(cluster):
    port = cluster(1)[0].address.rpartition(":")[2]
    config = ClusterConfig((f"203.0.113.7:{port}", "127.0.0.1:1"))
    (text,) = Meeting([config], timeout=0.6).join().refusals()
    assert "203.0.113.7" in text and "does not belong to this machine" in text


def stranger(address, data):
    """Connects like a port scanner, sends `data`, and leaves the connection open."""
    host, _, port = address.rpartition(":")
    until = time.monotonic() + 5
    while True:
        try:
            sock = socket.create_connection((host, int(port)), timeout=1)
            break
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.02)
    with contextlib.suppress(OSError):
        sock.sendall(data)
    return sock


STRANGE_HELLO = {"tfscale": 1, "worker": 1, "id": 1, "pid": 1, "host": 1, "has_chief": 1}
STRANGE = [
    b"",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    b"\n\n\n",
    b"{}\n[]\nnull\n",
    b'{"tfscale": 1}\n',
    b'{"tfscale": 1, "ask": "who"}\n',
    b'{"tfscale": 1, "verdict": "go"}\n',
    b'{"a":' * 20000 + b"\n",
    b"{" + b"x" * (3 << 20),
    json.dumps(STRANGE_HELLO).encode() + b"\n",
    json.dumps(STRANGE_HELLO | {"workers": [1], "declared": {"a": 1}}).encode() + b"\n",
    json.dumps(STRANGE_HELLO | {"workers": {}, "declared": []}).encode() + b"\n",
]


def test_strangers_do_not_disturb(cluster):
    configs = cluster(3)
    meeting = Meeting(configs, delays=[0, 0, 1.5])
    sockets = [stranger(config.address, data) for config in configs[:2] for data in STRANGE]
    meeting.join()
    for sock in sockets:
        sock.close()
    assert meeting.errors == [None] * 3
    assert all("disagree" not in line for line in meeting.logs[0])
    for config in configs:
        bind_as_tensorflow_does(config.address)


@pytest.mark.slow
def test_a_worker_that_calls_but_cannot_be_reached(cluster):
    configs = cluster(2)
    hello = {
        "tfscale": 1, "worker": 1, "id": "x", "pid": 1, "host": "far", "has_chief": False,
        "workers": configs[0].workers, "declared": {}, "listens": False, "trouble": "",
    }  # fmt: skip
    lines = [json.dumps(hello), json.dumps(hello | {"listens": True}), ""]
    meeting = Meeting(configs[:1], [{}], timeout=1.5)
    with stranger(configs[0].address, "\n".join(lines).encode()):
        (text,) = meeting.join().refusals()
    assert "it has called, but cannot be reached at its address: connection refused" in text


def test_fuzzed_bytes_do_not_disturb(cluster):
    rng = random.Random(0)
    configs = cluster(2)
    meeting = Meeting(configs, delays=[0, 1.5], timeout=20)
    for _ in range(60):
        text = json.dumps(STRANGE_HELLO | {"workers": ["a"], "declared": {"a": "b"}}).encode()
        broken = bytearray(text)
        for _ in range(rng.randrange(1, 6)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        broken[1:1] = bytes([rng.randrange(256)])
        stranger(configs[0].address, bytes(broken) + b"\n").close()
    assert meeting.join().errors == [None] * 2


@pytest.mark.parametrize(
    ("reply", "piece"),
    [
        (b"\x00\x00\x24\x04\x00\x00\x00\x00\x00", "gRPC server answers there"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not tfscale"),
        (b"", "says nothing tfscale would say"),
    ],
)
@pytest.mark.slow
def test_another_program_at_the_leaders_address(cluster, monkeypatch, reply, piece):
    monkeypatch.setattr("tfscale.rendezvous.participant._ANSWER_SECONDS", 0.3)
    configs = cluster(2)
    host, _, port = configs[0].address.rpartition(":")
    with socket.create_server((host, int(port))) as server:
        connections = []

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connections.append(server.accept()[0])
                    connections[-1].sendall(reply)

        threading.Thread(target=serve, daemon=True).start()
        (text,) = Meeting(configs[1:], timeout=1.1).join().refusals()
        assert piece in text
        server.shutdown(socket.SHUT_RDWR)
    for connection in connections:
        connection.close()


def test_dropped_packets(cluster, monkeypatch):
    monkeypatch.setattr("tfscale.rendezvous.channels._CONNECT_SECONDS", 0.3)
    configs = cluster(2)
    host, _, port = configs[0].address.rpartition(":")
    with socket.socket() as server, contextlib.ExitStack() as stack:
        # A full queue of callers drops the packets of the next one, as a firewall does.
        server.bind((host, int(port)))
        server.listen(0)
        for _ in range(4):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex((host, int(port)))
        (text,) = Meeting(configs[1:], timeout=1.0).join().refusals()
    assert "no answer; is the host down, or does a firewall drop the packets?" in text


@pytest.mark.slow
def test_a_worker_that_goes_away_is_missed(cluster):
    configs = cluster(3)
    code = (
        "import sys; from tfscale.cluster import ClusterConfig; from tfscale.preflight import meet;"
        "meet(ClusterConfig(sys.argv[2:], task_index=int(sys.argv[1])), {}, 60, environ={})"
    )
    leader = Meeting(configs[:1], [{}], timeout=4)
    child = subprocess.Popen([sys.executable, "-c", code, "1", *configs[0].workers])
    try:
        wait_until(
            lambda: any("worker 2" in s and "worker 1" not in s for s in leader.logs[0]), timeout=10
        )
        child.kill()
        child.wait()
        wait_until(lambda: "worker 1" in leader.logs[0][-1], timeout=10)
    finally:
        child.kill()
        child.wait()
    assert "had called, but is gone" in leader.logs[0][-1]
    (text,) = leader.join().refusals()
    assert "worker 1" in text and "worker 2" in text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("index", [0, 1])
def test_signals_end_the_wait_at_once(cluster, number, index):
    configs = cluster(2)
    code = (
        "import sys; from tfscale.cluster import ClusterConfig; from tfscale.preflight import meet;"
        "meet(ClusterConfig(sys.argv[2:], task_index=int(sys.argv[1])), {}, 60, environ={},"
        "first_notice_seconds=.1)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(index), *configs[0].workers],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with child:
        assert "waits for worker" in child.stdout.readline()
        start = time.monotonic()
        child.send_signal(number)
        code = child.wait(10)
        assert time.monotonic() - start < 2
        assert code in (-number, 1, 130)
    assert port_is_free(int(configs[index].address.rpartition(":")[2]))


def test_start_timeout_variable_wins(cluster):
    (config,) = cluster(2)[:1]
    start = time.monotonic()
    with pytest.raises(PreflightError, match="after 0.5 s"):
        meet(config, {}, 60, [].append, environ={"TFSCALE_START_TIMEOUT": "0.5"})
    assert time.monotonic() - start < 3
    for bad in ("soon", "-1", "inf", "nan"):
        with pytest.raises(ValueError, match=f"start timeout is '{bad}'"):
            meet(config, {}, 60, environ={"TFSCALE_START_TIMEOUT": bad})


def test_declared_has_a_size_limit(cluster):
    with pytest.raises(ValueError, match="allowed are 524288"):
        meet(cluster(2)[0], {"arguments": "x" * (1 << 20)}, 1, environ={})


def test_proxy_is_named_with_the_fix(cluster):
    configs = cluster(2)
    environ = {"http_proxy": "http://user:secret@proxy:3128"}
    meeting = Meeting(configs, environ=environ, first_notice_seconds=5).join()
    assert meeting.errors == [None, None], "our own meeting goes past the proxy"
    for lines in meeting.logs:
        assert len(lines) == 1 and "http_proxy is set to 'proxy:3128'" in lines[0]
        assert "export no_proxy=127.0.0.1" in lines[0] and "secret" not in lines[0]
    (text,) = (
        Meeting([dataclasses.replace(cluster(2)[0])], timeout=0.5, environ=environ)
        .join()
        .refusals()
    )
    assert "A proxy may be in the way" in text


# What gRPC 1.85 did here, asked with a proxy at a closed port: whether it called directly.
@pytest.mark.parametrize(
    ("environ", "direct"),
    [
        ({}, True),
        ({"http_proxy": "P"}, False),
        ({"https_proxy": "P"}, False),
        ({"grpc_proxy": "P"}, False),
        ({"HTTP_PROXY": "P"}, True),
        ({"HTTPS_PROXY": "P"}, True),
        ({"GRPC_PROXY": "P"}, True),
        ({"all_proxy": "P"}, True),
        ({"http_proxy": ""}, True),
        ({"http_proxy": "P", "no_proxy": "*"}, False),
        ({"http_proxy": "P", "NO_PROXY": "127.0.0.1"}, False),
        ({"http_proxy": "P", "no_proxy": "127.0.0.1"}, True),
        ({"http_proxy": "P", "no_proxy": "27.0.0.1"}, False),
        ({"http_proxy": "P", "no_proxy": ".127.0.0.1"}, True),
        ({"http_proxy": "P", "no_proxy": "127.0.0.0/8"}, True),
        ({"http_proxy": "P", "no_proxy": "x, 127.0.0.1"}, True),
        ({"http_proxy": "P", "no_proxy": "127.0.0.1:39453"}, False),
        ({"http_proxy": "P", "no_proxy": "127.0.0.1", "no_grpc_proxy": "zz"}, False),
        ({"http_proxy": "P", "no_grpc_proxy": "127.0.0.1"}, True),
    ],
)
def test_proxy_rules_are_those_of_grpc(environ, direct):
    assert (proxy_warning(["127.0.0.1"], environ) is None) == direct
    assert proxy_warning(["127.0.0.1"], environ | exempt(["127.0.0.1"], environ)) is None


def test_proxy_suffixes_and_many_hosts():
    environ = {"http_proxy": "P", "no_proxy": "cluster.local"}
    assert proxy_warning(["w-0.svc.Cluster.Local"], environ) is None
    text = proxy_warning([f"h{n}" for n in range(8)], environ)
    assert "h4 and 3 more" in text and text.endswith(
        "no_proxy=cluster.local,h0,h1,h2,h3,h4,h5,h6,h7"
    )
    assert "'*' means nothing to gRPC" in proxy_warning(["h"], {"http_proxy": "P", "no_proxy": "*"})
    changes = exempt(["h", "h"], {"NO_PROXY": "a", "no_grpc_proxy": "b"})
    assert changes == {"no_proxy": "a,h", "NO_PROXY": "a,h", "no_grpc_proxy": "b,h"}


def test_ten_meetings_in_a_row_on_the_same_ports(cluster):
    configs = cluster(2)
    for round_number in range(10):
        declared = [{"round": str(round_number)}] * 2
        # Another task index makes it another configuration, so that nothing is remembered.
        fresh = [dataclasses.replace(c, evaluators=(f"e{round_number}:1",)) for c in configs]
        assert Meeting(fresh, declared).join().errors == [None, None]
