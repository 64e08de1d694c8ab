"""Callbacks: what they show and write, read back with the real TensorBoard."""

import io
import itertools
import json
import math
import socket
import subprocess
import sys
import time
import types
import urllib.request
from contextlib import contextmanager

import numpy as np
import pytest
import tensorflow as tf

from tfscale._keras import keras
from tfscale.callbacks import progress, rates
from tfscale.callbacks.checkpoint import CheckpointAndResume
from tfscale.callbacks.progress import Progress
from tfscale.callbacks.tensorboard import TensorBoard
from tfscale.callbacks.throughput import Throughput

BATCH, STEPS = 8, 6


def model_and_data(rate=0.1):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1, "sigmoid")])
    model.compile(keras.optimizers.SGD(rate), "binary_crossentropy", ["accuracy"])
    x = np.random.RandomState(0).randn(BATCH * STEPS, 4).astype("float32")
    y = (x[:, :1] > 0).astype("float32")
    return model, tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).repeat()


def fit(callbacks, epochs=2, validate=True, rate=0.1):
    model, data = model_and_data(rate)
    return model.fit(
        data,
        epochs=epochs,
        steps_per_epoch=STEPS,
        verbose=0,
        validation_data=data.take(2) if validate else None,
        callbacks=callbacks,
    ).history


# ---------------------------------------------------------------- TensorBoard


def event_scalars(folder):
    """{run: {tag: [(step, value)]}}, as TensorBoard's own reader sees it."""
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

    multiplexer = EventMultiplexer(purge_orphaned_data=True)
    multiplexer.AddRunsFromDirectory(str(folder)).Reload()
    return {
        run: {
            tag: [
                (e.step, float(tf.make_ndarray(e.tensor_proto)))
                for e in multiplexer.Tensors(run, tag)
            ]
            for tag in found["tensors"]
            if tag not in ("input_verdict", "compression", "bucket_plan")  # texts
        }
        for run, found in multiplexer.Runs().items()
    }


def test_event_files(tmp_path):
    schedule = keras.optimizers.schedules.PolynomialDecay(0.1, 12, 0.0)
    history = fit([TensorBoard(tmp_path, BATCH, update_freq=4)], rate=schedule)
    runs = event_scalars(tmp_path)
    assert set(runs) == {"train", "validation"}
    train, validation = runs["train"], runs["validation"]
    assert [s for s, _ in train["epoch_loss"]] == [6, 12]
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose([v for _, v in train[f"epoch_{name}"]], history[name], rtol=1e-6)
        np.testing.assert_allclose(
            [v for _, v in validation[f"epoch_{name}"]], history[f"val_{name}"], rtol=1e-6
        )
    assert [s for s, _ in train["batch_loss"]] == [4, 8, 12]
    rates = dict(train["learning_rate"])
    assert rates.keys() == {4, 6, 8, 12}
    assert rates[4] == pytest.approx(0.1 * (1 - 3 / 12))  # of the step that was done
    assert train["epoch"] == [(6, 1.0), (12, 2.0)]
    for tag in ("images_per_second", "step_seconds", "input_wait_fraction"):
        assert all(math.isfinite(v) and v >= 0 for _, v in train[tag]), tag
        assert {s for s, _ in train[tag]} <= {4, 6, 8, 12} and train[tag]
    speeds = zip(train["images_per_second"], train["step_seconds"], strict=True)
    for (_, images), (_, seconds) in speeds:
        assert images == pytest.approx(BATCH / seconds, rel=1e-4)


@pytest.mark.slow
def test_a_resumed_run_replaces_what_the_killed_one_wrote_later(tmp_path):
    class Killed(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.optimizer.iterations.numpy() == 10:
                raise KeyboardInterrupt

    def callbacks():
        resume = CheckpointAndResume(tmp_path / "checkpoints")
        return [TensorBoard(tmp_path / "logs", BATCH, update_freq=2), resume]

    with pytest.raises(KeyboardInterrupt):
        fit([*callbacks(), Killed()])
    before = event_scalars(tmp_path / "logs")["train"]
    assert [s for s, _ in before["batch_loss"]] == [2, 4, 6, 8, 10]
    time.sleep(1.1)  # TensorBoard orders event files by the second in their names
    fit(callbacks())
    train = event_scalars(tmp_path / "logs")["train"]
    assert [s for s, _ in train["batch_loss"]] == [2, 4, 6, 8, 10, 12]
    assert [s for s, _ in train["epoch_loss"]] == [6, 12]


@contextmanager
def tensorboard(folder):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port"]
    process = subprocess.Popen(
        [*command, str(port), "--host", "127.0.0.1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(path, deadline=60):
        end = time.monotonic() + deadline
        while True:
            try:
                answer = opener.open(f"http://127.0.0.1:{port}/data/{path}", timeout=5)
                found = json.loads(answer.read())
                if found:
                    return found
            except OSError:
                pass
            assert time.monotonic() < end and process.poll() is None, "TensorBoard is not there"
            time.sleep(0.5)

    try:
        yield ask
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.slow
def test_tensorboard_serves_the_scalars(tmp_path):
    history = fit([TensorBoard(tmp_path, BATCH, update_freq=3)])
    with tensorboard(tmp_path) as ask:
        tags = ask("plugin/scalars/tags")
        assert set(tags) == {"train", "validation"}
        expected = "epoch_loss epoch_accuracy learning_rate images_per_second batch_loss"
        assert {*expected.split(), "step_seconds", "input_wait_fraction"} <= set(tags["train"])
        points = ask("plugin/scalars/scalars?run=train&tag=epoch_loss")
        assert [step for _, step, _ in points] == [6, 12]
        np.testing.assert_allclose([value for _, _, value in points], history["loss"], rtol=1e-6)


def test_update_freq_is_checked(tmp_path):
    with pytest.raises(ValueError, match="update_freq=0"):
        TensorBoard(tmp_path, update_freq=0)
    fit([TensorBoard(tmp_path, update_freq="epoch")], validate=False)
    train = event_scalars(tmp_path)["train"]
    assert "batch_loss" not in train and "images_per_second" not in train
    assert len(train["step_seconds"]) == 2


# ---------------------------------------------------------------- Throughput


class Slow(keras.callbacks.Callback):
    """Steps of 20 ms, with a first one of 0.3 s, as tracing takes; slow ends of epochs."""

    def on_train_batch_begin(self, batch, logs=None):
        first = self.model.optimizer.iterations.numpy() == 0
        time.sleep(0.3 if first else 0.02)

    def on_epoch_end(self, epoch, logs=None):
        time.sleep(0.3)


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.slow
def test_throughput_leaves_out_tracing_validation_and_ends_of_epochs(validate):
    throughput = Throughput(BATCH, skip_steps=2)
    assert math.isnan(throughput.images_per_second)
    fit([Slow(), throughput], epochs=3, validate=validate)
    assert [e.steps for e in throughput.epochs] == [STEPS - 2, STEPS, STEPS]
    assert 0.02 <= throughput.step_seconds < 0.05
    assert throughput.images_per_second == pytest.approx(BATCH / throughput.step_seconds)
    assert 0 <= throughput.input_wait_fraction <= 1


def test_throughput_of_a_run_shorter_than_its_warm_up():
    throughput = Throughput(BATCH, skip_steps=100)
    fit([throughput])
    assert throughput.epochs == [] and math.isnan(throughput.step_seconds)


# ---------------------------------------------------------------- Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_in_a_log_file_has_a_line_an_epoch():
    out = io.StringIO()
    fit([Progress(BATCH, stream=out)], epochs=2)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("tracing the graph") and lines[1].startswith("traced in")
    assert len(lines) == 4 and "\r" not in out.getvalue()
    for epoch, line in enumerate(lines[2:], 1):
        for part in (f"epoch {epoch}/2  step 6/6", "loss ", "accuracy ", "val_loss", "images/s"):
            assert part in line, line


def test_progress_in_a_log_file_has_lines_in_mid_epoch_too(monkeypatch):
    ticks = itertools.count()
    now = [0.0]

    class Steps(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            now[0] = 0.02 * next(ticks)

    out = io.StringIO()
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    fit([Steps(), Progress(BATCH, interval_seconds=0.05, stream=out)], epochs=1, validate=False)
    middle = out.getvalue().splitlines()[2:-1]
    # Steps of 20 ms and lines every 50 ms.
    assert len(middle) == 1 and "step 4/6" in middle[0] and "s left" in middle[0]


def test_an_evaluation_at_the_end_of_an_epoch_is_not_the_time_of_steps(tmp_path, monkeypatch):
    now = [0.0]

    class Steps(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            now[0] += 0.02

        def on_epoch_end(self, epoch, logs=None):
            now[0] += 100

    fake = types.SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: 0.0)
    monkeypatch.setattr(rates, "time", fake)
    out = io.StringIO()
    callbacks = [Steps(), Progress(BATCH, stream=out), TensorBoard(tmp_path, BATCH)]
    fit(callbacks, epochs=2, validate=False)
    seconds = event_scalars(tmp_path)["train"]["step_seconds"]
    assert [value for _, value in seconds] == pytest.approx([0.02, 0.02])
    assert f"{BATCH / 0.02:,.0f} images/s" in out.getvalue().splitlines()[-1]


def test_progress_on_a_terminal_updates_one_line():
    out = Terminal()
    fit([Slow(), Progress(BATCH, stream=out)], epochs=2)
    lines = out.getvalue().split("\n")
    assert len(lines) == 5 and lines[-1] == ""  # tracing, traced, two epochs
    assert lines[2].count("\r") >= 2 and "validating" in lines[2]
    last = lines[2].split("\r")[-1]
    assert last.startswith("epoch 1/2  step 6/6")


def test_duration():
    from tfscale.callbacks.progress import _duration

    assert [_duration(s) for s in (3.2, 75, 3700)] == ["3 s", "1 min 15 s", "1 h 01 min"]
