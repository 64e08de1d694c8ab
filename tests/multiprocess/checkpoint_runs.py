"""What the workers of test_checkpoint.py do: trained, killed, resumed, exported on a cluster."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfscale._keras import keras
from tfscale.callbacks.checkpoint import CheckpointAndResume
from tfscale.callbacks.progress import Progress
from tfscale.callbacks.tensorboard import TensorBoard
from tfscale.callbacks.throughput import Throughput
from tfscale.distribute import _tf_private
from tfscale.distribute.strategy import create_strategy
from tfscale.export import export
from tfscale.optimizers.lars import LARS
from tfscale.precision import scale_loss_optimizer

BATCH, STEPS, SIZE = 8, 5, 6


class KillAt(keras.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_begin(self, batch, logs=None):
        if self.model.optimizer.iterations.numpy() == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class Watch(keras.callbacks.Callback):
    """Keeps (iteration, rate) and the logs of every batch."""

    def on_train_begin(self, logs=None):
        self.seen, self.logs = [], []

    def on_train_batch_end(self, batch, logs=None):
        rate = float(tf.convert_to_tensor(self.model.optimizer.learning_rate))
        self.seen.append((int(self.model.optimizer.iterations.numpy()), rate))
        self.logs.append({k: float(v) for k, v in logs.items()})


def data(initial_step, batches=40):
    """Global batch k is a function of k; the workers take consecutive parts of each."""
    rng = np.random.RandomState(0)
    x = rng.randint(0, 256, [batches, BATCH, SIZE, SIZE, 3]).astype("uint8")
    y = (x[..., 0].mean((2, 3)) > 127).astype("int64")

    def part(context):
        pipelines, me = context.num_input_pipelines, context.input_pipeline_id
        mine = np.split(np.arange(BATCH), pipelines)[me]
        size = BATCH // context.num_replicas_in_sync
        parts = tf.data.Dataset.from_tensor_slices((x[:, mine], y[:, mine]))
        return parts.skip(initial_step).repeat().unbatch().batch(size, drop_remainder=True)

    return part


def build(strategy, optimizer=None):
    with strategy.scope():
        keras.utils.set_random_seed(3)
        inputs = keras.Input([SIZE, SIZE, 3], dtype="uint8")
        x = keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs)
        x = keras.layers.Conv2D(4, 3, name="conv")(x)
        # Each replica has statistics of its own until they are saved.
        x = keras.layers.BatchNormalization(name="norm")(x)
        x = keras.layers.Flatten()(x)
        x = keras.layers.Dense(2, "softmax", name="head")(x)
        model = keras.Model(inputs, x)
        rate = keras.optimizers.schedules.PolynomialDecay(2.0, 4 * STEPS, power=2.0)
        exclude = ["bias", "gamma", "beta"]
        model.compile(
            optimizer or LARS(rate, 0.9, exclude_from_layer_adaptation=exclude),
            "sparse_categorical_crossentropy",
            ["accuracy"],
        )
    return model


def run(strategy, directory, save_every=3, epochs=4, extra=()):
    model = build(strategy)
    resume = CheckpointAndResume(directory, save_every=save_every)
    watch = Watch()
    history = model.fit(
        strategy.distribute_datasets_from_function(data(resume.initial_step)),
        epochs=epochs,
        steps_per_epoch=STEPS,
        verbose=0,
        callbacks=[watch, *extra, resume],
    ).history
    return model, history, watch, resume


def state_of(model):
    """Each variable as the cluster reads it, then this worker's own copies."""
    variables = [*model.variables, *model.optimizer.variables]
    strategy = model.distribute_strategy
    merged = [np.asarray(v.read_value()).tobytes() for v in variables]
    local = [
        [np.asarray(c).tobytes() for c in strategy.experimental_local_results(v)] for v in variables
    ]
    return merged, local


def names_in(folder):
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file())


def train_until_killed(folder, step):
    strategy = create_strategy("auto")
    run(strategy, Path(folder) / "run", extra=[KillAt(step)])


def resume_and_compare(folder):
    """All that needs a cluster of 2 workers x 2 devices, in one start of it."""
    folder = Path(folder)
    strategy = create_strategy("auto")
    me = _tf_private.worker_index(strategy)
    found = {"worker": me, "python": sys.version_info[:2]}

    out = open(folder / f"progress-{me}.txt", "w")  # noqa: SIM115
    throughput = Throughput(BATCH)
    callbacks = [TensorBoard(folder / "logs", BATCH), Progress(BATCH, stream=out), throughput]
    model, history, watch, resume = run(strategy, folder / "run", extra=callbacks)
    out.close()
    found["initial_step"] = resume.initial_step
    found["images_per_second"] = throughput.images_per_second
    found["resumed"] = (state_of(model), history, watch.seen, watch.logs)

    plain, history, watch, _ = run(strategy, folder / "plain")
    found["plain"] = (state_of(plain), history, watch.seen, watch.logs)
    found["files"] = names_in(folder / "plain")

    found["exported"] = str(export(model, folder / "export", SIZE, ["dark", "bright"]))
    pictures = data(0)(tf.distribute.InputContext()).unbatch().batch(BATCH).take(1)
    images = next(iter(pictures))[0]
    found["expected"] = model.predict(images, verbose=0)[: len(images)]
    found["train_on_batch"] = plain.train_on_batch(
        *next(iter(data(0)(tf.distribute.InputContext()).unbatch().batch(BATCH)))
    )

    # A directory that the workers do not share: worker 0 has a checkpoint, worker 1 has not.
    try:
        run(strategy, folder / ("run" if me == 0 else "elsewhere"))
    except ValueError as error:
        found["not_shared"] = str(error)

    # Last, since the workers are out of step afterwards: only worker 0 has the callback.
    alone = CheckpointAndResume(folder / "alone", timeout_seconds=2)
    alone.set_model(model)
    alone.set_params({})
    try:
        alone.on_train_begin() if me == 0 else time.sleep(4)
    except TimeoutError as error:
        found["alone"] = str(error)
    return found


def user_callbacks(folder):
    """Keras's own callbacks on 2 workers x 1 device, and an overflow that one worker sees."""
    folder = Path(folder)
    strategy = create_strategy("auto")
    found = {}

    model = build(strategy, keras.optimizers.SGD(0.1))
    saved = keras.callbacks.ModelCheckpoint(
        str(folder / "model.h5"), save_weights_only=True, monitor="val_loss", save_best_only=True
    )
    every = keras.callbacks.ModelCheckpoint(str(folder / "weights"), save_weights_only=True)
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=2, mode="max")
    stop = keras.callbacks.EarlyStopping("loss", patience=4, mode="max")
    context = strategy.distribute_datasets_from_function
    history = model.fit(
        context(data(0)), epochs=10, steps_per_epoch=STEPS, verbose=0,
        validation_data=context(data(8)), validation_steps=2,
        callbacks=[saved, every, plateau, stop],
    ).history  # fmt: skip
    found["history"] = history
    found["rate"] = float(model.optimizer.learning_rate.numpy())
    found["weights"] = state_of(model)[0]
    again = build(strategy, keras.optimizers.SGD(0.1))
    again.load_weights(str(folder / "weights"))
    found["loaded"] = [w.tobytes() for w in again.get_weights()]
    found["model"] = [w.tobytes() for w in model.get_weights()]

    found["overflow"] = overflow(strategy)
    found["uneven"] = uneven(strategy)
    time.sleep(0.1)
    found["files"] = names_in(folder)
    return found


def overflow(strategy):
    """Worker 0's half overflows float16: loss scale, iterations, weights before and after."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    with strategy.scope():
        inputs = keras.Input([1])
        outputs = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(inputs)
        model = keras.Model(inputs, outputs)
        optimizer = scale_loss_optimizer(
            keras.optimizers.SGD(0.01, momentum=0.9), initial_scale=128
        )
        model.compile(optimizer, "mse")
    keras.mixed_precision.set_global_policy("float32")

    def part(context):
        x = [[200.0], [1.0]] if context.input_pipeline_id == 0 else [[1.0], [1.0]]
        return tf.data.Dataset.from_tensors((tf.constant(x), tf.zeros([2, 1]))).repeat()

    before = [w.tobytes() for w in model.get_weights()]
    model.fit(
        strategy.distribute_datasets_from_function(part), steps_per_epoch=1, epochs=1, verbose=0
    )
    after = [w.tobytes() for w in model.get_weights()]
    return {
        "scale": float(optimizer.loss_scale),
        "iterations": int(optimizer.iterations.numpy()),
        "unchanged": before == after,
    }


def uneven(strategy):
    """19 examples in batches of 16, as Keras splits them over the workers: the first weight."""
    x = np.random.RandomState(0).randn(32, 4).astype("float32")[:19]
    y = x @ np.array([1.0, 2, 3, 4], "float32")
    with strategy.scope():
        inputs = keras.Input([4])
        outputs = keras.layers.Dense(1, kernel_initializer="ones")(inputs)
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(0.1), "mse")
    watch = Watch()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(16).with_options(options)
    loss = model.fit(batches, verbose=0, callbacks=[watch]).history["loss"][0]
    return {
        "first_weight": float(model.get_weights()[0][0, 0]),
        "loss": loss,
        "last_batch_logs": watch.logs[-1],
    }
