"""What the workers of test_evaluation.py do: evaluate, decide, differ, fail."""

import logging
import pickle
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.multiprocess.failure_workers import message_of
from tfscale._keras import keras
from tfscale.callbacks import follow_leader
from tfscale.callbacks.evaluation import Evaluation
from tfscale.callbacks.follow_leader import FollowLeader
from tfscale.distribute import _tf_private
from tfscale.distribute.strategy import create_strategy
from tfscale.evaluation import evaluate

FEATURES, CLASSES, BATCH = 5, 7, 8
REMAINDERS = (16, 17, 1)


def examples(count, seed=0):
    rng = np.random.RandomState(seed)
    return rng.randn(count, FEATURES).astype("float32"), rng.randint(0, CLASSES, count)


def build(strategy, rate=0.5):
    with strategy.scope():
        keras.utils.set_random_seed(2)
        # Statistics of its own on each replica.
        layers = [keras.Input([FEATURES]), keras.layers.BatchNormalization()]
        model = keras.Sequential([*layers, keras.layers.Dense(CLASSES, "softmax")])
        model.compile(keras.optimizers.SGD(rate), "sparse_categorical_crossentropy")
    return model


def train_data():
    data = tf.data.Dataset.from_tensor_slices(examples(32, seed=1)).batch(BATCH)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.with_options(options)


def held_out(count):
    return tf.data.Dataset.from_tensor_slices(examples(count)).batch(BATCH)


def everything(folder):
    """All on one cluster of 2 workers; at the end worker 1 fails, so results go to a file."""
    strategy = create_strategy("auto", heartbeat_seconds=4)
    me = _tf_private.worker_index(strategy)
    found = {"unequal shards": evaluate(*two_unequal_shards(strategy))}
    model = build(strategy)
    model.fit(train_data(), epochs=2, verbose=0)
    found["remainders"] = [evaluate(model, held_out(count)) for count in REMAINDERS]
    found["weights"] = model.get_weights()
    whole = held_out(16).with_options(no_sharding())
    found["unsharded"] = message_of(evaluate, model, whole)
    found["differently"] = message_of(lambda: evaluate(model, held_out(16), steps=1 + me))
    found["keras callbacks"] = keras_callbacks(strategy, Path(folder) / "best.h5")
    follow_leader._SECONDS_TO_MEET = 1
    found["decisions"] = decisions(strategy, me)
    if me == 0:
        found["alone"] = message_of(lambda: evaluate(model, held_out(16), timeout_seconds=1))
    else:
        time.sleep(2)
    path = Path(folder) / f"found-{me}.pickle"
    path.write_bytes(pickle.dumps(found))
    found["failed"] = message_of(fail, strategy, me)
    path.write_bytes(pickle.dumps(found))


def two_unequal_shards(strategy):
    """100 examples on worker 0, 90 of them right, and 10 on worker 1, 1 of them right."""
    with strategy.scope():
        model = keras.Sequential([keras.Input([6]), keras.layers.Softmax()])
        model.compile(loss="sparse_categorical_crossentropy")

    def part(context):
        count, right = ((100, 90), (10, 1))[context.input_pipeline_id]
        labels = np.arange(count) % 6
        guesses = np.where(np.arange(count) < right, labels, (labels + 1) % 6)
        outputs = np.eye(6, dtype=np.float32)[guesses]
        return tf.data.Dataset.from_tensor_slices((outputs, labels)).batch(7)

    return model, strategy.distribute_datasets_from_function(part)


def no_sharding():
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


def keras_callbacks(strategy, path):
    """Early stop, plateau and best checkpoint, led by the exact number."""
    model = build(strategy, rate=3.0)
    best = keras.callbacks.ModelCheckpoint(
        str(path), "val_accuracy", save_best_only=True, save_weights_only=True
    )
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1)
    stop = keras.callbacks.EarlyStopping("val_accuracy", patience=3)
    history = model.fit(
        train_data(),
        epochs=12,
        verbose=0,
        callbacks=[Evaluation(held_out(17)), best, plateau, stop, FollowLeader()],
    ).history
    weights = model.get_weights()
    model.load_weights(path)
    return {
        "history": {name: [float(v) for v in values] for name, values in history.items()},
        "rate": float(model.optimizer.learning_rate.numpy()),
        "weights": [w.tobytes() for w in weights],
        "best": [w.tobytes() for w in model.get_weights()],
        "best accuracy": (best.best, evaluate(model, held_out(17))["top_1"]),
    }


class StopAtRandom(keras.callbacks.Callback):
    def __init__(self, seed):
        super().__init__()
        self.random = np.random.RandomState(seed)

    def on_epoch_end(self, epoch, logs=None):
        if self.random.uniform() < 0.3:
            self.model.stop_training = True


class NoisyMetric(keras.callbacks.Callback):
    def __init__(self, seed):
        super().__init__()
        self.random = np.random.RandomState(seed)

    def on_epoch_end(self, epoch, logs=None):
        logs["noisy"] = self.random.uniform()


class StopWithin(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == 0 and batch == 1:
            self.model.stop_training = True


class Raises(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise OSError("the disk of this worker is full")


def decisions(strategy, me):
    """Callbacks that decide by what only their worker knows: what each run came to."""
    logger, found = logging.getLogger("tfscale"), {}
    plateau = keras.callbacks.ReduceLROnPlateau("noisy", factor=0.5, patience=1)
    runs = {
        "random stop": [StopAtRandom(seed=1 + me)],
        "noisy plateau": [NoisyMetric(seed=me), plateau],
        "stop of one": [StopWithin()] if me == 1 else [],
        "stop of all": [StopWithin()],
    }
    for name, callbacks in runs.items():
        model, lines, rates = build(strategy), [], []
        handler = logging.Handler()
        handler.emit = lambda record, lines=lines: lines.append(record.getMessage())

        def note(epoch, logs, optimizer=model.optimizer, rates=rates):
            rates.append(float(optimizer.learning_rate.numpy()))

        log = keras.callbacks.LambdaCallback(on_epoch_begin=note)
        logger.addHandler(handler)
        model.fit(train_data(), epochs=6, verbose=0, callbacks=[*callbacks, log, FollowLeader()])
        logger.removeHandler(handler)
        found[name] = {
            "rates": rates,
            "steps": int(model.optimizer.iterations.numpy()),
            "weights": [w.tobytes() for w in model.get_weights()],
            "lines": lines,
        }
    return found


def fail(strategy, me):
    """A callback raises on worker 1, which ends; worker 0 waits for it."""
    callbacks = [Raises()] if me == 1 else []
    try:
        build(strategy).fit(
            train_data(), epochs=3, verbose=0, callbacks=[*callbacks, FollowLeader()]
        )
    except OSError as error:
        raise SystemExit(str(error)) from error  # not caught by `message_of`
