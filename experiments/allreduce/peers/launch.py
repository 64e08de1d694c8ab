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
from tfscale.processes import Command, run_group

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
        extra = {}
        if spec.environment == "horovod":
            port = stack.enter_context(_rendezvous(python, lab, workers, folder, timeout_seconds))
            extra = {
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": lab.address(0),
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            }
        commands = []
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
            argv = lab.command(worker, _knowing_names(program, lab, worker, workers, folder))
            commands.append(Command(f"worker {worker}", tuple(argv), variables, show=False))
        result = run_group(commands, timeout_seconds=timeout_seconds)
        if result.stopped_by is not None:
            raise KeyboardInterrupt(result.describe())
        paths = [folder / f"report-{worker}.json" for worker in range(workers)]
        problem = result.describe()
        if not problem and not all(path.exists() for path in paths):
            problem = "a worker ended without a report"
        if problem:
            raise PeerFailed("\n".join([f"{method}: {problem}", *_tails(result)]))
        return [json.loads(path.read_text()) for path in paths]


def _tails(result):
    """Every worker's last lines: of a group that hangs none is the first to fail."""
    for name, code, tail in zip(result.names, result.exit_codes, result.tails, strict=True):
        yield f"--- {name} (exit code {code}), last lines:"
        yield from tail


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


@contextlib.contextmanager
def _rendezvous(python, lab, workers, folder, timeout_seconds):
    """Horovod's meeting point on worker 0's host, until it is left; gives its port.

    Not a member of the workers' group: it ends when its standard input is closed.
    """
    path, log = folder / "port", folder / "log-rendezvous.txt"
    module = "experiments.allreduce.peers.horovod_rendezvous"
    deadline = time.monotonic() + timeout_seconds
    with (
        open(log, "wb") as output,
        subprocess.Popen(
            lab.command(0, [str(python), "-m", module, str(path), str(workers)]),
            env=_variables(0, workers),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            while not path.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise PeerFailed(
                        f"Horovod's rendezvous did not start:\n{log.read_text()[-2000:]}"
                    )
                time.sleep(0.05)
            yield int(path.read_text())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
