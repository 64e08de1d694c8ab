"""TF_CONFIG: what is accepted, and that every bad form is refused with its piece and the fix."""

import json
import logging
import subprocess
import sys

import pytest

from tfscale.addresses import join_address, split_address
from tfscale.cluster import ClusterConfig, _say_alone_once


def parse(cluster, task_type="worker", index=0, **extra):
    task = {"type": task_type, "index": index}
    return ClusterConfig.from_json(json.dumps({"cluster": cluster, "task": task, **extra}))


def error_of(text):
    with pytest.raises(ValueError) as caught:
        ClusterConfig.from_json(text if isinstance(text, str) else json.dumps(text))
    error = caught.value
    assert type(error) is ValueError, "a JSONDecodeError must not reach the user"
    assert error.__suppress_context__ or error.__context__ is None
    message = str(error)
    assert message.startswith("TF_CONFIG"), message
    assert "\n" not in message
    return message


def test_workers_without_a_chief_are_led_by_worker_0():
    first = parse({"worker": ["a:1", "b:2"]})
    second = parse({"worker": ["a:1", "b:2"]}, index=1)
    assert first.workers == second.workers == ("a:1", "b:2")
    assert (first.num_workers, first.worker_index, first.is_leader) == (2, 0, True)
    assert (second.num_workers, second.worker_index, second.is_leader) == (2, 1, False)
    assert (first.address, second.address) == ("a:1", "b:2")
    assert first.is_distributed and not first.has_chief and not first.is_evaluator


def test_the_chief_comes_first_and_leads():
    cluster = {"worker": ["b:2", "c:3"], "chief": ["a:1"]}
    chief = parse(cluster, "chief")
    worker = parse(cluster, "worker", 1)
    assert chief.workers == worker.workers == ("a:1", "b:2", "c:3")
    assert (chief.worker_index, chief.is_leader) == (0, True)
    assert (worker.worker_index, worker.is_leader, worker.address) == (2, False, "c:3")
    assert type(chief.worker_index) is int and type(worker.worker_index) is int


@pytest.mark.parametrize("text", ["", " ", "\n\t", "{}", " {} "])
def test_empty_means_not_distributed_with_one_log_line(text, caplog):
    _say_alone_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="tfscale"):
        config = ClusterConfig.from_env({"TF_CONFIG": text})
        assert ClusterConfig.from_env({"TF_CONFIG": text}) == config
    assert config == ClusterConfig.single()
    assert (config.num_workers, config.worker_index, config.is_leader) == (1, 0, True)
    assert not config.is_distributed
    assert len(caplog.records) == 1 and "not distributed" in caplog.text


def test_unset_means_not_distributed(monkeypatch, caplog):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    _say_alone_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="tfscale"):
        assert ClusterConfig.from_env() == ClusterConfig.single()
    assert len(caplog.records) == 1 and "not set" in caplog.text


def test_reads_the_environment(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", parse({"worker": ["a:1", "b:2"]}, index=1).to_json())
    assert ClusterConfig.from_env().worker_index == 1


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (
            str({"cluster": {"worker": ["a:1"]}}),
            ["line 1, column 2", "double quotes", "{'cluster'"],
        ),
        ('{"cluster": {"worker": ["a:1"],}}', ["column 32", "comma"]),
        ('{"cluster": {"worker": ["a:1",]}}', ["comma"]),
        ('{"cluster": ', ["line 1", "not JSON"]),
        ("cluster", ["not JSON", "'cluster'"]),
        ("[]", ["JSON object", "list"]),
        ("[" * 100000, ["nested too deeply"]),
        ('{"task": {"index": ' + "9" * 5000 + "}}", ["cannot be read", "5000 digits"]),
        ("null", ["JSON object", "null"]),
        ('"text"', ["JSON object", "text"]),
        ("7", ["JSON object", "number"]),
        ('{"cluster": {"chief": ["a:1"], "chief": ["b:2"]}}', ["'chief'", "twice"]),
        ("{" + "x" * 500, ["..."]),
    ],
)
def test_text_that_is_not_a_json_object(text, pieces):
    message = error_of(text)
    assert len(message) < 600
    for piece in pieces:
        assert piece in message, message


def test_master_is_chief_on_every_node(caplog):
    cluster = {"master": ["a:1"], "worker": ["b:2"]}
    with caplog.at_level(logging.INFO, logger="tfscale"):
        master = parse(cluster, "master")
    assert len(caplog.records) == 1 and "'master' is read as 'chief'" in caplog.text
    worker = parse(cluster, "worker")
    assert master.workers == worker.workers == ("a:1", "b:2")
    assert master.has_chief and worker.has_chief
    assert [master.is_leader, worker.is_leader] == [True, False]
    assert (master.task_type, master.num_workers) == ("chief", 2)
    assert '"master"' not in master.to_json()
    message = error_of({"cluster": {**cluster, "chief": ["c:3"]}, "task": {}})
    assert "'master'" in message and "'chief'" in message


def test_parameter_servers_are_refused():
    task = {"type": "worker", "index": 0}
    message = error_of({"cluster": {"worker": ["a:1"], "ps": ["b:2"]}, "task": task})
    assert "'ps'" in message and "remove" in message and "b:2" in message
    message = error_of({"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}})
    assert "parameter server" in message
    assert parse({"worker": ["a:1"], "ps": []}).num_workers == 1


@pytest.mark.parametrize(
    ("cluster", "task_type", "pieces"),
    [
        ({"worker": ["a:1"]}, "chief", ["'chief'", "worker"]),
        ({"chief": ["a:1", "b:2"]}, "chief", ["2 chiefs", "a:1, b:2", "one"]),
        ({"Worker": ["a:1"]}, "worker", ["'Worker'", "did you mean 'worker'", "chief, worker"]),
        ({"worker": ["a:1"]}, "Worker", ["'Worker'", "did you mean 'worker'"]),
        ({"worker_hosts": ["a:1"]}, "worker", ["'worker_hosts'", "did you mean 'worker'"]),
        ({"gpu": ["a:1"]}, "worker", ["'gpu'", "chief, worker, evaluator"]),
        ({"evaluator": ["a:1"]}, "evaluator", ["neither", "'worker'"]),
        ({"worker": []}, "worker", ["neither", "'worker'"]),
        ({}, "worker", ["neither", "unset TF_CONFIG"]),
        ({"worker": ["a:1"]}, 3, ["3", "worker"]),
        ({"worker": ["a:1"]}, ["worker"], ['["worker"]']),
        ({"worker": ["a:1"]}, None, ["null"]),
    ],
)
def test_wrong_roles(cluster, task_type, pieces):
    message = error_of({"cluster": cluster, "task": {"type": task_type, "index": 0}})
    for piece in pieces:
        assert piece in message, message


def test_index_form_is_ordered_by_number():
    workers = {str(n): f"h{n}:1" for n in reversed(range(12))}
    config = parse({"worker": workers}, index=10)
    assert config.workers == tuple(f"h{n}:1" for n in range(12))
    assert config.address == "h10:1"
    assert parse({"worker": {"1": "b:2", "0": "a:1"}}).workers == ("a:1", "b:2")


def test_sparse_forms_are_refused():
    task = {"type": "worker", "index": 1}
    message = error_of({"sparseCluster": {"worker": {"1": "h:1"}, "ps": []}, "task": task})
    assert "enableDynamicWorker" in message and "sparse" in message
    message = error_of({"cluster": {"worker": {"1": "h:1"}}, "task": task})
    assert "enableDynamicWorker" in message and "not 0" in message
    message = error_of({"cluster": {"worker": {"0": "a:1", "one": "b:2"}}, "task": task})
    assert "numbers 0 to 1" in message


@pytest.mark.parametrize("index", [2, -1, True, False, "0", 0.0, None, [0]])
def test_bad_index(index):
    task = {"type": "worker", "index": index}
    message = error_of({"cluster": {"worker": ["a:1", "b:2"]}, "task": task})
    assert json.dumps(index) in message
    assert ("0 to 1" in message) if index in (2, -1) else ("whole number" in message)


@pytest.mark.parametrize(
    ("config", "pieces"),
    [
        ({"cluster": {"worker": ["a:1"]}}, ["no 'task'", "which worker"]),
        ({"cluster": {"worker": ["a:1"]}, "task": []}, ["'task' must be an object"]),
        ({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}, ["no 'index'"]),
        ({"cluster": {"worker": ["a:1"]}, "task": {"index": 0}}, ["no 'type'"]),
        ({"task": {"type": "worker", "index": 0}}, ["no 'cluster'", "unset TF_CONFIG"]),
        ({"clusters": {"worker": ["a:1"]}}, ["did you mean 'cluster'"]),
        ({"cluster": ["a:1"]}, ["'cluster' must be an object", "list"]),
        ({"cluster": {"worker": "a:1"}}, ["must be a list", "text"]),
        ({"cluster": {"worker": None}}, ["must be a list", "null"]),
        ({"cluster": {"worker": [5]}}, ["worker 0", "5", "must be text"]),
    ],
)
def test_missing_and_mistyped_parts(config, pieces):
    message = error_of(config)
    for piece in pieces:
        assert piece in message, message


@pytest.mark.parametrize(
    ("address", "piece"),
    [
        ("host", "no port"),
        ("host:", "no port"),
        ("", "no host"),
        (":2222", "no host"),
        ("host:0", "1 to 65535"),
        ("host:65536", "1 to 65535"),
        ("host:port", "'port'"),
        ("host:+22", "'+22'"),
        ("host:22٢", "1 to 65535"),
        ("ho st:22", "space"),
        ("http://host:22/", "write 'host:22' without"),
        ("a:1,b:2", "comma"),
        ("::1:22", "[::1]:2222"),
        ("[::1:22", "no closing"),
        ("[host]:22", "not an IPv6"),
        ("[::1]", "no port"),
        ("h/x:22", "neither a name"),
    ],
)
def test_bad_addresses(address, piece):
    task = {"type": "worker", "index": 0}
    message = error_of({"cluster": {"worker": ["ok:1", address]}, "task": task})
    assert "worker 1" in message and repr(address) in message and piece in message, message


def test_good_addresses():
    config = parse(
        {"worker": [" a:1 ", "[::1]:2222", "a-b.c_d.svc.cluster.local.:3", "10.0.0.1:4"]}
    )
    assert config.workers == ("a:1", "[::1]:2222", "a-b.c_d.svc.cluster.local.:3", "10.0.0.1:4")
    assert split_address("[fe80::1]:5") == ("fe80::1", 5)
    assert join_address("fe80::1", 5) == "[fe80::1]:5" and join_address("h", 5) == "h:5"


def test_duplicate_addresses():
    task = {"type": "worker", "index": 0}
    message = error_of({"cluster": {"worker": ["a:1", "b:2", "A:1"]}, "task": task})
    assert "worker 0 and worker 2" in message and "'A:1'" in message
    message = error_of({"cluster": {"worker": ["a:1"], "evaluator": ["a:1"]}, "task": task})
    assert "worker 0 and evaluator 0" in message


def test_unknown_top_level_keys_are_tolerated():
    config = parse(
        {"worker": ["a:1", "b:2"]}, environment="cloud", job={"args": []}, rpc_layer=None
    )
    assert config.num_workers == 2


def test_evaluator_stands_outside():
    cluster = {"chief": ["a:1"], "worker": ["b:2"], "evaluator": ["c:3"]}
    evaluator = parse(cluster, "evaluator")
    assert (evaluator.num_workers, evaluator.is_evaluator) == (2, True)
    assert evaluator.is_distributed and not evaluator.is_leader
    assert (evaluator.address, evaluator.evaluators) == ("c:3", ("c:3",))
    with pytest.raises(ValueError, match="evaluator 0 is not one of the 2 training workers"):
        evaluator.worker_index  # noqa: B018
    unlisted = parse({"chief": ["a:1"]}, "evaluator")
    assert unlisted.is_evaluator and unlisted.address == "" and unlisted.num_workers == 1


@pytest.mark.parametrize(
    "config",
    [
        ClusterConfig.single(),
        ClusterConfig(("a:1",)),
        ClusterConfig(("a:1", "b:2"), task_index=1),
        ClusterConfig(("a:1", "b:2"), has_chief=True, task_type="chief"),
        ClusterConfig(("a:1", "b:2", "[::1]:3"), has_chief=True, task_index=1),
        ClusterConfig(("a:1", "b:2"), evaluators=("c:3",), task_type="evaluator"),
    ],
)
def test_json_round_trip(config):
    assert ClusterConfig.from_json(config.to_json()) == config


def test_built_by_hand():
    with pytest.raises(ValueError, match="worker 2 would be worker 2 of 2: a:1, b:2"):
        ClusterConfig(("a:1", "b:2"), task_index=2)
    assert ClusterConfig(["a:1"]).workers == ("a:1",)
    with pytest.raises(AttributeError):
        ClusterConfig(("a:1",)).task_index = 1


def test_needs_no_tensorflow():
    modules = "tfscale.cluster, tfscale.topology, tfscale.preflight, tfscale.processes"
    code = (
        f"import sys, {modules}, tfscale.config, launch.cli, launch.local; "
        "sys.exit('tensorflow' in sys.modules or 'numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
