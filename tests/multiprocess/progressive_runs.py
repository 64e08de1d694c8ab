"""Runs in phases, for tests/test_progressive.py and for the workers of test_progressive.py here."""

import dataclasses
from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.multiprocess.checkpoint_runs import KillAt, Watch
from tests.multiprocess.compression_state_runs import owed_of
from tfscale import progressive
from tfscale._keras import keras
from tfscale.callbacks.checkpoint import CheckpointAndResume
from tfscale.distribute.all_reduce import Hierarchical2DAllReduce
from tfscale.distribute.compression.top_k import TopK
from tfscale.distribute.strategy import create_strategy
from tfscale.layers.sync_batch_norm import GroupedSyncBatchNormalization
from tfscale.optimizers.lars import LARS
from tfscale.progressive import Phase, PhaseData

RECORDS, SEED = 32, 7
# 4 + 8 + 8 steps; two epochs of phase 2 begin at steps 4 and 8, phase 3 at step 12.
PHASES = (Phase(1, 6, 8), Phase(2, 8, 8), Phase(1, 10, 4))
TOP_K = TopK(0.1, min_elements=8)
# Phase 2 has the compression of phase 1 and other pictures; phase 3 pays what is owed.
COMPRESSED = (Phase(1, 6, 8, TOP_K), Phase(2, 8, 8, TOP_K), Phase(1, 10, 4))
MIDDLE, BOUNDARY = 7, 12
DENSE = (PHASES[0], PHASES[2])


def batches(phase):
    """All global batches of a numbered phase: pictures and labels."""
    count = phase.epochs * (RECORDS // phase.global_batch_size)
    rng = np.random.RandomState(phase.seed(SEED))
    shape = [count, phase.global_batch_size, phase.image_size, phase.image_size, 3]
    x = rng.randint(0, 256, shape).astype("uint8")
    return x, (x[..., 0].mean((2, 3)) > 127).astype("int64")


def data_of(strategy, begun=None, validate=False):
    """The function that makes a phase's data; notes (number, step) in the list `begun`."""

    def data(phase, step):
        if begun is not None:
            begun.append((phase.number, step))
        arrays = batches(phase)

        def part(context, step=step):
            pipelines, me = context.num_input_pipelines, context.input_pipeline_id
            mine = np.split(np.arange(phase.global_batch_size), pipelines)[me]
            size = phase.global_batch_size // context.num_replicas_in_sync
            parts = tf.data.Dataset.from_tensor_slices(tuple(a[:, mine] for a in arrays))
            return parts.skip(step).repeat().unbatch().batch(size, drop_remainder=True)

        distribute = strategy.distribute_datasets_from_function
        return PhaseData(
            distribute(part),
            RECORDS // phase.global_batch_size,
            distribute(lambda context: part(context, step=0)) if validate else None,
            2 if validate else None,
        )

    return data


def build(strategy, side=None, norm=True):
    with strategy.scope():
        keras.utils.set_random_seed(3)
        inputs = keras.Input([side, side, 3], dtype="uint8")
        x = keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs)
        x = keras.layers.Conv2D(6, 3, use_bias=False, name="conv")(x)
        if norm:
            x = GroupedSyncBatchNormalization(momentum=0.9, name="norm")(x)
        x = keras.layers.ReLU()(x)
        x = keras.layers.GlobalAveragePooling2D()(x)
        x = keras.layers.Dense(2, "softmax", name="head")(x)
        model = keras.Model(inputs, x)
        rate = keras.optimizers.schedules.PolynomialDecay(
            0.1, progressive.steps_at(PHASES, [4, 4, 8], 4), power=2.0
        )
        optimizer = LARS(
            rate, 0.9, trust_coefficient=0.1, use_ema=True, ema_momentum=0.7,
            exclude_from_layer_adaptation=["bias", *(["gamma", "beta"] if norm else [])],
        )  # fmt: skip
        model.compile(optimizer, "sparse_categorical_crossentropy", ["accuracy"])
    return model


def run(strategy, phases=PHASES, directory=None, extra=(), save_every=2, data=None, model=None):
    model = build(strategy) if model is None else model
    resume = directory and CheckpointAndResume(directory, save_every=save_every)
    watch = Watch()
    history = progressive.fit(
        model, phases, data or data_of(strategy), callbacks=[watch, *extra], resume=resume,
        verbose=0,
    )  # fmt: skip
    return model, history, watch


def state_of(model):
    """Each variable as this worker has it, on each of its devices."""
    strategy = model.distribute_strategy
    return [
        [np.asarray(copy) for copy in strategy.experimental_local_results(v)]
        for v in [*model.variables, *model.optimizer.variables]
    ]


# ---------------------------------------------------------------------- what workers do


def train_until_killed(folder, step):
    strategy = create_strategy("auto")
    model = build(strategy, norm=False)
    run(strategy, COMPRESSED, Path(folder) / "killed", extra=[KillAt(step)], model=model)


def resume_and_compare(folder):
    """The killed run goes on; an undisturbed one, and one without compression, beside it."""
    operation = Hierarchical2DAllReduce(bucket_bytes=1 << 10)
    strategy = create_strategy("auto", cross_device_ops=operation)
    found = {}
    for name, phases in {"killed": COMPRESSED, "plain": COMPRESSED, "dense": DENSE}.items():
        begun, owed = [], Owed(operation)
        directory = None if name == "dense" else Path(folder) / name
        model, history, watch = run(
            strategy, phases, directory, [owed], data=data_of(strategy, begun),
            model=build(strategy, norm=name == "dense"),
        )  # fmt: skip
        found[name] = {
            "state": state_of(model),
            "history": history.history,
            "epochs": history.epoch,
            "seen": watch.seen,
            "begun": begun,
            "owed": owed.seen,
        }
    mine = 2 + strategy.cluster_resolver.task_id
    try:
        run(strategy, (Phase(1, 6, 8), Phase(mine, 8, 8)), model=model)
    except ValueError as error:
        found["other phases"] = str(error)
    data = data_of(strategy)

    def longer(phase, step):
        return dataclasses.replace(data(phase, step), steps_per_epoch=mine)

    try:
        run(strategy, (Phase(1, 6, 8),), data=longer, model=model)
    except ValueError as error:
        found["other steps"] = str(error)
    return found


class Owed(keras.callbacks.Callback):
    """Whether this worker holds gradients back, at the end of each epoch."""

    def __init__(self, operation):
        super().__init__()
        self.operation, self.seen = operation, []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(bool(owed_of(self.operation, self.model)))
