"""What the workers of test_compression_state.py do: trained with compression, killed, resumed."""

import json
from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.multiprocess.checkpoint_runs import STEPS, KillAt, Watch, data
from tfscale._keras import keras, retrace
from tfscale.callbacks.checkpoint import CheckpointAndResume
from tfscale.callbacks.compression_schedule import CompressionSchedule
from tfscale.callbacks.tensorboard import TensorBoard
from tfscale.distribute import _tf_private
from tfscale.distribute.agreement import agree
from tfscale.distribute.all_reduce import Hierarchical2DAllReduce, plan_of
from tfscale.distribute.compression.int8 import Int8
from tfscale.distribute.compression.protocol import Uncompressed
from tfscale.distribute.compression.top_k import TopK
from tfscale.distribute.strategy import create_strategy

# min_elements below the sizes of the model's tensors, so that top-k has something to do.
COMPRESSIONS = {
    "topk": lambda: TopK(0.05, min_elements=8),
    "int8": Int8,
}
KINDS = ("int8", "warm-up", "momentum", "topk")
PHASES = {
    "warm-up": {0: None, 1: TopK(0.1, min_elements=8), 2: TopK(0.05, min_elements=8)},
    "momentum": {0: Uncompressed(0.9), 1: TopK(0.05, min_elements=8, momentum=0.9)},
}
SAVE_EVERY, KILLED_AT, EPOCHS = 3, 8, 4


def strategy_and_operation(compression=None, bucket_bytes=1 << 10):
    operation = Hierarchical2DAllReduce(compression, bucket_bytes=bucket_bytes)
    strategy = create_strategy("auto", cross_device_ops=operation)
    assert retrace.operation_of(strategy) in (operation, None)
    return strategy, operation


def build(strategy):
    with strategy.scope():
        keras.utils.set_random_seed(3)
        inputs = keras.Input([6, 6, 3], dtype="uint8")
        x = keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs)
        x = keras.layers.Conv2D(16, 3, name="conv")(x)
        x = keras.layers.BatchNormalization(name="norm")(x)
        x = keras.layers.Flatten()(x)
        x = keras.layers.Dense(24, "relu", name="hidden")(x)
        x = keras.layers.Dense(2, "softmax", name="head")(x)
        model = keras.Model(inputs, x)
        rate = keras.optimizers.schedules.PolynomialDecay(0.05, EPOCHS * STEPS, power=2.0)
        model.compile(keras.optimizers.SGD(rate), "sparse_categorical_crossentropy", ["accuracy"])
    return model


def run(strategy, directory, epochs=EPOCHS, phases=None, extra=(), save_every=SAVE_EVERY):
    model = build(strategy)
    resume = CheckpointAndResume(directory, save_every=save_every)
    watch = Watch()
    schedule = [CompressionSchedule(phases)] if phases else []
    history = model.fit(
        strategy.distribute_datasets_from_function(data(resume.initial_step)),
        epochs=epochs,
        steps_per_epoch=STEPS,
        verbose=0,
        callbacks=[watch, *schedule, *extra, resume],
    ).history
    return model, history, resume


def state_of(model):
    """Every worker's copies of all variables, as bytes."""
    strategy = model.distribute_strategy
    return [
        [np.asarray(copy).tobytes() for copy in strategy.experimental_local_results(v)]
        for v in [*model.variables, *model.optimizer.variables]
    ]


def owed_of(operation, model):
    """What a worker holds back: {slot: {tensor: values}}, without tensors that are all zero."""
    found, exported = {}, operation.state_of(model).export()
    for slot in set(exported) - {"tensors"}:
        for tensor, values in zip(exported["tensors"], exported[slot], strict=True):
            if np.any(values):
                found.setdefault(slot, {})[tuple(tensor)] = np.asarray(values)
    return found


class Killed(Exception):
    """Stands in for SIGKILL where the process is needed for more; see the last run's KillAt."""


class RaiseAt(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if self.model.optimizer.iterations.numpy() == KILLED_AT:
            raise Killed


def begin(operation, kind):
    """Sets the compression of a run."""
    phases = PHASES.get(kind)
    operation.set_compression(phases[0] if phases else COMPRESSIONS[kind]())
    return phases


def train_until_killed(folder):
    strategy, operation = strategy_and_operation()
    for kind in KINDS[:-1]:
        try:
            run(strategy, Path(folder) / kind, phases=begin(operation, kind), extra=[RaiseAt()])
        except Killed:
            pass
    kind = KINDS[-1]
    run(strategy, Path(folder) / kind, phases=begin(operation, kind), extra=[KillAt(KILLED_AT)])


def resume_and_compare(folder):
    """On the cluster that was killed: each run goes on, and an undisturbed one beside it."""
    strategy, operation = strategy_and_operation()
    found = {}
    for kind in KINDS:
        for directory in (kind, f"plain {kind}"):
            phases, before = begin(operation, kind), operation.generation
            model, history, resume = run(strategy, Path(folder) / directory, phases=phases)
            found[directory] = {
                "initial_step": resume.initial_step,
                "state": state_of(model),
                "owed": owed_of(operation, model),
                "history": history,
                "changes": operation.generation - before,
            }
    return found


class Dense(keras.callbacks.Callback):
    """Ends the compression, so that what is owed is paid; notes what that is before."""

    def __init__(self, operation):
        super().__init__()
        self.operation = operation

    def on_train_begin(self, logs=None):
        self.before = owed_of(self.operation, self.model)
        self.operation.set_compression(None)


def resume_elsewhere(folder, bucket_bytes):
    """On any cluster: what is owed after loading, and after a dense step."""
    found = {}
    strategy, operation = strategy_and_operation("int8", bucket_bytes)
    for kind in ("topk", "int8"):
        begin(operation, kind)
        dense = Dense(operation)
        model = build(strategy)
        resume = CheckpointAndResume(Path(folder) / f"plain {kind}")
        model.fit(
            strategy.distribute_datasets_from_function(data(resume.initial_step)),
            epochs=EPOCHS + 1, steps_per_epoch=STEPS, verbose=0, callbacks=[resume, dense],
        )  # fmt: skip
        found[kind] = {
            "initial_step": resume.initial_step,
            "loaded": dense.before,
            "left": owed_of(operation, model),
            "plan": plan_of(strategy)["plans"][-1],
        }
    return found


def refused(folder):
    """Files of compression that are missing, damaged or foreign: every worker's error."""
    folder = Path(folder)
    strategy, operation = strategy_and_operation(COMPRESSIONS["topk"]())
    run(strategy, folder / "run", epochs=2, save_every=None)
    run_folder = folder / "run" / "step-00000010" / "compression"
    me = _tf_private.worker_index(strategy)
    errors = {}

    def attempt(name, harm):
        if me == 0:
            saved = {p: p.read_bytes() for p in run_folder.iterdir()}
            harm()
        agree(strategy, name, 0)
        try:
            run(strategy, folder / "run", epochs=3, save_every=None)
        except ValueError as error:
            errors[name] = str(error)
        agree(strategy, name, 0)
        if me == 0:
            for path, content in saved.items():
                path.write_bytes(content)
        agree(strategy, name, 0)

    first, second = (run_folder / f"worker-000{i}.npz" for i in range(2))
    attempt("missing", second.unlink)
    attempt("cut short", lambda: second.write_bytes(second.read_bytes()[:-400]))
    attempt("changed", lambda: second.write_bytes(_flipped(second.read_bytes())))
    attempt(
        "another worker's",
        lambda: second.write_bytes((run_folder / "worker-0000.npz").read_bytes()),
    )
    older = folder / "run" / "step-00000005" / "compression" / "worker-0001.npz"
    attempt("another step's", lambda: second.write_bytes(older.read_bytes()))
    _, _, resume = run(strategy, folder / "run", epochs=3, save_every=None)
    errors["then"] = resume.initial_step

    # A schedule of its own on each worker.
    try:
        run(strategy, folder / "other", epochs=1, phases={0: None, 2: ("int8", "bfloat16")[me]})
    except ValueError as error:
        errors["other schedules"] = str(error)

    errors["between fits"] = between_fits(strategy, operation)
    errors["two models"] = [in_turns(strategy, operation, n) for n in ([1, 2], [1], [2])]

    # A directory of its own on each worker.
    operation.set_compression(COMPRESSIONS["topk"]())
    try:
        run(strategy, folder / f"of worker {me}", epochs=1, save_every=None)
    except OSError as error:
        errors["not shared"] = str(error)
    errors["left behind"] = [p.name for p in (folder / f"of worker {me}").iterdir()]
    return errors


def between_fits(strategy, operation):
    """`set_compression` between two fits of one model: steps made, functions traced, owed."""
    model, functions, owed = build(strategy), set(), []
    batches = strategy.distribute_datasets_from_function(data(0))
    for compression in (TopK(0.05, min_elements=8), None, "int8", "bfloat16"):
        operation.set_compression(compression)
        model.fit(batches, epochs=1, steps_per_epoch=2, verbose=0)
        functions.add(model.train_tf_function)  # kept alive, or the next may get its id
        owed.append(sorted(owed_of(operation, model)))
    return int(model.optimizer.iterations.numpy()), len(functions), owed


def in_turns(strategy, operation, skips):
    """Models of the same names trained in turns: each one's weights and what it owes at the end."""
    operation.set_compression(TopK(0.05, min_elements=8))
    models = {skip: build(strategy) for skip in skips}
    batches = {s: strategy.distribute_datasets_from_function(data(s)) for s in skips}
    for _ in range(3):
        for skip, model in models.items():
            model.fit(batches[skip], epochs=1, steps_per_epoch=2, verbose=0)
    return {skip: (state_of(m), owed_of(operation, m)) for skip, m in models.items()}


def _flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


def adaptive(folder):
    """Adaptive buckets in `fit`: planned once, kept in the checkpoint, not measured again."""
    folder = Path(folder)
    strategy, operation = strategy_and_operation(None, "adaptive")
    notes = {"generations": [], "plans": []}

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            notes["generations"].append(operation.generation)

        def on_epoch_end(self, epoch, logs=None):
            notes["plans"].append(plan_of(strategy)["plans"][-1])

    board = TensorBoard(folder / "logs", update_freq=1)
    run(strategy, folder / "run", epochs=3, save_every=None, extra=[Note(), board])
    notes["predicted"] = operation.predicted_timeline()
    position = json.loads((folder / "run" / "step-00000015" / "position.json").read_text())
    notes["saved"] = position["compression"]["measured"], position["bucket_plan"]["plans"][-1]
    return notes


def resume_adaptive(folder):
    folder = Path(folder)
    strategy, operation = strategy_and_operation(None, "adaptive")
    measured = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            measured.append(operation.wants_measurement)

    operation.record_timeline()
    board = TensorBoard(folder / "logs of the resumed", update_freq=1)
    run(strategy, folder / "run", epochs=4, save_every=None, extra=[Note(), board])
    assert operation.predicted_timeline() == []
    return measured, plan_of(strategy)["plans"][-1]


def tables(folder):
    """The tables of buckets that TensorBoard would show, from the first to the last."""
    events = [
        event
        for path in sorted(folder.rglob("events.*"))
        for event in tf.compat.v1.train.summary_iterator(str(path))
    ]
    values = [value for event in events for value in event.summary.value]
    return [v.tensor.string_val[0].decode() for v in values if v.tag == "bucket_plan"]
