"""Whether a run works here: the same run, made so small that two cores do it in a minute."""

import dataclasses
import shutil

from experiments.run_checks import SettingsError

WIDTH = 0.125
BATCH = 4  # examples of a replica in each micro-batch
SHRINK = 4
MARK = ".trial"
LEAST_SIZE = 32  # what ResNet-50 reduces to one pixel


def reduced(run):
    """Returns a run of three steps for each phase, on random pixels, with all else as it was.

    The width is an eighth, pictures have a quarter of their side (32 pixels at least), a replica
    has four examples for each micro-batch, and nothing is exported. Batch, learning rate and
    warm-up follow as on any other number of replicas.
    """
    count = len(run.phase_epochs or (1,))
    meant = run.reference_batch_size or run.global_batch_size
    has_rates = run.peak_learning_rate is not None or run.learning_rate_values is not None

    def sooner(epochs):
        return tuple(min(count, epoch * count / run.epochs) for epoch in epochs)

    changed = {
        "trial": False,
        "dataset": "synthetic",
        "train_images": None,
        "num_classes": run.num_classes or 10,
        "model_dir": f"{run.model_dir}/trial",
        "width": run.width * WIDTH,
        "image_size": _small(run.image_size),
        "eval_image_size": run.eval_image_size and _small(run.eval_image_size),
        "epochs": count,
        "global_batch_size": meant,
        "reference_batch_size": meant if has_rates else None,
        "reference_replicas": run.reference_replicas if has_rates else None,
        "per_replica_batch_size": BATCH * run.micro_batches,
        "compression_warmup_epochs": 0,
        "export": False,
        "save_every": None,
    }
    if run.phase_epochs:
        changed["phase_epochs"] = (1,) * count
    if run.phase_image_sizes:
        changed["phase_image_sizes"] = tuple(map(_small, run.phase_image_sizes))
    if run.learning_rate_epochs:
        changed["learning_rate_epochs"] = sooner(run.learning_rate_epochs)
    else:
        changed["warmup_epochs"] = sooner((run.warmup_epochs,))[0]
    if run.momentum_epochs:
        changed["momentum_epochs"] = sooner(run.momentum_epochs)
    if run.compression_epochs:
        first, last = sooner(run.compression_epochs)
        first = min(count, int(first) + 1)
        changed["compression_epochs"] = (first, max(first, int(last)))
    return dataclasses.replace(run, **changed)


def start_anew(folder):
    """Empties the folder of an earlier trial, which would else be resumed, or be complete.

    Args:
        folder: `Path` of a folder.

    Raises:
        SettingsError: if another run than a trial lies there, which stays as it is.
    """
    found = [path for path in folder.iterdir() if path.name not in (".lock", MARK)]
    if found and not (folder / MARK).exists():
        raise SettingsError(
            f"{folder} holds {found[0].name}, which no --trial has written there: remove the "
            "folder, or give another --model_dir"
        )
    (folder / MARK).touch()
    for path in found:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _small(size):
    return max(LEAST_SIZE, size // SHRINK)
