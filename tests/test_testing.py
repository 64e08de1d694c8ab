"""The public test tools: real processes, their results and their failures."""

import json
import os
import subprocess
import sys
import time

import pytest

from tfscale import testing


def environment(names):
    return {name: os.environ.get(name) for name in names}


def fail_on_worker_1():
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    if task["index"] == 1:
        print("about to fail")
        raise RuntimeError("bad luck")
    return "fine"


def test_results_come_in_worker_order():
    names = ["TF_CONFIG", "TFSCALE_DEVICES_PER_WORKER", "EXTRA"]
    results = testing.run_in_processes(
        environment, 3, 2, args=(names,), env=[{"EXTRA": str(i)} for i in range(3)]
    )
    configs = [json.loads(r["TF_CONFIG"]) for r in results]
    assert [c["task"] for c in configs] == [{"type": "worker", "index": i} for i in range(3)]
    assert len({json.dumps(c["cluster"]) for c in configs}) == 1
    assert len(set(configs[0]["cluster"]["worker"])) == 3
    assert [r["EXTRA"] for r in results] == ["0", "1", "2"]
    assert {r["TFSCALE_DEVICES_PER_WORKER"] for r in results} == {"2"}


def test_one_worker_has_no_tf_config():
    (result,) = testing.run_in_processes(environment, 1, args=(["TF_CONFIG"],))
    assert result == {"TF_CONFIG": None}


def test_a_failing_worker_is_shown():
    with pytest.raises(RuntimeError) as caught:
        testing.run_in_processes(fail_on_worker_1, 2)
    text = str(caught.value)
    assert "worker 1 exited with code 1" in text
    assert "about to fail" in text and "RuntimeError: bad luck" in text


def test_workers_that_hang_are_killed():
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"workers \[0, 1\] still ran after 1 s"):
        testing.run_in_processes(time.sleep, 2, args=(60,), timeout=1)
    assert time.monotonic() - start < 30


def test_importing_testing_does_not_load_tensorflow():
    code = "import sys, tfscale.testing; sys.exit('tensorflow' in sys.modules)"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0


def sleep_and_tell(path):
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(60)


def test_workers_end_with_a_killed_parent(tmp_path):
    path = tmp_path / "pid"
    code = (
        "from tests import test_testing; from tfscale import testing;"
        f"testing.run_in_processes(test_testing.sleep_and_tell, 1, args=({str(path)!r},))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 30
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    parent.kill()
    parent.wait()
    pid = int(path.read_text())
    while os.path.exists(f"/proc/{pid}/stat") and time.monotonic() < deadline:
        if open(f"/proc/{pid}/stat").read().split()[2] == "Z":
            break  # dead, and nobody's child any more
        time.sleep(0.1)
    else:
        assert not os.path.exists(f"/proc/{pid}/stat")
