"""Tools for testing distributed code on one machine: logical devices and real processes."""

import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from tfscale.rendezvous import ports, proxies


def set_logical_devices(count):
    """Splits the CPU into `count` logical devices; must come before TensorFlow starts.

    Args:
        count: `int`, number of logical CPU devices.

    Raises:
        RuntimeError: if TensorFlow has already initialised its devices.

    Example:
        >>> set_logical_devices(4)
        >>> tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(4)])
    """
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
    )


def run_in_processes(function, workers, devices_per_worker=1, args=(), timeout=180, env=None):
    """Runs ``function(*args)`` in `workers` real processes that form a TensorFlow cluster.

    Each process gets ``TF_CONFIG`` (addresses on loopback) and ``TFSCALE_DEVICES_PER_WORKER``.
    The function is found by its module and name, so it must live at the top level of a module
    that imports without side effects.

    Args:
        function: picklable by name; called in every process.
        workers: `int`, number of processes. 1 runs without ``TF_CONFIG``.
        devices_per_worker: `int`, what `create_strategy` takes by default.
        args: `tuple`, picklable positional arguments.
        timeout: `float`, seconds after which all processes are killed.
        env: `dict` of further environment variables, or a list with one `dict` for each worker.

    Returns:
        `list` with each worker's (picklable) result, in worker order.

    Raises:
        RuntimeError: if a worker fails or the time is over, with every worker's last lines.

    Example:
        >>> run_in_processes(os.getpid, workers=2)
        [4711, 4712]
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tfscale-")))
        (folder / "call.pickle").write_bytes(pickle.dumps((function, args)))
        # Other jobs on this machine keep off them until the end.
        taken = stack.enter_context(ports.reserve_ports(workers)).ports
        environments = _environments(taken, devices_per_worker, env)
        processes = [
            _start(folder, index, environment, stack)
            for index, environment in enumerate(environments)
        ]
        problem = _wait(processes, time.monotonic() + timeout, timeout)
        results, missing = [], []
        for index, process in enumerate(processes):
            path = folder / f"result-{index}.pickle"
            if path.exists() and process.returncode == 0:
                results.append(pickle.loads(path.read_bytes()))
            else:
                missing.append(index)
        if missing:
            logs = (_tail(folder, index, processes[index]) for index in range(workers))
            raise RuntimeError("\n".join([problem or f"workers {missing} failed", *logs]))
        return results


def _environments(taken, devices_per_worker, env):
    workers = len(taken)
    extra = env if isinstance(env, (list, tuple)) else [env or {}] * workers
    addresses = [f"127.0.0.1:{port}" for port in taken]
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    for index in range(workers):
        environment = {
            **os.environ,
            "TF_USE_LEGACY_KERAS": os.environ.get("TF_USE_LEGACY_KERAS", "1"),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "CUDA_VISIBLE_DEVICES": "-1",
            "TFSCALE_DEVICES_PER_WORKER": str(devices_per_worker),
            "OMP_NUM_THREADS": threads,
            "TFSCALE_LOCAL_WORKERS": str(workers),
            **proxies.exempt(["127.0.0.1", "localhost"], os.environ),
            # The child must find the function's module as this process did.
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p) + os.pathsep + os.getcwd(),
        }
        environment.pop("TF_CONFIG", None)
        if workers > 1:
            task = {"type": "worker", "index": index}
            environment["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
        yield {**environment, **extra[index]}


def _start(folder, index, environment, stack):
    log = stack.enter_context(open(folder / f"log-{index}.txt", "wb"))
    command = [sys.executable, "-c", "from tfscale import testing; testing._run_call()"]
    process = subprocess.Popen(
        [*command, str(folder), str(index)],
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    stack.callback(_kill, process)
    return process


def _kill(process):
    if process.poll() is None:
        process.kill()
    process.wait()


def _wait(processes, deadline, timeout):
    """Returns what went wrong, or None; a failed worker ends the wait after a short grace."""
    problem = None
    while problem is None or any(p.poll() is None for p in processes):
        codes = [p.poll() for p in processes]
        failed = [i for i, code in enumerate(codes) if code]
        if failed and problem is None:
            problem = f"worker {failed[0]} exited with code {codes[failed[0]]}"
            # The others should notice by themselves; what they say about it is worth keeping.
            deadline = min(deadline, time.monotonic() + 20)
        elif None not in codes:
            break
        elif time.monotonic() > deadline:
            running = [i for i, code in enumerate(codes) if code is None]
            problem = problem or f"workers {running} still ran after {timeout} s"
            for process in processes:
                _kill(process)
            break
        time.sleep(0.05)
    return problem


def _tail(folder, index, process, lines=25):
    text = (folder / f"log-{index}.txt").read_text(errors="replace").splitlines()
    head = f"--- worker {index} (exit code {process.returncode}), last lines:"
    return "\n".join([head, *text[-lines:]])


def _run_call():
    """The body of one process of `run_in_processes`."""
    threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    folder, index = Path(sys.argv[-2]), sys.argv[-1]
    function, args = pickle.loads((folder / "call.pickle").read_bytes())
    result = function(*args)
    partial = folder / f"partial-{index}.pickle"
    partial.write_bytes(pickle.dumps(result))
    partial.rename(folder / f"result-{index}.pickle")


def _leave_with_parent(parent):
    """Ends this process when its parent was killed and could not end it."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
