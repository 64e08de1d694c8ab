"""The peers of the all-reduce benchmark: rows, failures that are shown, and the real ones."""

import os
import subprocess
import sys
import time

import pytest

from experiments.allreduce import peers
from experiments.allreduce.lab import Lab
from experiments.allreduce.peers import environments, launch, measuring, rows

pytestmark = pytest.mark.alone
SCRIPT = environments.ROOT / environments.SCRIPT
SHAPES = [(3, 3, 16, 64), (64,), (256, 256)]
COLUMNS = [
    "method",
    "seconds_median",
    "seconds_min",
    "seconds_max",
    "bytes_per_link",
    "link_share",
    "cpu_seconds",
]


class Here:
    """A lab whose hosts are all this machine."""

    payload_bytes_per_second = None

    def command(self, worker, argv):
        return argv[4:]  # Without the mount, which needs a namespace.

    def address(self, worker):
        return "127.0.0.1"


def fake(body):
    """A peer's worker program whose report is `r`, of a worker that knows `s`, its settings."""
    code = "import time; from experiments.allreduce.peers import measuring; "
    return [sys.executable, "-c", f"{code}s = measuring.settings(); {body}"]


def run_fake(body, timeout_seconds=30):
    program = fake(body)
    return launch.run_workers(
        "gloo", sys.executable, Here(), 2, 3, SHAPES, timeout_seconds, program
    )


def test_a_repeat_takes_as_long_as_its_slowest_worker():
    reports = [
        {"seconds": [1.0, 4.0, 2.0], "cpu_seconds": 0.5, "sent_bytes": 100},
        {"seconds": [3.0, 1.0, 2.5], "cpu_seconds": 1.5, "sent_bytes": 300},
    ]
    row = rows.row("gloo", reports, payload=150.0, payload_bytes_per_second=100.0)
    assert row == {
        "method": "gloo",
        "seconds_median": 3.0,
        "seconds_min": 2.5,
        "seconds_max": 4.0,
        "bytes_per_link": 200,
        "link_share": 0.5,
        "cpu_seconds": 1.0,
    }
    assert list(row) == COLUMNS
    assert rows.row("gloo+powersgd", reports, None, 100.0)["link_share"] == 200 / 100 / 3
    assert rows.row("gloo", reports)["link_share"] is None


def test_reports_come_back_in_worker_order():
    reports = run_fake("time.sleep(0.5 * (1 - s['rank'])); measuring.report(s)")
    assert [r["rank"] for r in reports] == [0, 1]
    assert reports[1]["shapes"] == [list(shape) for shape in SHAPES]
    assert reports[1]["repeats"] == 3 and reports[1]["leader"] == "127.0.0.1"


def test_a_worker_that_fails_is_shown_and_the_others_are_ended():
    start = time.monotonic()
    with pytest.raises(launch.PeerFailed) as caught:
        run_fake("print('no such interface'); time.sleep(60 * s['rank']); raise SystemExit(3)")
    text = str(caught.value)
    assert time.monotonic() - start < 20
    assert "gloo: worker 0 failed first" in text and "with exit code 3" in text
    assert "no such interface" in text


def test_a_worker_that_hangs_is_ended_in_bounded_time():
    start = time.monotonic()
    body = "print('pid', __import__('os').getpid(), flush=True); time.sleep(60)"
    with pytest.raises(launch.PeerFailed) as caught:
        run_fake(body, timeout_seconds=3)
    text = str(caught.value)
    assert time.monotonic() - start < 20
    assert "gloo: stopped after 3 s, the time limit" in text
    pids = [int(line.split()[1]) for line in text.splitlines() if line.startswith("pid ")]
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_worker_without_a_report_is_an_error():
    with pytest.raises(launch.PeerFailed, match="ended without a report"):
        run_fake("s['rank'] or measuring.report(s)")


def test_a_missing_environment_is_no_error(tmp_path, capsys):
    for method in peers.METHODS:
        assert peers.run(method, None, 4, 3, SHAPES, folder=tmp_path) is None
        environment = method.partition("+")[0]
        said = capsys.readouterr().out
        assert f"{method} is left out" in said
        assert f"sh experiments/allreduce/peers/install.sh {environment} " in said
    with pytest.raises(ValueError, match="unknown peer 'nccl'; choose one of gloo, gloo.fp16"):
        peers.run("nccl", None, 4, 3, SHAPES)


def test_a_half_made_environment_is_none(tmp_path):
    (tmp_path / "gloo" / "bin").mkdir(parents=True)
    python = tmp_path / "gloo" / "bin" / "python"
    python.touch()
    assert environments.python_of("gloo+fp16", tmp_path) is None
    (tmp_path / "gloo" / "complete").touch()
    assert environments.python_of("gloo+fp16", tmp_path) == python


def test_measuring(monkeypatch):
    sent = iter([1000, 1600])
    monkeypatch.setattr(measuring, "sent_bytes", lambda: next(sent))
    calls = []
    measured = measuring.measure(
        lambda: calls.append("step"), lambda: calls.append("barrier"), repeats=3
    )
    assert calls == ["step"] * measuring.WARM_UP + ["barrier", *["barrier", "step"] * 3, "barrier"]
    assert len(measured["seconds"]) == 3 and measured["sent_bytes"] == 200
    assert 0 <= measured["cpu_seconds"] < 1
    measuring.expect(10.01, 10.0, "it")
    for wrong in (10.1, float("nan"), float("inf")):
        with pytest.raises(SystemExit, match="it is .* expected 10.0"):
            measuring.expect(wrong, 10.0, "it")


def install(*arguments, **environment):
    return subprocess.run(
        ["sh", str(SCRIPT), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_script_says_what_it_cannot(tmp_path):
    result = install("nccl", f"--into={tmp_path}")
    assert result.returncode == 2 and "unknown argument 'nccl'" in result.stderr
    result = install("gloo", f"--into={tmp_path}", PYTHON="python0.1")
    assert result.returncode == 1 and "no interpreter 'python0.1'" in result.stderr
    assert "install.sh gloo" in install("--help").stdout
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no module venv'\nexit 1\n")
    broken.chmod(0o755)
    result = install("gloo", f"--into={tmp_path}", PYTHON=str(broken))
    assert result.returncode == 1
    assert "no module venv" in result.stderr and "making an environment in" in result.stderr
    assert "without this peer" in result.stderr
    assert environments.python_of("gloo", tmp_path) is None


@pytest.mark.slow
@pytest.mark.parametrize("method", peers.METHODS)
def test_the_real_one_in_the_lab(method):
    if environments.python_of(method) is None:
        pytest.skip(environments.how_to_install(method))
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with Lab(2, "200mbit") as lab:
        row = peers.run(method, lab, 2, 3, SHAPES)
    assert list(row) == COLUMNS and row["method"] == method
    assert 0 < row["seconds_min"] <= row["seconds_median"] <= row["seconds_max"] < 5
    payload = 4 * sum([3 * 3 * 16 * 64, 64, 256 * 256])  # 2 (N-1)/N = 1 for two workers.
    share = {"gloo": 1, "horovod": 1, "gloo+fp16": 0.5, "horovod+fp16": 0.5}.get(method)
    if share:
        assert share * payload <= row["bytes_per_link"] < 1.3 * share * payload + 5000
    else:
        assert row["bytes_per_link"] < payload / 5
    assert row["link_share"] is None and row["cpu_seconds"] > 0
