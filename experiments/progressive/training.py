"""One run: a small residual network learns photographs, in phases of resolution.

    python -m experiments.progressive.training RUN.json ROW.json

Each run is a process of its own, so that none inherits memory, threads or traces of another.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from experiments import commands

ROOT = Path(__file__).resolve().parent.parent.parent
EVAL_BATCH = 256


@dataclasses.dataclass(frozen=True)
class Run:
    """All that decides what a run gives.

    Attributes:
        records: `str`, folder with the splits "train" and "validation".
        seed: `int`, of the weights, and of the order and the crops of the pictures.
        epochs, image_sizes: `int` for each phase; sizes in pixels.
        eval_size: `int`, pixels of the pictures that are evaluated, cut from the centre.
        batch: `int`, pictures of a step.
        depths, widths, stem, blur_pool: see `tfscale.models.resnet.resnet`; basic blocks.
        learning_rate: `float`, the highest.
        schedule: "lines": up from 0 in the first `warmup` (a share) of the steps, then down to 0;
            "steps": constant, a tenth from the half and a hundredth from three quarters on.
        momentum, nesterov: of Keras's SGD.
        weight_decay: `float`, as an L2 penalty of half of it on the kernels.
        label_smoothing: `float`, share of a label that is spread over all classes.
        ema: `float` or None, momentum of the average of the weights that is evaluated.
        flip_eval: `bool`, evaluate each picture and its mirror image.
        min_crop_areas: `float` for each phase, the smallest share of a picture in a crop.
        precision: "float32" or "mixed_bfloat16".
        evaluate_every: `int`, epochs; the last is evaluated in any case.
    """

    records: str
    seed: int
    epochs: tuple
    image_sizes: tuple
    eval_size: int
    learning_rate: float
    min_crop_areas: tuple
    batch: int = 128
    depths: tuple = (1, 1, 1)
    widths: tuple = (32, 64, 128)
    stem: str = "imagenet"
    blur_pool: bool = False
    schedule: str = "lines"
    warmup: float = 0.2
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    label_smoothing: float = 0.0
    ema: float | None = None
    flip_eval: bool = False
    precision: str = "float32"
    evaluate_every: int = 1


def apart(run, may_diverge=False):
    """Trains in a process of its own; returns what `train` returns there.

    Raises:
        RuntimeError: if that process failed; it has said why.
        ValueError: if the loss became no number, unless it may.
    """
    with tempfile.TemporaryDirectory() as folder:
        wanted, row = Path(folder, "run.json"), Path(folder, "row.json")
        wanted.write_text(json.dumps(dataclasses.asdict(run)))
        code = subprocess.run(
            [sys.executable, "-m", "experiments.progressive.training", str(wanted), str(row)],
            cwd=ROOT,
            env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ},
        ).returncode
        if code:
            raise RuntimeError(f"a run failed with exit code {code}, see above: {run}")
        found = json.loads(row.read_text())
    if found["diverged"] and not may_diverge:
        raise ValueError(
            f"the loss of a run became no number: a learning rate of {run.learning_rate:g} is too "
            "high; take a lower one"
        )
    return found


def train(run):
    """Trains from a seed.

    Returns:
        `dict` with ``accuracy`` (of the validation pictures, after the last epoch); ``curve``,
        see `measuring.Measured`; ``training_seconds``, all but the evaluations;
        ``first_steps_seconds``, the part of it that the first steps of the phases took more than
        others (tracing); ``images_per_second``, of each phase, by the median step; ``memory_mb``;
        ``training_loss`` of the last epoch; ``diverged``, whether that is no number. Such a run
        ends with accuracy 0.
    """
    from experiments.progressive import measuring
    from tfscale import data, evaluation, keras, precision, progressive

    keras.utils.set_random_seed(run.seed)
    precision.set_global_policy(run.precision)
    contract = data.describe(run.records, "train", run.batch)
    steps_per_epoch = contract.steps_per_epoch
    phases = [
        progressive.Phase(epochs, size, run.batch, options={"min_crop_area": area})
        for epochs, size, area in zip(run.epochs, run.image_sizes, run.min_crop_areas, strict=True)
    ]
    model = build(run, contract.num_classes, sum(run.epochs) * steps_per_epoch)
    held_out = data.eval_dataset(run.records, EVAL_BATCH, run.eval_size, threads=_threads())

    def accuracy():
        found = evaluation.evaluate(
            model, held_out, averaged=run.ema is not None, flip=run.flip_eval, top=(1,)
        )
        return found["top_1"]

    measured = measuring.Measured(accuracy, run.evaluate_every)
    measured.start()
    history = progressive.fit(
        model,
        phases,
        lambda phase, step: progressive.PhaseData(pictures(run, phase, step), steps_per_epoch),
        callbacks=[keras.callbacks.TerminateOnNaN(), measured],
        verbose=0,
    )
    costs = measuring.phase_costs(measured.steps, run.epochs)
    loss = float(history.history["loss"][-1])
    diverged = not abs(loss) < float("inf")
    return {
        "accuracy": measured.curve[-1]["accuracy"],
        "training_loss": None if diverged else loss,
        "diverged": diverged,
        "training_seconds": round(measured.seconds, 2),
        "first_steps_seconds": round(sum(more for _, more in costs), 2),
        "images_per_second": [round(run.batch / median, 1) for median, _ in costs],
        "memory_mb": round(measured.memory / 1e6, 1),
        "curve": measured.curve,
    }


def pictures(run, phase, step):
    """The training pictures of a phase, of its size and augmentation."""
    from tfscale import data

    return data.train_dataset(
        run.records,
        run.batch,
        phase.image_size,
        seed=phase.seed(run.seed),
        initial_step=step,
        area_range=(phase.options["min_crop_area"], 1.0),
        threads=_threads(),  # as many as cores: to measure how many would cost seconds
    )


def build(run, num_classes, steps):
    """Returns the compiled model of a run of so many steps."""
    from experiments import optimization
    from tfscale import keras
    from tfscale.models.resnet import resnet

    model = resnet(
        run.depths,
        run.widths,
        block="basic",
        stem=run.stem,
        input_shape=(None, None, 3),
        num_classes=num_classes,
        kernel_regularizer=keras.regularizers.L2(run.weight_decay / 2),
        blur_pool=run.blur_pool,
    )
    averages = {} if run.ema is None else {"use_ema": True, "ema_momentum": run.ema}
    optimizer = keras.optimizers.SGD(
        rate_of(run, steps), momentum=run.momentum, nesterov=run.nesterov, **averages
    )
    model.compile(optimizer, optimization.sparse_loss(run, num_classes))
    return model


def rate_of(run, steps):
    """Returns the learning rate of a run as a schedule of its steps."""
    from tfscale import keras, optimizers

    if run.schedule == "steps":
        return keras.optimizers.schedules.PiecewiseConstantDecay(
            [steps // 2 - 1, steps * 3 // 4 - 1],  # the last steps of the higher rate
            [run.learning_rate * share for share in (1.0, 0.1, 0.01)],
        )
    peak = max(1, round(run.warmup * steps))
    return optimizers.schedules.PiecewiseLinear([0, peak, steps], [0.0, run.learning_rate, 0.0])


def _threads():
    from tfscale import cores

    return cores.usable_cores()


def main(argv=None):
    wanted, row = sys.argv[1:] if argv is None else argv
    run = Run(**json.loads(Path(wanted).read_text()))
    Path(row).write_text(json.dumps(train(run)))
    return 0


if __name__ == "__main__":
    # What started it says what was stopped, and that a run failed; the reason is here.
    sys.exit(commands.exit_code(main, "a run was stopped"))
