"""What a search sees of a training program, without TensorFlow: flags, epochs, and ways to fail."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

from tfscale.callbacks.epoch_file import append
from tfscale.config import field, parse

SLEEPER = "import time; time.sleep(60)"


@dataclasses.dataclass(frozen=True)
class Run:
    learning_rate: float = field(0.1, "best at 0.1")
    momentum: float = field(0.9, "best at 0.9")
    warmup: int = field(0, "best at 2")
    optimizer: Literal["lars", "sgd"] = field("lars", "lars is better")
    betas: tuple[float, ...] | None = field(None, "of no effect")
    epochs: int = field(3, "epochs")
    epoch_seconds: float = field(0.0, "duration of each")
    validation_freq: int = field(1, "epochs from one validation to the next")
    ill: Literal["none", "crash", "killed", "nan", "silent", "stubborn"] = field("none", "")
    model_dir: str = field("runs/tuning_program", "run folder")


def default():
    """The only run."""
    return Run()


CONFIGS = {"default": default}


def score(run, epoch):
    """The higher, the better; rises with the epochs."""
    worse = (math.log10(run.learning_rate) + 1) ** 2 / 10 + (run.momentum - 0.9) ** 2
    worse += abs(run.warmup - 2) / 100 + (0.05 if run.optimizer == "sgd" else 0)
    return (1 - worse) * (1 - 0.5**epoch)


def main():
    run = parse(sys.argv[1:], CONFIGS, program=__file__)
    folder = Path(run.model_dir)
    names = ("TMPDIR", "CUDA_VISIBLE_DEVICES", "TFSCALE_LOCAL_WORKERS", "TF_CONFIG")
    seen = {name: os.environ.get(name) for name in names} | {"begin": time.time()}
    if run.ill == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-S", "-c", SLEEPER])
        seen["child"] = child.pid
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "seen.json").write_text(json.dumps({**seen, "pid": os.getpid()}))
    print(f"training with learning_rate={run.learning_rate!r}", flush=True)
    for epoch in range(1, run.epochs + 1):
        time.sleep(run.epoch_seconds)
        if run.ill == "crash" and epoch == 2:
            raise ValueError("the data are not there")
        if run.ill == "killed" and epoch == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        value = math.nan if run.ill == "nan" and epoch == 2 else score(run, epoch)
        if run.ill != "silent":
            metrics = {"loss": -value}
            if epoch % run.validation_freq == 0:
                metrics["val_accuracy"] = value
            append(folder / "epochs.jsonl", epoch, run.epochs, metrics)
    (folder / "seen.json").write_text(json.dumps({**seen, "end": time.time()}))


if __name__ == "__main__":
    main()
