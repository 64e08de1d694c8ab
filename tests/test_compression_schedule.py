"""The schedule of compression: which phase is in force at which step, and what it refuses.

One process stands for two workers here; tests/multiprocess/test_compression_state.py has real ones.
"""

import contextlib
import io
import logging

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

from tests.test_retrace import build
from tfscale._keras import install, keras
from tfscale.callbacks import compression_schedule
from tfscale.callbacks.checkpoint import CheckpointAndResume
from tfscale.callbacks.compression_schedule import CompressionSchedule
from tfscale.callbacks.progress import Progress
from tfscale.callbacks.tensorboard import TensorBoard
from tfscale.distribute.compression.choice import compressor
from tfscale.distribute.compression.protocol import Uncompressed
from tfscale.distribute.error_feedback import CompressionState


class Operation(tf.distribute.ReductionToOneDevice):
    """Stands in for Hierarchical2DAllReduce."""

    wants_measurement = False

    def __init__(self):
        super().__init__()
        self.generation, self.compressor = 0, compressor(None)
        self.changes = []

    def for_model(self, model):
        return contextlib.nullcontext()

    def state_of(self, model):
        return CompressionState()

    def set_compression(self, compression):
        self.compressor = compressor(compression)
        self.generation += 1
        self.changes.append(self.compressor.name)

    def use_plan(self, saved):
        pass

    def timeline(self):
        return []

    predicted_timeline = timeline

    def plan_fingerprints(self):
        first, second = ["a/kernel", [2, 3], "float32", 1], ["a/bias", [3], "float32", 1]
        third = ["b/kernel", [3, 1], "float16", 0]
        return [[first, second, third, ["b/table", None, "sparse", -1]]]


OPERATION = Operation()


@pytest.fixture(scope="module")
def strategy():
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"], cross_device_ops=OPERATION)
    install(strategy, OPERATION)
    return strategy


@pytest.fixture
def two_workers(strategy, monkeypatch):
    vars(OPERATION).update(vars(Operation()))
    monkeypatch.setattr(compression_schedule, "_workers", lambda strategy: 2)
    monkeypatch.setattr(compression_schedule, "agree", lambda *args: None)
    return OPERATION


class Watch(keras.callbacks.Callback):
    """Notes which compression was in force in each execution; can end the run like a kill."""

    def __init__(self, operation, kill=None):
        super().__init__()
        self.operation, self.kill, self.seen = operation, kill, []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(self.operation.compressor.name)
        if len(self.seen) == self.kill:
            raise KeyboardInterrupt


def fit(strategy, callbacks, epochs=3, steps=4, model=None, initial_step=0, **options):
    data = tf.data.Dataset.from_tensor_slices((tf.ones([64, 2]), tf.ones([64, 1])))
    data = data.batch(4).repeat().skip(initial_step)
    model = model or build(strategy, **options)
    model.fit(data, epochs=epochs, steps_per_epoch=steps, verbose=0, callbacks=callbacks)
    return model


B, F = "bfloat16", "float16"


@pytest.mark.slow
def test_phases_by_epoch_and_by_step(strategy, two_workers, caplog):
    watch = Watch(two_workers)
    fit(strategy, [CompressionSchedule({0: None, 1: B, 2: None}), watch])
    assert watch.seen == ["none"] * 4 + [B] * 4 + ["none"] * 4
    assert two_workers.changes == [B, "none"]
    lines = [record.getMessage() for record in caplog.records if record.name == "tfscale"]
    assert lines == [
        "from epoch 1 on gradients travel with compression none",
        "from epoch 2 on gradients travel with compression bfloat16 (before: none)",
        "from epoch 3 on gradients travel with compression none (before: bfloat16)",
    ]
    # The first phase also counts where the operation was made with something else.
    two_workers.set_compression(F)
    watch = Watch(two_workers)
    fit(strategy, [watch, CompressionSchedule({0: None, 3: B, 9: F}, unit="step")])
    assert watch.seen == ["none"] * 3 + [B] * 6 + [F] * 3


@pytest.mark.slow
def test_progress_says_when_the_step_is_traced_again(strategy, two_workers):
    out = io.StringIO()
    fit(strategy, [CompressionSchedule({0: None, 1: B}), Progress(4, stream=out)])
    lines = [line.split(" in ")[0] for line in out.getvalue().splitlines()]
    assert [line for line in lines if line.startswith("traced")] == ["traced", "traced again"]
    # Before the line of epoch 2, whose speed leaves that step out.
    assert lines.index("traced again") < min(
        i for i, line in enumerate(lines) if line.startswith("epoch 2/3  step 4/4")
    )


@pytest.mark.slow
def test_a_second_fit_and_several_steps_per_execution(strategy, two_workers):
    watch = Watch(two_workers)
    schedule = CompressionSchedule({0: None, 3: B}, unit="step")
    model = fit(strategy, [schedule, watch], epochs=1, steps_per_execution=2)
    # The execution that holds steps 2 and 3 begins in the first phase.
    assert watch.seen == ["none", "none"]
    fit(strategy, [schedule, watch], epochs=1, model=model)
    # Without CheckpointAndResume a step is an iteration of the optimizer, which goes on.
    assert watch.seen[2:] == [B, B]


@pytest.mark.parametrize("unit", ["epoch", "step"])
@pytest.mark.slow
def test_resumes_in_the_right_phase(strategy, two_workers, tmp_path, unit, caplog):
    caplog.set_level(logging.INFO, "tfscale")
    phases = {0: None, 1: B, 2: F} if unit == "epoch" else {0: None, 4: B, 8: F}
    plain = ["none"] * 4 + [B] * 4 + [F] * 4

    def run(kill=None, phases=phases):
        vars(OPERATION).update(vars(Operation()))
        resume = CheckpointAndResume(tmp_path, save_every=3)
        watch = Watch(OPERATION, kill)
        callbacks = [CompressionSchedule(phases, unit), watch, resume]
        fit(strategy, callbacks, initial_step=resume.initial_step)
        return watch.seen, resume

    with pytest.raises(KeyboardInterrupt):
        run(kill=8)
    seen, resume = run()
    assert resume.initial_step == 6 and seen == plain[6:]
    assert "when the run was saved" not in caplog.text
    assert CheckpointAndResume(tmp_path)._latest.compression["compressor"] == F
    # Another schedule is said, and holds.
    caplog.clear()
    fit(
        strategy,
        [
            CompressionSchedule({0: B}, unit),
            watch := Watch(OPERATION),
            CheckpointAndResume(tmp_path),
        ],
        epochs=4,
        initial_step=12,
    )
    assert watch.seen == [B] * 4
    start = sorted(map(str, phases))[0]
    assert (
        f"compression.phases.{start} was 'none' when the run was saved and is 'bfloat16' now"
        in (caplog.text)
    )


@pytest.mark.slow
def test_another_compression_than_saved_is_said(strategy, two_workers, tmp_path, caplog):
    fit(strategy, [CheckpointAndResume(tmp_path)], epochs=1)
    caplog.clear()
    two_workers.set_compression(B)
    fit(strategy, [CheckpointAndResume(tmp_path)], epochs=2)
    assert "compression was none when the run was saved and is bfloat16 now" in caplog.text
    caplog.clear()
    fit(strategy, [CheckpointAndResume(tmp_path)], epochs=3)
    assert "when the run was saved" not in caplog.text
    schedule = CompressionSchedule({0: B, 2: None, 5: F})
    fit(strategy, [CheckpointAndResume(tmp_path), schedule], epochs=4)
    assert (
        "was bfloat16 when the run was saved and is bfloat16, none from epoch 3 on, float16 from "
        "epoch 6 on now" in caplog.text
    )


@pytest.mark.slow
def test_tensorboard_shows_the_compression_and_the_plan_when_they_change(
    strategy, two_workers, tmp_path
):
    board = TensorBoard(tmp_path, update_freq=2)
    fit(strategy, [CompressionSchedule({0: None, 1: B}), board])
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    assert "compression" in multiplexer.PluginRunToTagToContent("text")["train"]

    def texts(tag):
        events = multiplexer.Tensors("train", tag)
        return [(e.step, tf.make_ndarray(e.tensor_proto).item().decode()) for e in events]

    assert texts("compression") == [(2, "none"), (6, B)]
    ((step, table),) = texts("bucket_plan")
    assert step == 2
    assert table.splitlines()[2:] == [
        "| 0 | 1 | 6 | b/kernel | b/kernel |",
        "| 1 | 2 | 36 | a/bias | a/kernel |",
        "| alone | 1 | ? | b/table | b/table |",
    ]


def test_one_worker_is_told_once(strategy, caplog):
    vars(OPERATION).update(vars(Operation()))
    schedule = CompressionSchedule({0: B})
    model = fit(strategy, [schedule], epochs=1, steps=1)
    fit(strategy, [schedule], epochs=1, steps=1, model=model)
    assert caplog.text.count("compression has no effect") == 1
    assert OPERATION.changes == []


@pytest.mark.slow
def test_a_strategy_without_our_all_reduce_is_refused(monkeypatch):
    monkeypatch.setattr(compression_schedule, "_workers", lambda strategy: 2)
    with pytest.raises(ValueError, match="Hierarchical2DAllReduce"):
        fit(tf.distribute.get_strategy(), [CompressionSchedule({0: B})], epochs=1, steps=1)


@pytest.mark.parametrize(
    "phases, message",
    [
        ({}, "a dict of start to compression"),
        ([None], "a dict of start to compression"),
        ({1: None}, r"begin at 0 and ascend, got \[1\]"),
        ({0: None, 5: B, 3: None}, r"got \[0, 5, 3\]"),
        ({0: None, 1.5: B}, "whole numbers from 0, got 1.5"),
        ({0: None, -1: B}, "whole numbers from 0, got -1"),
        ({0: None, 2: "zip"}, "phase 2: unknown compression 'zip'"),
        ({0: None, 2: Uncompressed(momentum=0.9)}, r"0: 0, 2: 0.9\).*Uncompressed\(momentum"),
    ],
)
def test_bad_phases(phases, message):
    with pytest.raises(ValueError, match=message):
        CompressionSchedule(phases)
    with pytest.raises(ValueError, match='unit=.*"epoch" or "step"'):
        CompressionSchedule({0: None}, unit="day")


@pytest.mark.parametrize("seconds", [float("nan"), -1, "x", None])
def test_a_timeout_is_a_number_above_0(seconds):
    with pytest.raises(ValueError, match="timeout_seconds must be a number of seconds above 0"):
        CompressionSchedule({0: None}, timeout_seconds=seconds)
