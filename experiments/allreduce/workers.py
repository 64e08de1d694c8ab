"""One worker program on each host of a lab: its command line and environment."""

import os
from pathlib import Path

from tfscale.cluster import ClusterConfig
from tfscale.processes import Command

ROOT = Path(__file__).resolve().parent.parent.parent
PORT = 2222  # Each host has its own ports.


def commands(lab, argv, devices_per_worker, environ=None, busy_threads=0, log_dir=None):
    """Returns the `tfscale.processes.Command` of each worker, for `run_group`.

    Args:
        lab: a `Lab` that is up.
        argv: `list`, the program and its arguments, the same on all workers.
        devices_per_worker: `int`, logical CPU devices of each.
        environ: mapping of further environment variables.
        busy_threads: `int`, threads that a program holds while it emulates a computation.
        log_dir: folder that gets each worker's whole output.
    """
    addresses = tuple(f"{address}:{PORT}" for address in lab.addresses)
    cores = max(1, len(os.sched_getaffinity(0)) // lab.workers)
    result = []
    for worker in range(lab.workers):
        # A proxy could not reach the lab.
        env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        env.pop("TF_CONFIG", None)
        if lab.workers > 1:
            env["TF_CONFIG"] = ClusterConfig(addresses, task_index=worker).to_json()
        env["CUDA_VISIBLE_DEVICES"] = "-1"  # CPUs are what all workers of one machine can share.
        env["TFSCALE_DEVICES_PER_WORKER"] = str(devices_per_worker)
        env["OMP_NUM_THREADS"] = env["TF_NUM_INTRAOP_THREADS"] = str(cores)
        # As the launcher does: an op that waits for another device must not hold the only thread.
        interop = max(cores, devices_per_worker + 1) + busy_threads
        env["TF_NUM_INTEROP_THREADS"] = str(interop)
        env.setdefault("TF_USE_LEGACY_KERAS", "1")
        env.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # Also silences the search for GPUs.
        env["PYTHONUNBUFFERED"] = "1"
        paths = [str(ROOT), env.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        env |= environ or {}
        result.append(
            Command(
                name=f"worker {worker}",
                argv=tuple(lab.command(worker, argv)),
                env=env,
                show=worker == 0,
                log_file=str(Path(log_dir) / f"worker-{worker}.log") if log_dir else None,
            )
        )
    return result
