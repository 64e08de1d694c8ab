"""The data service of a local job: data workers that read and decode for all training workers."""

import os
import sys
from pathlib import Path

from tfscale.processes import Command
from tfscale.rendezvous.proxies import exempt

VARIABLE = "TFSCALE_DATA_SERVICE"
_HOST = "127.0.0.1"


def address(port):
    """What `VARIABLE` says in the training workers."""
    return f"grpc://{_HOST}:{port}"


def command(data_workers, port, cores, environ, log_dir=None, show=True):
    """The `Command` that serves while the training workers run.

    Args:
        data_workers: `int`.
        port: `int`, of the dispatcher.
        cores: `int`, of each data worker.
        environ: mapping, the launcher's environment.
        log_dir: folder for its log file. Defaults to none.
        show: `bool`, whether its output is shown. Defaults to `True`.
    """
    env = {**environ, "PYTHONUNBUFFERED": "1"} | exempt(("localhost", _HOST), environ)
    # The workers get the address; a data worker needs none, and no cluster.
    for name in ("TF_CONFIG", VARIABLE):
        env.pop(name, None)
    paths = [str(Path.cwd()), environ.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    options = [f"--port={port}", f"--workers={data_workers}", f"--threads={cores}"]
    return Command(
        name="data service",
        argv=(sys.executable, "-m", "tfscale.data.service", *options),
        env=env,
        prefix="[data service] ",
        show=show,
        log_file=str(Path(log_dir) / "data-service.log") if log_dir else None,
        background=True,
    )
