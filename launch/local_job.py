"""The workers of a local job: the command and the environment of each."""

import dataclasses
import os
from pathlib import Path

from tfscale.cluster import ClusterConfig
from tfscale.cores import LOCAL_WORKERS, available_cores
from tfscale.gpus import visible_gpus
from tfscale.processes import Command
from tfscale.rendezvous.proxies import exempt

from . import data_service

_HOST = "127.0.0.1"
_LOOPBACK = ("localhost", _HOST, "::1")


@dataclasses.dataclass(frozen=True)
class LocalJob:
    """What is to be started.

    Args:
        program: `list` of `str`, the command line of one worker.
        workers: `int`.
        devices_per_worker: `int`, or `None` for its share of the GPUs, else 1.
        start_timeout: `float`, seconds that workers wait for each other. Defaults to `None`:
            the program's own choice.
        show: ``"all"`` or ``"leader"``. Defaults to ``"all"``.
        log_dir: folder for one log file a worker. Defaults to none.
        data_workers: `int`, processes of a data service. Defaults to 0: none.
    """

    program: list
    workers: int
    devices_per_worker: int | None = None
    start_timeout: float | None = None
    show: str = "all"
    log_dir: str | None = None
    data_workers: int = 0

    @property
    def num_ports(self):
        return self.workers + bool(self.data_workers)


def commands(job, ports, environ):
    """The `Command` of each worker of `job`, and a line for people about what it will use.

    With a data service its `Command` is the last one, and so is its port.
    """
    gpus = visible_gpus(environ)
    devices = job.devices_per_worker or max(1, len(gpus) // job.workers)
    needed = job.workers * devices
    processes = job.workers + job.data_workers
    cores = max(1, available_cores() // processes)
    uses = f"{cores} core{'s' if cores > 1 else ''} each"
    if gpus:
        few = len(gpus) < needed
        uses += (
            f", on CPU since {needed} GPUs are needed and {len(gpus)} are there"
            if few
            else f", {devices} of {len(gpus)} GPUs each"
        )
    workers = tuple(f"{_HOST}:{port}" for port in ports[: job.workers])
    result = []
    for index in range(job.workers):
        env = dict(environ)
        env.pop("TF_CONFIG", None)
        if job.workers > 1:
            env["TF_CONFIG"] = ClusterConfig(workers, task_index=index).to_json()
        env["TFSCALE_DEVICES_PER_WORKER"] = str(devices)
        if job.start_timeout:
            env["TFSCALE_START_TIMEOUT"] = f"{job.start_timeout:g}"
        # The input pipeline divides the cores by it; 1 set by who pins workers to cores wins.
        env.setdefault(LOCAL_WORKERS, str(processes))
        if job.data_workers:
            env[data_service.VARIABLE] = data_service.address(ports[-1])
        for name, value in _threads(cores, devices).items():
            env.setdefault(name, value)
        env.setdefault("PYTHONUNBUFFERED", "1")
        # From every worker, TensorFlow's remarks on the machine bury what the program says.
        env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        if gpus:
            mine = gpus[index * devices : (index + 1) * devices]
            env["CUDA_VISIBLE_DEVICES"] = "-1" if len(gpus) < needed else ",".join(mine)
        env |= exempt(_LOOPBACK, environ)
        paths = [str(Path.cwd()), environ.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        alone = job.show == "leader"
        result.append(
            Command(
                name=f"worker {index}",
                argv=tuple(job.program),
                env=env,
                prefix=f"[worker {index}] " if index else "",
                show=index == 0 or not alone,
                raw=alone,
                log_file=str(Path(job.log_dir) / f"worker-{index}.log") if job.log_dir else None,
            )
        )
    if job.data_workers:
        shown = job.show == "all"
        result.append(
            data_service.command(job.data_workers, ports[-1], cores, environ, job.log_dir, shown)
        )
        uses += f"; data service of {job.data_workers} x {cores}"
    plural = f"{job.workers} worker{'s' if job.workers > 1 else ''}"
    return result, f"{plural} x {devices} device{'s' if devices > 1 else ''}, {uses}"


def _threads(cores, devices):
    return {
        "OMP_NUM_THREADS": str(cores),
        "TF_NUM_INTRAOP_THREADS": str(cores),
        # An op that waits for another device must not hold the only thread.
        "TF_NUM_INTEROP_THREADS": str(max(cores, devices + 1)),
    }
