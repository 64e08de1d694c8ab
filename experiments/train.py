"""The training program: strategy, data, model, fit, export, summary.

One program for one device and for many workers; a launcher starts it once per worker:

    python experiments/train.py --config=quickstart
    python -m launch.local --workers=2 --devices_per_worker=2 experiments/train.py -- \\
        --config=quickstart --epochs=3
    python experiments/train.py --config=light_128 --dry_run
    python experiments/train.py --help
"""

import functools
import logging
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

# Started as a file, Python puts experiments/ on the path in place of the folder above it.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiments import (
    communication,
    declared,
    failures,
    inputs,
    optimization,
    run_history,
    scaling,
    summary,
    trial,
)
from experiments.imagenet import config as imagenet
from experiments.quickstart import config as quickstart
from experiments.quickstart.datasets import DATASETS, ensure_records
from experiments.run_checks import SettingsError
from tfscale.cluster import ClusterConfig
from tfscale.config import parse
from tfscale.preflight import meet

CONFIGS = {
    "quickstart": quickstart.digits,
    "fashion_mnist": quickstart.fashion_mnist,
    "folder": quickstart.folder,
    **imagenet.RECIPES,
}


def main(argv=None):
    run = parse(
        sys.argv[1:] if argv is None else argv, CONFIGS, default="quickstart", program=__file__
    )
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    logging.getLogger("tfscale").setLevel(logging.INFO)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        is_trial = run.trial
        run = trial.reduced(run) if is_trial else run
        inputs.check(run)
        cluster = ClusterConfig.from_env()
        if cluster.is_evaluator:
            # It would train by itself, and write over what the workers save.
            raise ValueError(
                f"TF_CONFIG makes this process evaluator {cluster.task_index}, but this program "
                "has no evaluator: its workers evaluate after every epoch. Start workers only, or "
                "remove 'evaluator' from the job"
            )
        topology = scaling.expected_topology(run, cluster)
        if topology:
            scaling.for_replicas(run, topology)  # for its errors, which then come at once
        if run.dry_run:
            if cluster.is_leader:
                from experiments import plan

                plan.show(run, topology)
            return 0
        with failures.run_folder(Path(run.model_dir)) if cluster.is_leader else nullcontext():
            if is_trial and cluster.is_leader:
                trial.start_anew(Path(run.model_dir))
            if run.dataset in DATASETS and cluster.is_leader:
                ensure_records(run.dataset, Path(run.records_dir).resolve())
            # Before TensorFlow loads: a missing worker shows in seconds, not after minutes.
            meet(cluster, declared=declared.of(run), timeout_seconds=run.start_timeout)
            return train(run, cluster)
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    except (Exception, KeyboardInterrupt) as error:
        code = failures.report(error)
        if code is None:
            raise
        return code


def train(run, cluster):
    start = time.monotonic()
    model_dir = Path(run.model_dir)

    from tfscale import (
        accumulation,
        callbacks,
        distribute,
        evaluation,
        keras,
        precision,
        progressive,
    )
    from tfscale.callbacks.epoch_log import EpochLog
    from tfscale.export import export

    # Workers must not draw the same dropout masks; their weights are those of the leader.
    keras.utils.set_random_seed(run.seed + 1000 * cluster.task_index)
    strategy = distribute.create_strategy(
        run.strategy,
        cross_device_ops=communication.all_reduce(run),
        timeout_seconds=run.start_timeout,
    )
    topology = distribute.topology_of(strategy)
    run, change = scaling.for_replicas(run, topology)
    if change and cluster.is_leader:
        print(change, flush=True)
    # "auto" looks at the devices, which may differ from worker to worker.
    distribute.agree(strategy, "precision", precision.set_global_policy(run.precision))

    # ------------------------------------------------------------------ data
    pictures = inputs.pictures(run, topology)
    # Before the first step: workers with other records would train without any error.
    distribute.agree(strategy, "data", pictures.fingerprint())
    resume = callbacks.CheckpointAndResume(
        model_dir / "checkpoints",
        save_every=run.save_every,
        state={
            "data": pictures.fingerprint(),
            "model": run.model,
            "blur_pool": run.blur_pool,  # which no variable tells of, nor of:
            "precision": run.precision,
            "image_size": run.image_size,
            "global_batch_size": run.global_batch_size,
        },
    )
    history = run_history.RunHistory(model_dir / "config.json", run, resume.initial_step)
    if history.change and cluster.is_leader:
        print(history.change, flush=True)
    is_complete = resume.is_complete(run.epochs) and (model_dir / "summary.json").exists()

    phases = inputs.phases(run)
    steps_per_epoch = [pictures.steps_per_epoch(phase.global_batch_size) for phase in phases]

    def phase_data(phase, step):
        training = strategy.distribute_datasets_from_function(pictures.train(phase, step))
        return progressive.PhaseData(training, steps_per_epoch[phase.number])

    # One at a time, and the last phase's once more at the end.
    @functools.lru_cache(maxsize=1)
    def held_out(image_size):
        size = run.eval_image_size or image_size
        return strategy.distribute_datasets_from_function(pictures.evaluation(size))

    # ------------------------------------------------------------------ model
    # Without an all-reduce (one device, a TPU) nobody else would apply this momentum.
    alone = distribute.plan_of(strategy) is None
    momentum = run.compression_momentum if alone and run.compression_momentum else None
    with strategy.scope():
        model = optimization.build_model(run, pictures.num_classes, fixed_size(run, phases))
        model.compile(
            optimizer=precision.scale_loss_optimizer(
                optimization.build_optimizer(run, phases, steps_per_epoch, momentum)
            ),
            loss=optimization.sparse_loss(run, pictures.num_classes),
            metrics=["accuracy"],
        )
    if run.micro_batches > 1:
        accumulation.accumulate_gradients(model, run.micro_batches)

    export_dir = model_dir / "export"

    def export_model():
        if cluster.is_leader:
            print(f"exporting to {export_dir} ...", flush=True)
        export(
            model,
            export_dir,
            image_size=run.eval_image_size or run.image_size,
            class_names=pictures.class_names,
            crop_fraction=run.eval_crop_fraction,
        )

    # ------------------------------------------------------------------ fit
    if is_complete:
        # Nothing is trained, but it is an error if that was another model, or other data.
        progressive.fit(model, phases, phase_data, resume=resume, verbose=0)
        # Asked for only now; as worker 0 sees it, for it writes there meanwhile.
        lacks_export = run.export and not export_dir.exists()
        if distribute.gather_values(strategy, "the export", lacks_export, 600)[0]:
            export_model()
            if cluster.is_leader:
                summary.add(model_dir / "summary.json", export_dir=str(export_dir))
        if cluster.is_leader:
            print(
                f"{model_dir} has its {run.epochs} epochs and is complete; see summary.json there"
            )
        distribute.gather_values(strategy, "finished", True, timeout_seconds=600)
        return 0
    scores = {"steps": pictures.eval_steps, "averaged": run.ema is not None, "flip": run.flip_eval}
    compressions = communication.compression_phases(run)
    speeds = [callbacks.Throughput(phase.global_batch_size) for phase in phases]
    # Not before: what is refused in place of going on is no part of the run.
    keeps_settings = keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: history.keep())
    progressive.fit(
        model,
        phases,
        phase_data,
        callbacks=[
            callbacks.StopOnNonFinite(),  # First, so that nothing is saved of a lost model.
            lambda phase: callbacks.Evaluation(held_out(phase.image_size), **scores),
            lambda phase: speeds[phase.number],
            *([callbacks.CompressionSchedule(compressions)] if len(compressions) > 1 else []),
            lambda phase: callbacks.TensorBoard(model_dir / "logs", phase.global_batch_size),
            lambda phase: callbacks.Progress(phase.global_batch_size),
            EpochLog(model_dir / "epochs.jsonl"),
            *([keeps_settings] if cluster.is_leader else []),
            callbacks.FollowLeader(),
        ],
        resume=resume,
        verbose=0,
    )
    results = evaluation.evaluate(model, held_out(run.image_size), **scores)
    if run.export:
        export_model()

    # ------------------------------------------------------------------ summary
    from tfscale import data

    skipped = distribute.gather_values(
        strategy, "skipped records", len(data.skipped_records()), timeout_seconds=600
    )
    seconds = time.monotonic() - start
    found = summary.of(run, topology, results, speeds, sum(skipped), seconds)
    if cluster.is_leader:
        summary.write(model_dir / "summary.json", found)
        print(
            f"accuracy {found['accuracy']:.4f}; summary in {model_dir / 'summary.json'}",
            flush=True,
        )
    # A worker that leaves while another still works looks like one that died.
    distribute.gather_values(strategy, "finished", True, timeout_seconds=600)
    return 0


def fixed_size(run, phases):
    """The side of all pictures that the model will meet; None where they differ."""
    sizes = {phase.image_size for phase in phases} | {run.eval_image_size or run.image_size}
    return None if run.rectangular_eval or len(sizes) > 1 else sizes.pop()


if __name__ == "__main__":
    sys.exit(main())
