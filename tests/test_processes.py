"""Groups of real processes: output, first failure, signals, nothing left running; ports."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from tests.processes_seen import is_running, wait_until
from tfscale.process_group.output import LineOutput
from tfscale.processes import Command, run_group
from tfscale.rendezvous.ports import port_is_free, reserve_ports


def python(name, code, **options):
    return Command(name, (sys.executable, "-S", "-u", "-c", code), **options)


def run(*commands, **options):
    shown, notes = [], []
    result = run_group(commands, write=shown.append, notify=notes.append, **options)
    return result, "".join(shown), notes


def test_all_succeed_with_prefixed_whole_lines():
    code = "import sys\nfor i in range(200): print('{0}', i)\nprint('err', file=sys.stderr)"
    result, shown, notes = run(
        python("worker 0", code.format("zero")),
        python("worker 1", code.format("one"), prefix="[worker 1] "),
    )
    assert (result.exit_code, result.exit_codes, result.failed_first) == (0, (0, 0), None)
    assert result.describe() == "" and notes == []
    lines = shown.splitlines()
    assert [line for line in lines if line.startswith("zero")] == [f"zero {i}" for i in range(200)]
    prefixed = [line for line in lines if line.startswith("[worker 1] ")]
    assert prefixed == [f"[worker 1] one {i}" for i in range(200)] + ["[worker 1] err"]
    assert len(lines) == 402
    assert result.tails[1][-2:] == ("one 199", "err") and len(result.tails[1]) == 20


def test_the_first_failure_stops_all_and_is_explained():
    start = time.monotonic()
    result, _, _ = run(
        python("worker 0", "import time; time.sleep(60)"),
        python("worker 1", "import sys, time; time.sleep(.3); print('the cause'); sys.exit(3)"),
        python("worker 2", "import time; time.sleep(60)"),
    )
    assert time.monotonic() - start < 10
    assert (result.failed_first, result.exit_code) == (1, 3)
    assert result.exit_codes == (128 + signal.SIGTERM, 3, 128 + signal.SIGTERM)
    text = result.describe()
    assert text.startswith("worker 1 failed first, after ") and "with exit code 3;" in text
    assert "stopped the other 2" in text and "  | the cause" in text


def test_a_cause_that_is_slow_to_end_is_shown_beside_the_first_failure():
    slow = "import time\ntry: 1 / 0\nfinally:\n import traceback; traceback.print_exc()\n "
    result, _, _ = run(
        python("worker 0", "import time, os; time.sleep(1.0); print('lost a peer'); os._exit(134)"),
        python("worker 1", slow + "time.sleep(60)", show=False),
        python("worker 2", "import time; time.sleep(60)"),
    )
    text = result.describe()
    assert text.startswith("worker 0 failed first") and "  | lost a peer" in text
    assert "worker 1 had trouble too (exit code 143 (SIGTERM)):" in text
    assert "  | ZeroDivisionError: division by zero" in text and "worker 2" not in text


def test_hidden_output_is_shown_on_failure(tmp_path):
    log_file = tmp_path / "worker-1.log"
    result, shown, _ = run(
        python("worker 0", "import time; print('visible', flush=True); time.sleep(60)"),
        python(
            "worker 1",
            "import time; time.sleep(.3); [print('line', i) for i in range(50)]; 1 / 0",
            show=False,
            log_file=str(log_file),
        ),
        tail_lines=5,
    )
    assert shown == "visible\n"
    assert "ZeroDivisionError: division by zero" in result.describe()
    assert result.describe().count("  | ") == 5
    assert log_file.read_text().splitlines()[:2] == ["line 0", "line 1"]


def test_exit_codes_of_signals():
    code = "import os, signal; os.kill(os.getpid(), signal.{})"
    result, _, _ = run(python("worker 0", code.format("SIGKILL")))
    assert result.exit_code == 137
    assert "exit code 137 (SIGKILL; out of memory?)" in result.describe()
    result, _, _ = run(python("worker 0", code.format("SIGSEGV")))
    assert result.exit_code == 139 and "(SIGSEGV)" in result.describe()


STUBBORN = (
    "import os, signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "child = subprocess.Popen([sys.executable, '-S', '-c', 'import signal, time;"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)'])\n"
    "print(os.getpid(), child.pid, flush=True)\n"
    "time.sleep(60)"
)


def test_a_worker_that_ignores_sigterm_is_killed_with_its_children():
    start = time.monotonic()
    result, shown, _ = run(
        python("worker 0", STUBBORN),
        python("worker 1", "import time; time.sleep(1.0); raise SystemExit(5)"),
        grace_seconds=0.5,
    )
    assert 1.4 < time.monotonic() - start < 12
    assert (result.exit_code, result.exit_codes) == (5, (137, 5))
    pids = [int(pid) for pid in shown.split()]
    assert len(pids) == 2
    wait_until(lambda: not any(map(is_running, pids)))


def test_grandchildren_do_not_outlive_a_success():
    code = (
        "import subprocess, sys; print(subprocess.Popen("
        "[sys.executable, '-S', '-c', 'import time; time.sleep(60)']).pid)"
    )
    start = time.monotonic()
    result, shown, _ = run(python("worker 0", code))
    assert result.exit_code == 0 and time.monotonic() - start < 10
    wait_until(lambda: not is_running(int(shown)))


def test_time_limit():
    result, _, _ = run(python("worker 0", "import time; time.sleep(60)"), timeout_seconds=0.5)
    assert result.exit_code == 124 and "time limit" in result.describe()


def test_programs_that_cannot_start(tmp_path):
    result, _, _ = run(
        python("worker 0", "import time; time.sleep(60)"), Command("worker 1", ("/no/such/file",))
    )
    assert result.exit_code == 127 and "cannot start /no/such/file" in result.describe()
    result, _, _ = run(Command("worker 0", (str(tmp_path),)))
    assert result.exit_code == 126 and "Permission denied" in result.describe()


def test_unfinished_workers_are_mentioned(monkeypatch):
    monkeypatch.setattr("tfscale.processes._UNFINISHED_SECONDS", 0.2)
    _, _, notes = run(python("worker 0", ""), python("worker 1", "import time; time.sleep(1.0)"))
    assert notes and notes[0] == "some workers have finished, still running: worker 1"


def test_works_outside_of_the_main_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(run(python("worker 0", "print(1)"))))
    thread.start()
    thread.join(20)
    assert results[0][0].exit_code == 0 and results[0][1] == "1\n"


LAUNCHER = (
    "import sys; from tfscale.processes import Command, run_group\n"
    "codes = sys.argv[2:]\n"
    "group = [Command(f'worker {i}', (sys.executable, '-S', '-u', '-c', code))"
    " for i, code in enumerate(codes)]\n"
    "result = run_group(group, grace_seconds=float(sys.argv[1]))\n"
    "print(result.describe(), file=sys.stderr)\n"
    "sys.exit(result.exit_code)"
)


@contextlib.contextmanager
def launcher(*codes, grace=1.0):
    """A launcher process with two workers; yields it and the process ids that they print."""
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(grace), *codes],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, [int(pid) for _ in codes for pid in process.stdout.readline().split()]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


SLEEPER = "import os, time; print(os.getpid()); time.sleep(60)"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_the_launcher_leave_nothing_running(number):
    with launcher(SLEEPER, STUBBORN, grace=0.5) as (process, pids):
        assert len(pids) == 3
        process.send_signal(number)
        assert process.wait(10) == 128 + number
        wait_until(lambda: not any(map(is_running, pids)))
        error = process.stderr.read()
    assert f"{number.name}: stopping 2 workers" in error and "Traceback" not in error


def test_a_second_signal_kills_at_once():
    with launcher(STUBBORN, grace=60) as (process, pids):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert time.monotonic() - start < 5
        wait_until(lambda: not any(map(is_running, pids)))


def test_a_killed_launcher_leaves_nothing_running():
    with launcher(SLEEPER, STUBBORN, grace=0.5) as (process, pids):
        assert all(map(is_running, pids))
        process.kill()
        process.wait()
        wait_until(lambda: not any(map(is_running, pids)))


def test_ignored_hangup_stays_ignored():
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + LAUNCHER
    process = subprocess.Popen(
        [sys.executable, "-c", code, "1", "import time; print(1); time.sleep(.7)"],
        stdout=subprocess.PIPE,
    )
    with process:
        process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        assert process.wait(10) == 0


def feed(*pieces, **options):
    shown = []
    output = LineOutput(shown.append, **options)
    for piece in pieces:
        output.feed(piece)
    output.finish()
    return "".join(shown), output.tail


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([b"a\nb"], "> a\n> b\n"),
        ([b"a", b"b\n", b"", b"c\n"], "> ab\n> c\n"),
        ([b"1%\r2%\r3%\n"], "> 3%\n"),
        ([b"a\r\nb\r\n"], "> a\n> b\n"),
        ([b"a\r", b"\nb\n"], "> a\n> b\n"),
        ([b"1%\r2%\r"], "> 2%\n"),
        (["é".encode()[:1], "é".encode()[1:], b"\n"], "> é\n"),
        ([b"\xff\n"], "> \ufffd\n"),
        ([b"\xc3"], "> \ufffd\n"),
        ([b"\n\n"], "> \n> \n"),
        ([b""], ""),
    ],
)
def test_lines(pieces, shown):
    assert feed(*pieces, prefix="> ")[0] == shown


def test_raw_output_moves_and_the_tail_holds_lines():
    shown, tail = feed(b"1%\r", b"2%\r3", b"%\ndone", raw=True)
    assert shown.startswith("1%\r2%\r3%\ndone")
    assert tail == ("3%", "done")
    shown, tail = feed(*[b"x" * 50000] * 3)
    assert max(map(len, shown.splitlines())) <= 2 * 65536 and shown.count("x") == 150000


def test_reserved_ports_are_distinct_free_and_locked():
    with reserve_ports(5) as first, reserve_ports(5) as second:
        ports = {*first.ports, *second.ports}
        assert len(ports) == 10 and all(20000 <= port < 30000 for port in ports)
        assert all(map(port_is_free, ports))
        with pytest.raises(OSError, match=f"port {first.ports[0]}, for worker 0, is in use"):
            reserve_ports(1, first_port=first.ports[0])
    with reserve_ports(1, first_port=first.ports[0]) as again:
        assert again.ports == first.ports[:1]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_listening_port_is_not_free(host):
    with reserve_ports(1) as reservation:
        (port,) = reservation.ports
    with socket.create_server((host, port)):
        assert not port_is_free(port)
        with pytest.raises(OSError, match=f"port {port}, for worker 0, is in use"):
            reserve_ports(1, first_port=port)
    assert port_is_free(port)


def test_too_many_ports():
    with pytest.raises(OSError, match="of 20000 free ports"):
        reserve_ports(20000)


def test_locks_end_with_the_process_even_when_killed():
    code = (
        "import time; from tfscale.rendezvous.ports import reserve_ports; r = reserve_ports(1);"
        "print(r.ports[0], flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with process:
        port = int(process.stdout.readline())
        with pytest.raises(OSError):
            reserve_ports(1, first_port=port)
        process.kill()
        process.wait()
        reserve_ports(1, first_port=port).close()


def test_many_processes_reserve_at_once_without_a_clash():
    code = (
        "import sys; from tfscale.rendezvous.ports import reserve_ports; r = reserve_ports(40);"
        "print(*r.ports, flush=True); sys.stdin.read()"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    ports = [port for process in processes for port in process.stdout.readline().split()]
    for process in processes:
        process.communicate()
    assert len(ports) == len(set(ports)) == 160
    assert os.getpid()


def test_a_log_file_on_a_full_disk_does_not_end_the_job():
    command = python("a", "print('one'); print('two')", log_file="/dev/full")
    result, shown, _ = run(command)
    assert result.exit_code == 0
    assert "/dev/full" in shown and "one\ntwo\n" in shown


def test_a_background_command_ends_with_the_others():
    serves = "import signal, time\nprint('up', flush=True)\ntry: time.sleep(60)\nfinally: pass"
    start = time.monotonic()
    result, shown, _ = run(
        python("worker 0", "import time; time.sleep(0.5); print('done')"),
        python("service", serves, background=True),
    )
    assert time.monotonic() - start < 10
    assert (result.exit_code, result.failed_first, result.describe()) == (0, None, "")
    assert sorted(shown.split()) == ["done", "up"]


def test_the_failure_of_a_background_command_stops_the_others():
    result, _, _ = run(
        python("worker 0", "import time; time.sleep(60)"),
        python("service", "import sys; print('no port'); sys.exit(1)", background=True),
        grace_seconds=2,
    )
    assert (result.exit_code, result.failed_first) == (1, 1)
    assert "service failed first" in result.describe() and "no port" in result.describe()
