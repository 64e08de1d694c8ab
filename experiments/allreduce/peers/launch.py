"""Starts a peer's workers on the hosts of the network lab and waits, but not for ever."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from experiments.allreduce.lab import INTERFACE
from experiments.allreduce.peers import environments

PORT = 29400  # In namespaces of our own nobody else listens.


class PeerFailed(RuntimeError):
    """A peer's worker failed or took too long; the text has every worker's last lines."""


def run_workers(method, python, lab, workers, repeats, shapes, timeout_seconds, program=None):
    """Runs one method on all workers and returns what each of them measured.

    Args:
        method: `str`, one of `environments.METHODS`.
        python: the interpreter of the peer's environment.
        lab: the network lab; of it ``command(worker, argv)`` (the command line that runs
            `argv` on the worker's host) and ``address(worker)`` are used.
        workers: `int`, number of workers, one device each.
        repeats: `int`, measured all-reduces.
        shapes: shapes of the gradients.
        timeout_seconds: `float`, after which all workers are killed.
        program: `list`, a command line to run in place of the peer's worker, for tests.

    Returns:
        `list` of the workers' reports (see `measuring.measure`), in worker order.

    Raises:
        PeerFailed: if a worker fails or the time is over.
    """
    spec = environments.METHODS[method]
    program = program or [str(python), "-m", f"experiments.allreduce.peers.{spec.module}"]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tfscale-peer-")))
        deadline = time.monotonic() + timeout_seconds
        extra = {}
        if spec.environment == "horovod":
            port = _rendezvous(python, lab, workers, folder, deadline, stack)
            extra = {
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": lab.address(0),
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            }
        processes = []
        for worker in range(workers):
            settings = {
                "method": method,
                "rank": worker,
                "workers": workers,
                "repeats": repeats,
                "shapes": [list(shape) for shape in shapes],
                "leader": lab.address(0),
                "port": PORT,
                "threads": max(1, (os.cpu_count() or 1) // workers),
                "report": str(folder / f"report-{worker}.json"),
            }
            variables = {**_variables(worker, workers), **extra}
            variables["TFSCALE_PEER"] = json.dumps(settings)
            command = lab.command(worker, _knowing_names(program, lab, worker, workers, folder))
            log = folder / f"log-{worker}.txt"
            processes.append(_start(command, variables, log, stack))
        problem = _wait(processes, deadline, timeout_seconds)
        reports = [_report(folder, worker, processes[worker]) for worker in range(workers)]
        if problem or None in reports:
            tails = [_tail(folder, worker, processes[worker]) for worker in range(workers)]
            problem = problem or "a worker ended without a report"
            raise PeerFailed("\n".join([f"{method}: {problem}", *tails]))
        return reports


def _variables(worker, workers):
    """The environment of a worker, less what is meant for our own or would lead elsewhere."""
    foreign = ("TF_", "TFSCALE_", "OMP_", "HOROVOD_", "GLOO_", "PYTHON")
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(foreign) and not name.lower().endswith("_proxy")
    }
    return {
        **variables,
        "PYTHONPATH": str(environments.ROOT),
        "CUDA_VISIBLE_DEVICES": "-1",
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "HOROVOD_GLOO_IFACE": INTERFACE,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_HOSTNAME": f"worker{worker}",
        "HOROVOD_RANK": str(worker),
        "HOROVOD_SIZE": str(workers),
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": str(worker),
        "HOROVOD_CROSS_SIZE": str(workers),
    }


def _knowing_names(command, lab, worker, workers, folder):
    """The command, started where the machine's name means the lab's address of this host.

    Horovod tells the others the address of its host name, which all of them would find to be
    127.0.0.1; PyTorch asks for the names of the others, and in a lab no name server answers.
    What ``ip netns exec`` runs has mounts of its own, so nothing else sees this one.
    """
    names = [f"worker{i}" for i in range(workers)]
    names[worker] += f" {socket.gethostname()}"
    lines = [f"{lab.address(i)} {name}\n" for i, name in enumerate(names)]
    hosts = folder / f"hosts-{worker}"
    hosts.write_text("".join(["127.0.0.1 localhost\n", *lines]))
    script = 'mount --bind "$0" /etc/hosts && exec "$@"'
    return ["sh", "-c", script, str(hosts), *command]


def _rendezvous(python, lab, workers, folder, deadline, stack):
    """Starts Horovod's meeting point on worker 0's host and returns its port."""
    path = folder / "port"
    module = "experiments.allreduce.peers.horovod_rendezvous"
    command = lab.command(0, [str(python), "-m", module, str(path), str(workers)])
    log = folder / "log-rendezvous.txt"
    process = _start(command, _variables(0, workers), log, stack, stdin=subprocess.PIPE)
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise PeerFailed(f"Horovod's rendezvous did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.05)
    return int(path.read_text())


def _start(command, variables, log, stack, stdin=subprocess.DEVNULL):
    output = stack.enter_context(open(log, "wb"))
    process = subprocess.Popen(
        command,
        env=variables,
        cwd=environments.ROOT,
        stdin=stdin,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    stack.callback(_end, process)
    return process


def _end(process):
    """Kills a worker with all that it started, which are in a session of their own."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.stdin:
        process.stdin.close()
    process.wait()


def _wait(processes, deadline, timeout_seconds):
    """Returns what went wrong, or None once all have ended well."""
    while True:
        codes = [process.poll() for process in processes]
        failed = [worker for worker, code in enumerate(codes) if code]
        if failed:
            return f"worker {failed[0]} exited with code {codes[failed[0]]}"
        if None not in codes:
            return None
        if time.monotonic() > deadline:
            running = [worker for worker, code in enumerate(codes) if code is None]
            return f"workers {running} still ran after {timeout_seconds:g} s and were ended"
        time.sleep(0.1)


def _report(folder, worker, process):
    path = folder / f"report-{worker}.json"
    return json.loads(path.read_text()) if path.exists() and process.poll() == 0 else None


def _tail(folder, worker, process, lines=20):
    text = (folder / f"log-{worker}.txt").read_text(errors="replace").splitlines()
    head = f"--- worker {worker} (exit code {process.poll()}), last lines:"
    return "\n".join([head, *text[-lines:]])
