"""The launcher from its command line, with small programs that need no TensorFlow."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch import cli, local, local_job
from tfscale.cluster import ClusterConfig
from tfscale.cores import available_cores
from tfscale.gpus import visible_gpus
from tfscale.rendezvous.ports import reserve_ports

ROOT = Path(__file__).parent.parent
SHOW_ENVIRONMENT = """
import json, os, sys
keys = "TF_CONFIG TFSCALE_DEVICES_PER_WORKER TFSCALE_START_TIMEOUT TFSCALE_LOCAL_WORKERS " \
       "OMP_NUM_THREADS no_proxy " \
       "TF_NUM_INTRAOP_THREADS TF_NUM_INTEROP_THREADS PYTHONUNBUFFERED PYTHONPATH NO_PROXY"
print(json.dumps({key: os.environ.get(key) for key in keys.split()} | {"argv": sys.argv[1:]}))
"""


@pytest.fixture
def program(tmp_path):
    def write(code, name="prog.py"):
        path = tmp_path / name
        path.write_text(code)
        return str(path)

    return write


def launch(*argv, env=None, cwd=ROOT, timeout=60):
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "OMP_", "TFSCALE"))}
    paths = str(ROOT) if cwd != ROOT else ""
    environ |= {"PYTHONPATH": paths} | (env or {})
    return subprocess.run(
        [sys.executable, "-m", "launch.local", *argv],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def environments(done, workers):
    """What SHOW_ENVIRONMENT printed in each worker, in the order of the workers."""
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == workers
    by_index = {}
    for line in lines:
        prefix, brace, text = line.partition("{")
        values = json.loads(brace + text)
        index = ClusterConfig.from_json(values["TF_CONFIG"] or "").worker_index
        assert prefix == (f"[worker {index}] " if index else "")
        by_index[index] = values
    return [by_index[index] for index in range(workers)]


def test_environment_of_each_worker(program):
    path = program(SHOW_ENVIRONMENT)
    done = launch(
        "--workers=3", "--devices_per_worker=2", "--start_timeout=7", path, "--", "a b", "-x"
    )
    workers = environments(done, 3)
    configs = [ClusterConfig.from_json(values["TF_CONFIG"]) for values in workers]
    assert len({config.workers for config in configs}) == 1 and len(set(configs[0].workers)) == 3
    cores = max(1, available_cores() // 3)
    for values in workers:
        assert values["argv"] == ["a b", "-x"]
        assert values["TFSCALE_DEVICES_PER_WORKER"] == "2"
        assert values["TFSCALE_START_TIMEOUT"] == "7"
        assert values["TFSCALE_LOCAL_WORKERS"] == "3"
        assert values["OMP_NUM_THREADS"] == values["TF_NUM_INTRAOP_THREADS"] == str(cores)
        assert int(values["TF_NUM_INTEROP_THREADS"]) == max(cores, 3)
        assert values["no_proxy"] == values["NO_PROXY"] == "localhost,127.0.0.1,::1"
        assert values["PYTHONUNBUFFERED"] == "1"
        assert values["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
    assert "3 workers x 2 devices" in done.stderr


def test_what_the_user_has_set_wins(program):
    env = {"OMP_NUM_THREADS": "5", "no_proxy": "corp", "TFSCALE_DEVICES_PER_WORKER": "4"}
    env["TFSCALE_LOCAL_WORKERS"] = "1"
    done = launch("--workers=2", program(SHOW_ENVIRONMENT), env=env)
    for values in environments(done, 2):
        assert values["OMP_NUM_THREADS"] == "5"
        assert values["no_proxy"] == "corp,localhost,127.0.0.1,::1"
        assert values["TFSCALE_DEVICES_PER_WORKER"] == "4"
        assert values["TFSCALE_START_TIMEOUT"] is None
        assert values["TFSCALE_LOCAL_WORKERS"] == "1"
    done = launch(
        "--devices_per_worker=1", program(SHOW_ENVIRONMENT), env=env | {"TF_CONFIG": '{"x": 1}'}
    )
    (values,) = environments(done, 1)
    assert values["TFSCALE_DEVICES_PER_WORKER"] == "1"
    assert values["TF_CONFIG"] is None, "one worker is not a cluster"
    assert "TF_CONFIG of your environment is replaced" in done.stderr


def test_modules_and_imports_from_a_clone(tmp_path):
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(
        "import mine, tfscale, sys; print(mine.__name__, sys.argv[1:])"
    )
    for argv in (["-m", "mine.train", "--", "--x"], ["mine/train.py", "--", "--x"]):
        done = launch("--workers=2", *argv, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == ["[worker 1] mine ['--x']", "mine ['--x']"]


def test_executables_that_are_not_python(program):
    path = program("#!/bin/sh\necho $TFSCALE_DEVICES_PER_WORKER $1\n", "train.sh")
    Path(path).chmod(0o755)
    done = launch("--workers=1", path, "--", "hello")
    assert (done.returncode, done.stdout) == (0, "1 hello\n")
    done = launch("--workers=1", "echo", "--", "found on the path")
    assert (done.returncode, done.stdout) == (0, "found on the path\n")


FAILING = """
import json, os, sys, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
print("I am", index, flush=True)
if index == 1:
    time.sleep(0.3)
    sys.exit("the cause")
time.sleep(60)
"""


def test_failure_is_explained(program):
    start = time.monotonic()
    done = launch("--workers=2", program(FAILING))
    assert done.returncode == 1 and time.monotonic() - start < 15
    assert "worker 1 failed first" in done.stderr and "with exit code 1" in done.stderr
    assert "  | the cause" in done.stderr
    assert "I am 0\n" in done.stdout and "[worker 1] the cause\n" in done.stdout


def test_show_leader_hides_the_others_but_not_their_failure(program, tmp_path):
    logs = tmp_path / "logs" / "deep"
    done = launch("--workers=2", "--show=leader", f"--log_dir={logs}", program(FAILING))
    assert done.returncode == 1
    assert done.stdout == "I am 0\n"
    assert "  | the cause" in done.stderr and str(logs) in done.stderr
    assert (logs / "worker-0.log").read_text() == "I am 0\n"
    assert "the cause" in (logs / "worker-1.log").read_text()


def test_show_leader_lets_a_progress_bar_move(program):
    code = "import os\nprint('1%\\r2%\\r3%')"
    done = launch("--workers=2", "--show=leader", program(code))
    assert done.stdout == "1%\n2%\n3%\n"  # As text, each return is a line.


def test_dry_run_prints_what_can_be_pasted(program):
    path = program(SHOW_ENVIRONMENT)
    done = launch("--workers=2", "--dry_run", path, "--", "a 'quoted' b")
    assert done.returncode == 0 and done.stderr == ""
    blocks = re.split(r"^# worker \d\n", done.stdout, flags=re.MULTILINE)[1:]
    assert len(blocks) == 2
    for index, block in enumerate(blocks):
        done = subprocess.run(["sh", "-c", block], capture_output=True, check=True)
        values = json.loads(done.stdout)
        assert ClusterConfig.from_json(values["TF_CONFIG"]).worker_index == index
        assert values["argv"] == ["a 'quoted' b"]


@pytest.mark.parametrize(
    ("argv", "pieces"),
    [
        (["--workers=0", "PROG"], ["--workers", "'0'", "at least 1"]),
        (["--workers=two", "PROG"], ["--workers", "'two'"]),
        (["--devices_per_worker=-1", "PROG"], ["--devices_per_worker", "'-1'"]),
        (["--start_timeout=0", "PROG"], ["--start_timeout", "seconds above 0"]),
        (["--grace=nan", "PROG"], ["--grace", "'nan'"]),
        (["--show=some", "PROG"], ["--show", "'all', 'leader'"]),
        (["--worker=2", "PROG"], ["--worker=2", "did you mean --workers?"]),
        (["--device_per_worker", "2", "PROG"], ["did you mean --devices_per_worker?"]),
        (["PROG", "--epochs=3"], ["--epochs=3", "after --"]),
        (["PROG", "extra"], ["'extra'", "after --"]),
        ([], ["no program"]),
        (["no/such.py"], ["no such program: no/such.py"]),
        (["-m", "no_such_module.train"], ["no module named 'no_such_module'"]),
        (["-m", ".x"], ["no module named"]),
        (["-m", "json", "PROG"], ["both -m json"]),
        (["TEXT"], ["neither a .py file nor executable", "chmod +x"]),
        (["FOLDER"], ["folder without __main__.py"]),
        (["--first_port=65535", "--workers=2", "PROG"], ["--first_port=65535"]),
        (["--log_dir=PROG/x", "PROG"], ["prog.py"]),
    ],
)
def test_bad_command_lines(argv, pieces, program, tmp_path, capsys):
    paths = {"PROG": program(""), "TEXT": program("", "notes.txt"), "FOLDER": str(tmp_path)}
    for name, path in paths.items():
        argv = [word.replace(name, path) for word in argv]
    with pytest.raises(SystemExit) as caught:
        local.main(argv)
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("python -m launch.local: ") and message.count("\n") == 1
    for piece in pieces:
        assert piece in message, message


def test_a_bad_command_line_is_answered_at_once():
    start = time.monotonic()
    done = launch("--workers=0", "x.py")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert time.monotonic() - start < 3, "on an idle machine it takes 0.2 s"


def test_first_port_taken_is_named(program):
    with reserve_ports(1) as reservation:
        port = reservation.ports[0]
    with socket.create_server(("127.0.0.1", port)):
        done = launch("--workers=2", f"--first_port={port - 1}", program(""))
    assert done.returncode == 1 and f"port {port}, for worker 1, is in use" in done.stderr


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as caught:
        local.main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for word in ("examples:", "--devices_per_worker", "TF_CONFIG", "exit code", "-- --config"):
        assert word in text


def test_console_script(capsys, program):
    assert cli.main([]) == 2 and cli.main(["--help"]) == 0
    assert "local" in capsys.readouterr().out
    assert cli.main(["locale"]) == 2
    assert "did you mean 'local'?" in capsys.readouterr().err
    assert cli.main(["--version"]) == 0
    assert cli.main(["local", "--dry_run", program("")]) == 0
    with pytest.raises(SystemExit):
        cli.main(["local", "--workers=0"])
    assert "tfscale-launch local: argument --workers" in capsys.readouterr().err


def test_output_to_a_closed_pipe_ends_the_job(program):
    path = program("while True: print('x' * 1000)")
    command = f"{sys.executable} -m launch.local {path} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 141 and "Traceback" not in done.stderr


def test_the_job_runs_without_standard_output(program, tmp_path):
    path = program(f"open({str(tmp_path / 'ran')!r}, 'w'); print('lost')")
    command = f"{sys.executable} -m launch.local {path} >&-"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 0 and b"Traceback" not in done.stderr
    assert (tmp_path / "ran").exists()


def test_ctrl_c(program):
    path = program("import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    process = subprocess.Popen(
        [sys.executable, "-m", "launch.local", "--workers=2", path],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        pids = [int(process.stdout.readline().split()[-1]) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 130
        assert "Traceback" not in process.stderr.read()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


MEETING = """
import socket, sys
from tfscale.cluster import ClusterConfig
from tfscale.preflight import PreflightError, meet
config = ClusterConfig.from_env()
try:
    meet(config, {"arguments": " ".join(sys.argv[1:])}, 30)
except PreflightError as error:
    sys.exit(str(error))
with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as server:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("", int(config.address.rpartition(":")[2])))
    server.listen()
print("met")
"""


def rounds(program, count):
    path = program(MEETING)
    for _ in range(count):
        jobs = [
            subprocess.Popen(
                [sys.executable, "-m", "launch.local", "--workers=2", path],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        for job in jobs:
            out, err = job.communicate(timeout=60)
            assert job.returncode == 0, err
            assert sorted(out.splitlines()) == ["[worker 1] met", "met"]


def test_two_jobs_at_the_same_moment(program):
    rounds(program, 2)


def test_start_timeout_reaches_the_program_and_names_who_is_missing(program):
    code = (
        "import os, time\nif '\"index\": 1' in os.environ['TF_CONFIG']: time.sleep(60)\n" + MEETING
    )
    start = time.monotonic()
    done = launch("--workers=2", "--start_timeout=1", program(code))
    assert done.returncode == 1 and time.monotonic() - start < 15
    assert "worker 0 failed first" in done.stderr
    assert "after 1 s this still lacks: worker 1 (127.0.0.1:" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_a_job_can_start_again_at_once_after_a_kill(program):
    path = program(MEETING)
    first = subprocess.Popen(
        [sys.executable, "-m", "launch.local", "--workers=2", path],
        cwd=ROOT,
        stderr=subprocess.PIPE,
    )
    with first:
        first.stderr.readline()
        first.kill()
    done = launch("--workers=2", path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_two_jobs_at_the_same_moment_twenty_times(program):
    rounds(program, 20)


def test_gpus_are_divided_where_there_are_enough(monkeypatch, tmp_path):
    monkeypatch.setattr(local_job, "available_cores", lambda: 8)

    def visible(job, environ):
        planned, summary = local_job.commands(job, range(1, job.workers + 1), environ)
        return [command.env["CUDA_VISIBLE_DEVICES"] for command in planned], summary

    job = local_job.LocalJob(["x"], workers=2, devices_per_worker=2)
    assert visible(job, {"CUDA_VISIBLE_DEVICES": "0,1,5,GPU-a,7"})[0] == ["0,1", "5,GPU-a"]
    ids, summary = visible(job, {"CUDA_VISIBLE_DEVICES": "0,1,2"})
    assert ids == ["-1", "-1"] and "4 GPUs are needed and 3 are there" in summary
    assert "4 cores each" in summary
    share = local_job.LocalJob(["x"], workers=2)
    assert visible(share, {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4"})[0] == ["0,1", "2,3"]
    planned, _ = local_job.commands(job, [1, 2], {"CUDA_VISIBLE_DEVICES": "-1"})
    assert planned[0].env["CUDA_VISIBLE_DEVICES"] == "-1"
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ["0", "2", "10"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == []
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "3,-1,4"}, tmp_path) == ["3"]
