"""The training program: strategy, data, model, fit, export, summary.

One program for one device and for many workers; a launcher starts it once per worker:

    python experiments/train.py --config=quickstart
    python -m launch.local --workers=2 --devices_per_worker=2 experiments/train.py -- \\
        --config=quickstart --epochs=3
    python experiments/train.py --help
"""

import dataclasses
import functools
import importlib.metadata
import json
import logging
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

# Started as a file, Python puts experiments/ on the path in place of the folder above it.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiments import communication, failures, inputs
from experiments.quickstart import config as quickstart
from experiments.quickstart.datasets import ensure_records
from tfscale.cluster import ClusterConfig
from tfscale.config import parse
from tfscale.preflight import meet

CONFIGS = {
    "quickstart": quickstart.digits,
    "fashion_mnist": quickstart.fashion_mnist,
    "folder": quickstart.folder,
}
# Fields that may differ between workers: paths are local matters.
LOCAL_FIELDS = ("data_dir", "model_dir", "cache_dir", "threads")


def main(argv=None):
    run = parse(
        sys.argv[1:] if argv is None else argv, CONFIGS, default="quickstart", program=__file__
    )
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    logging.getLogger("tfscale").setLevel(logging.INFO)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        inputs.check(run)
        cluster = ClusterConfig.from_env()
        if cluster.is_evaluator:
            # It would train by itself, and write over what the workers save.
            raise ValueError(
                f"TF_CONFIG makes this process evaluator {cluster.task_index}, but this program "
                "has no evaluator: its workers evaluate after every epoch. Start workers only, or "
                "remove 'evaluator' from the job"
            )
        with failures.run_folder(Path(run.model_dir)) if cluster.is_leader else nullcontext():
            if run.dataset != "records" and cluster.is_leader:
                ensure_records(run.dataset, Path(run.records_dir).resolve())
            # Before TensorFlow loads: a missing worker shows in seconds, not after minutes.
            meet(cluster, declared=declarations(run), timeout_seconds=run.start_timeout)
            return train(run, cluster)
    except (Exception, KeyboardInterrupt) as error:
        code = failures.report(error)
        if code is None:
            raise
        return code


def declarations(run):
    """What all workers must agree on before they start: versions, devices and flags."""
    declared = {name: installed_version(name) for name in ("tensorflow", "tf_keras")}
    declared["python"] = sys.version.split()[0]
    declared["devices_per_worker"] = os.environ.get("TFSCALE_DEVICES_PER_WORKER", "all")
    fields = dataclasses.asdict(run).items()
    return declared | {f"--{k}": str(v) for k, v in fields if k not in LOCAL_FIELDS}


def installed_version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed under this name"  # As tensorflow-cpu, or built from source.


def train(run, cluster):
    start = time.monotonic()
    model_dir = Path(run.model_dir)

    from tfscale import callbacks, data, distribute, keras, precision
    from tfscale.export import export

    # Workers must not draw the same dropout masks; their weights are those of the leader.
    keras.utils.set_random_seed(run.seed + 1000 * cluster.task_index)
    strategy = distribute.create_strategy(
        run.strategy,
        cross_device_ops=communication.all_reduce(run),
        timeout_seconds=run.start_timeout,
    )
    topology = distribute.topology_of(strategy)
    # "auto" looks at the devices, which may differ from worker to worker.
    distribute.agree(strategy, "precision", precision.set_global_policy(run.precision))

    # ------------------------------------------------------------------ data
    describe = functools.partial(
        data.describe,
        run.records_dir,
        global_batch_size=run.global_batch_size,
        num_replicas=topology.num_replicas,
        num_workers=topology.workers,
        label_offset=run.label_offset,
        on_error=run.on_error,
    )
    contract = describe(split=run.train_split, seed=run.seed, training=True)
    # Before the first step: workers with other records would train without any error.
    distribute.agree(strategy, "data", contract.fingerprint())
    resume = callbacks.CheckpointAndResume(
        model_dir / "checkpoints",
        save_every=run.save_every,
        state={
            "data": contract.fingerprint(),
            "model": run.model,
            "image_size": run.image_size,
            "global_batch_size": run.global_batch_size,
        },
    )
    if resume.is_complete(run.epochs) and (model_dir / "summary.json").exists():
        if cluster.is_leader:
            print(
                f"{model_dir} has its {run.epochs} epochs and is complete; see summary.json there"
            )
        return 0

    held_out = describe(split=run.eval_split, num_classes=contract.num_classes, training=False)
    failures.check_same_classes(contract, held_out)

    def train_data(context):
        return data.train_dataset(
            run.records_dir,
            run.global_batch_size,
            run.image_size,
            input_context=context,
            split=run.train_split,
            seed=run.seed,
            initial_step=resume.initial_step,
            num_classes=contract.num_classes,
            label_offset=run.label_offset,
            on_error=run.on_error,
            **inputs.train_options(run),
        )

    def eval_data(context):
        return data.eval_dataset(
            run.records_dir,
            run.global_batch_size,
            run.image_size,
            input_context=context,
            split=run.eval_split,
            crop_fraction=run.eval_crop_fraction,
            num_classes=contract.num_classes,
            label_offset=run.label_offset,
            on_error=run.on_error,
            threads=run.threads,
            rectangular=run.rectangular_eval,
        )

    # ------------------------------------------------------------------ model
    # Without an all-reduce (one device, a TPU) nobody else would apply this momentum.
    alone = distribute.plan_of(strategy) is None
    momentum = run.compression_momentum if alone and run.compression_momentum else run.momentum
    with strategy.scope():
        model = build_model(run, contract.num_classes)
        model.compile(
            optimizer=precision.scale_loss_optimizer(
                build_optimizer(run, contract.steps_per_epoch, momentum)
            ),
            loss=sparse_loss(run, contract.num_classes),
            metrics=["accuracy"],
        )

    # ------------------------------------------------------------------ fit
    throughput = callbacks.Throughput(run.global_batch_size)
    phases = communication.compression_phases(run)
    schedule = [callbacks.CompressionSchedule(phases)] if len(phases) > 1 else []
    validation = strategy.distribute_datasets_from_function(eval_data)
    model.fit(
        strategy.distribute_datasets_from_function(train_data),
        epochs=run.epochs,
        steps_per_epoch=contract.steps_per_epoch,
        validation_data=validation,
        validation_steps=held_out.steps_per_epoch,
        verbose=0,
        callbacks=[
            callbacks.StopOnNonFinite(),  # First, so that nothing is saved of a lost model.
            throughput,
            *schedule,
            callbacks.TensorBoard(model_dir / "logs", run.global_batch_size),
            callbacks.Progress(run.global_batch_size),
            resume,
        ],
    )
    results = model.evaluate(
        validation, steps=held_out.steps_per_epoch, verbose=0, return_dict=True
    )
    if run.export:
        if cluster.is_leader:
            print(f"exporting to {model_dir / 'export'} ...", flush=True)
        export(
            model,
            model_dir / "export",
            image_size=run.image_size,
            class_names=contract.class_names,
            crop_fraction=run.eval_crop_fraction,
        )

    # ------------------------------------------------------------------ summary
    skipped = distribute.gather_values(
        strategy, "skipped records", len(data.skipped_records()), timeout_seconds=600
    )
    summary = {
        "accuracy": results["accuracy"],
        "loss": results["loss"],
        # Not measured where there were too few steps after the first ones, which trace the graph.
        "images_per_second": throughput.images_per_second if throughput.epochs else None,
        "workers": topology.workers,
        "devices_per_worker": topology.devices_per_worker,
        "global_batch": run.global_batch_size,
        "epochs": run.epochs,
        "skipped_records": sum(skipped),
        "wall_seconds": time.monotonic() - start,
        "export_dir": str(model_dir / "export") if run.export else None,
        "log_dir": str(model_dir / "logs"),
    }
    if cluster.is_leader:
        write_json(model_dir / "summary.json", summary)
        print(
            f"accuracy {summary['accuracy']:.4f}; summary in {model_dir / 'summary.json'}",
            flush=True,
        )
    # A worker that leaves while another still works looks like one that died.
    distribute.gather_values(strategy, "finished", True, timeout_seconds=600)
    return 0


def build_model(run, num_classes):
    from tfscale import layers, models

    def norm(**kwargs):
        return layers.GroupedSyncBatchNormalization(
            group_size=run.norm_group_size, momentum=0.9, epsilon=1e-5, **kwargs
        )

    build = getattr(models.resnet, run.model)
    side = None if run.rectangular_eval else run.image_size
    shape = (side, side, 3)
    return build(input_shape=shape, num_classes=num_classes, norm=norm)


def build_optimizer(run, steps_per_epoch, momentum):
    """The optimizer with linear scaling, warm-up and polynomial decay of power 2."""
    from tfscale import keras, optimizers

    peak = optimizers.schedules.scale_learning_rate(run.base_learning_rate, run.global_batch_size)
    warmup = round(run.warmup_epochs * steps_per_epoch)
    if run.warmup_epochs > run.epochs:
        logging.getLogger("tfscale").warning(
            "the warm-up of %g epochs is longer than the run of %d: the learning rate ends below "
            "its peak",
            run.warmup_epochs,
            run.epochs,
        )
    decay = keras.optimizers.schedules.PolynomialDecay(
        peak,
        max(1, run.epochs * steps_per_epoch - warmup),
        end_learning_rate=peak * 1e-4,
        power=2.0,
    )
    schedule = optimizers.schedules.LinearWarmup(decay, warmup)
    if run.optimizer == "sgd":
        nesterov = not run.compression_momentum  # that one's is plain
        return keras.optimizers.SGD(schedule, momentum=momentum, nesterov=nesterov)
    return optimizers.LARS(schedule, momentum=momentum, weight_decay=run.weight_decay)


def sparse_loss(run, num_classes):
    """Cross-entropy of integer labels, with label smoothing."""
    import tensorflow as tf

    from tfscale import keras

    def smoothed_cross_entropy(labels, probabilities):
        one_hot = tf.one_hot(tf.cast(tf.reshape(labels, [-1]), tf.int32), num_classes)
        return keras.losses.categorical_crossentropy(
            one_hot, probabilities, label_smoothing=run.label_smoothing
        )

    return smoothed_cross_entropy


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=2) + "\n")
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())
