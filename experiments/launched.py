"""A module as a job of several local workers, of which the first writes its result as JSON."""

import json
import tempfile
from pathlib import Path


def call(module, workers, devices_per_worker, flags):
    """Starts ``python -m MODULE FLAGS --output=FILE`` on each worker, and reads the file.

    Args:
        module: `str`.
        workers, devices_per_worker: `int`.
        flags: `list` of `str`.

    Returns:
        ``(code, result)``: the launcher's exit code, and what worker 0 has written; None where
        the code is not 0.
    """
    from launch.local import main as launch_local

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output.json"
        code = launch_local(
            [
                f"--workers={workers}",
                f"--devices_per_worker={devices_per_worker}",
                "--show=leader",
                "-m",
                module,
                "--",
                *flags,
                f"--output={output}",
            ]
        )
        return code, None if code else json.loads(output.read_text())
