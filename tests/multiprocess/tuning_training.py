"""The training program of a search whose trials are clusters: writes down what each worker saw."""

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Literal

from tfscale.cluster import ClusterConfig
from tfscale.config import field, parse


@dataclasses.dataclass(frozen=True)
class Run:
    learning_rate: float = field(0.1, "learning rate")
    momentum: float = field(0.9, "momentum")
    precision: Literal["float32", "mixed_bfloat16"] = field("float32", "compute type")
    epochs: int = field(2, "epochs")
    model_dir: str = field("runs/tuning_training", "run folder")


def default():
    """The only run."""
    return Run()


CONFIGS = {"default": default}


def main():
    begin = time.time()
    run = parse(sys.argv[1:], CONFIGS, program=__file__)
    cluster = ClusterConfig.from_env()
    import numpy as np

    from tfscale import callbacks, distribute, keras, precision
    from tfscale.callbacks.epoch_log import EpochLog

    keras.utils.set_random_seed(0)
    strategy = distribute.create_strategy("auto", timeout_seconds=60)
    if run.precision != "float32":
        precision.set_global_policy(run.precision)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
        model.compile(keras.optimizers.SGD(run.learning_rate, run.momentum), "mse")
    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)

    def data(context):
        rows = x[context.input_pipeline_id :: context.num_input_pipelines]
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices((rows, rows[:, :3])).batch(8).repeat()

    model.fit(
        strategy.distribute_datasets_from_function(data),
        epochs=run.epochs,
        steps_per_epoch=2,
        verbose=0,
        callbacks=[callbacks.StopOnNonFinite(), EpochLog(Path(run.model_dir) / "epochs.jsonl")],
    )
    seen = {
        "run": dataclasses.asdict(run),
        "workers": list(cluster.workers),
        "replicas": strategy.num_replicas_in_sync,
        "policy": keras.mixed_precision.global_policy().name,
        "compute_dtype": model.layers[-1].compute_dtype,
        "TMPDIR": os.environ["TMPDIR"],
        "local_workers": os.environ["TFSCALE_LOCAL_WORKERS"],
        "weights": [float(v) for w in model.get_weights() for v in w.ravel()],
        "begin": begin,
        "end": time.time(),
    }
    Path(run.model_dir, f"worker-{cluster.task_index}.json").write_text(json.dumps(seen))
    # A worker that leaves while another still works looks like one that died.
    distribute.gather_values(strategy, "finished", True, timeout_seconds=60)


if __name__ == "__main__":
    main()
