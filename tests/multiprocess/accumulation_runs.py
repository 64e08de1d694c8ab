"""What the workers of test_accumulation.py do."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.multiprocess.compression_state_runs import owed_of, state_of
from tfscale._keras import keras
from tfscale.accumulation import accumulate_gradients
from tfscale.callbacks.checkpoint import CheckpointAndResume
from tfscale.cluster import ClusterConfig
from tfscale.distribute.all_reduce import Hierarchical2DAllReduce, plan_of
from tfscale.distribute.compression.top_k import TopK
from tfscale.distribute.strategy import create_strategy
from tfscale.layers.sync_batch_norm import GroupedSyncBatchNormalization

BATCH, STEPS, EPOCHS, KILLED_AT = 8, 4, 3, 7


def arrays(examples):
    random = np.random.RandomState(0)
    x = random.randn(examples, 4).astype("float32")
    return x, np.tanh(x @ np.array([[1.0], [2], [-1], [0.5]], "float32"))


def build(strategy, micro_batches, normed):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        hidden = keras.layers.Dense(16, "tanh", kernel_regularizer="l2", name="hidden")
        norm = [GroupedSyncBatchNormalization(momentum=0.8, name="norm")] if normed else []
        head = keras.layers.Dense(1, name="head")
        model = keras.Sequential([keras.Input([4]), hidden, *norm, head])
        model.compile(keras.optimizers.SGD(0.05), "mse", ["mae"])
    return accumulate_gradients(model, micro_batches)


def whole_batch(strategy, micro_batches, examples=5 * BATCH + 3):
    """Weights and metrics after a `fit` with an uneven last batch; the collectives of a step."""
    model = build(strategy, micro_batches, normed=False)
    batches = tf.data.Dataset.from_tensor_slices(arrays(examples)).batch(BATCH)
    history = model.fit(batches, epochs=2, verbose=0).history
    found = {v.name: v.numpy() for v in model.weights}
    found |= {name: np.array(values) for name, values in history.items()}
    return found, collectives(strategy, model)


def batches_of(strategy, initial_step=0):
    x, y = arrays(STEPS * BATCH)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True)
    return strategy.experimental_distribute_dataset(batches.repeat().skip(initial_step))


def collectives(strategy, model):
    """How often each collective stands in a step outside of its loop, and in it."""
    step = model.train_tf_function.get_concrete_function(iter(batches_of(strategy)))
    found = {"step": _count(op.type for op in step.graph.get_operations()), "loop": {}}
    for function in step.graph.as_graph_def().library.function:
        if "while" in function.signature.name and "body" in function.signature.name:
            found["loop"] = _count(node.op for node in function.node_def)
    return found


def _count(kinds):
    kinds = [kind for kind in kinds if kind.startswith("Collective")]
    return {kind: kinds.count(kind) for kind in set(kinds)}


class Killed(Exception):
    """Stands in for SIGKILL."""


class RaiseAt(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if self.model.optimizer.iterations.numpy() == KILLED_AT:
            raise Killed


def compressed(folder, extra=()):
    """Top-k with error feedback, killed or not, and resumed."""
    operation = Hierarchical2DAllReduce(TopK(0.1, min_elements=8), bucket_bytes=256)
    strategy = create_strategy("auto", cross_device_ops=operation)
    model = build(strategy, 2, normed=False)
    resume = CheckpointAndResume(folder, save_every=3)
    start = resume.initial_step
    try:
        model.fit(
            batches_of(strategy, start), epochs=EPOCHS, steps_per_epoch=STEPS, verbose=0,
            callbacks=[*extra, resume],
        )  # fmt: skip
    except Killed:
        return None
    return start, state_of(model), owed_of(operation, model)


def adaptive():
    """Steps, traces, and the plan that follows from what the parts' sums are ready."""
    operation = Hierarchical2DAllReduce(bucket_bytes="adaptive")
    strategy = create_strategy("auto", cross_device_ops=operation)
    model = build(strategy, 2, normed=False)
    model.fit(batches_of(strategy), epochs=3, steps_per_epoch=STEPS, verbose=0)
    return (
        int(model.optimizer.iterations.numpy()),
        operation.generation,
        operation.wants_measurement,
        plan_of(strategy)["plans"][-1],
    )


def normed_parts(strategy, rearranged=False):
    """Batch norm over all replicas, which joins a part of each; a batch has two parts."""
    model = build(strategy, 2, normed=True)
    x, y = arrays(BATCH)
    if rearranged:
        # As two replicas have them: the first halves of both, then the second ones.
        order = np.arange(BATCH).reshape(2, 2, -1).transpose(1, 0, 2).ravel()
        x, y = x[order], y[order]
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True)
    model.fit(batches.repeat(), steps_per_epoch=3, verbose=0)
    return [v.numpy() for v in model.weights], collectives(strategy, model)


def disagreeing(strategy):
    """What a worker says where only the second one has parts."""
    model = build(strategy, 1 + ClusterConfig.from_env().task_index, normed=True)
    try:
        model.fit(batches_of(strategy), steps_per_epoch=1, verbose=0)
    except ValueError as error:
        return str(error)


def all_runs(folder):
    strategy = create_strategy("auto")
    folder = Path(folder)
    found = {
        "disagreeing": disagreeing(strategy),
        "parts": whole_batch(strategy, 3),
        "plain": whole_batch(strategy, 1, examples=BATCH),
        "normed": normed_parts(strategy),
        "whole": compressed(folder / "whole"),
        "killed": compressed(folder / "killed", [RaiseAt()]),
    }
    return found | {"resumed": compressed(folder / "killed"), "adaptive": adaptive()}
