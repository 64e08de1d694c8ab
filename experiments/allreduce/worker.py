"""The program of one worker: ``python -m experiments.allreduce.worker SETTINGS.json``.

The benchmark starts it on every host of the lab and reads what it leaves in the settings' folder.
"""

import json
import sys
from pathlib import Path


def main(argv=None):
    (path,) = sys.argv[1:] if argv is None else argv
    settings = json.loads(Path(path).read_text())
    if settings["mode"] == "train":
        from experiments.allreduce import training as mode
    else:
        from experiments.allreduce import exchange as mode
    mode.measure(settings)


if __name__ == "__main__":
    main()
