"""What holds a run up: the wait of a step against a simulation, and the verdict on real sources."""

import gc
import io
import math
import time

import numpy as np
import pytest
import tensorflow as tf

from tests import record_files
from tfscale._keras import keras
from tfscale.callbacks import rates
from tfscale.callbacks.progress import Progress
from tfscale.callbacks.rates import Interval
from tfscale.callbacks.tensorboard import TensorBoard
from tfscale.data import cache, clock, probe, reading, records, verdict

# ---------------------------------------------------------------- how long a step waits


def simulated_end(begin, arrivals, computing):
    now = begin
    for arrival in arrivals:
        now = max(now, arrival) + computing
    return now


def test_blocked_seconds_against_a_simulation():
    random = np.random.default_rng(0)
    for _ in range(200):
        steps, computing = random.integers(1, 9), random.uniform(0.01, 2)
        arrivals = np.sort(random.uniform(-5, 12, steps))
        arrivals[: random.integers(0, steps + 1)] = -math.inf
        end = simulated_end(1.0, arrivals, computing)
        expected = end - 1.0 - steps * computing
        assert clock.blocked_seconds(1.0, end, arrivals) == pytest.approx(expected, abs=1e-9)


def test_deliveries_forget_old_times(monkeypatch):
    monkeypatch.setattr(clock, "KEPT", 4)
    kept = clock.Deliveries(1)
    for second in range(6):
        kept.add(float(second))
    assert kept.count == 6
    assert kept.times(0, 6).tolist() == [-math.inf, -math.inf, 2, 3, 4, 5]


def endless(make, per_step=1):
    dataset = tf.data.Dataset.counter().map(make).prefetch(2)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = 2
    off = tf.data.experimental.AutoShardPolicy.OFF
    options.experimental_distribute.auto_shard_policy = off
    return clock.timed(dataset, per_step).with_options(options)


def slow_input(seconds, per_step=1):
    """Batches of 4 examples, of which one comes every so many seconds."""

    def wait(number):
        time.sleep(seconds)
        return number

    def make(number):
        with tf.control_dependencies([tf.numpy_function(wait, [number], tf.int64)]):
            return tf.ones([4, 3]), tf.ones([4, 1])

    return endless(make, per_step)


def slow_model(seconds, strategy, steps_per_execution=1):
    """A model whose step computes for so long, on all replicas together."""

    class Slow(keras.layers.Layer):
        def call(self, inputs):
            def wait(values):
                time.sleep(seconds / strategy.num_replicas_in_sync)
                return values

            slow = tf.numpy_function(wait, [inputs], tf.float32)
            return tf.ensure_shape(slow, inputs.shape) + 0 * inputs

    with strategy.scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(3), Slow()])
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    return model


class Waits(keras.callbacks.Callback):
    """The share of time waited for, of each epoch, from a clock like those of the callbacks."""

    def __init__(self, behind):
        super().__init__()
        self._supports_tf_logs = True
        self._clock, self.shares = rates.StepClock(), []
        self._clock._behind = behind

    def on_epoch_begin(self, epoch, logs=None):
        self._clock.restart()

    def on_train_batch_begin(self, batch, logs=None):
        self._clock.begin(batch)

    def on_train_batch_end(self, batch, logs=None):
        self._clock.end(batch)

    def on_epoch_end(self, epoch, logs=None):
        interval = self._clock.lap()
        assert interval.steps == 8
        self.shares.append(interval.input_wait_fraction)


def shares(input_seconds, step_seconds, replicas=1, steps_per_execution=1, behind=False):
    devices = [f"CPU:{i}" for i in range(replicas)]
    strategy = tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())
    model = slow_model(step_seconds, strategy, steps_per_execution)
    dataset = strategy.distribute_datasets_from_function(
        lambda context: slow_input(input_seconds / replicas, replicas)
    )
    waits = Waits(behind)
    model.fit(dataset, epochs=2, steps_per_epoch=8, verbose=0, callbacks=[waits])
    return waits.shares[1:]  # the first traces


@pytest.mark.slow
@pytest.mark.parametrize("behind", [False, True])
def test_a_step_waits_only_while_it_does_not_compute(behind):
    """The thread that fetches ahead waits nearly all the time in both runs."""
    assert max(shares(0.02, 0.06, behind=behind)) < 0.1
    # 1 - 0.04 / 0.1; what the machine adds to a step makes it less.
    for share in shares(0.1, 0.04, behind=behind):
        assert 0.35 < share < 0.65


@pytest.mark.slow
def test_a_step_waits_for_all_of_its_replicas_and_in_all_its_executions():
    assert max(shares(0.02, 0.06, replicas=2)) < 0.1
    for share in shares(0.2, 0.02, replicas=2):
        assert 0.6 < share < 1
    for share in shares(0.1, 0.04, steps_per_execution=4):
        assert 0.35 < share < 0.65


# ---------------------------------------------------------------- the verdict


class Far(cache.Store):
    """Each read takes 30 ms."""

    def example(self, record, path, offset):
        def wait(number):
            time.sleep(0.03)
            return number

        with tf.control_dependencies([tf.numpy_function(wait, [record], tf.int64)]):
            return reading.read(path, offset)


@pytest.fixture(autouse=True)
def no_other_source(monkeypatch):
    monkeypatch.setattr(verdict, "_sources", [])


def contract_of(folder, **pictures):
    record_files.write(folder, [24], **pictures)
    return records.describe(str(folder), "train", 8)


def interval(images_per_second, waited, cpu_share):
    """Ten seconds of a run with batches of 8."""
    cpu = 10 * cpu_share * verdict.cores.usable_cores()
    return Interval(round(images_per_second * 10 / 8), 10.0, 10 * waited, cpu)


def test_a_run_that_does_not_wait_is_compute_bound(tmp_path, monkeypatch):
    contract, store = contract_of(tmp_path), cache.Store()
    verdict.register(contract, 0, store, 2, (32, 32))
    monkeypatch.setattr(probe, "measure", None)  # nothing is tried
    found = verdict.judge(interval(100, 0.01, 1))
    assert found.text == "compute-bound: 1 % of the step is waiting for input"
    assert found.cause == "compute"


def test_without_a_dataset_of_ours_only_the_share_is_said():
    found = verdict.judge(interval(100, 0.41, 1))
    assert found.text == "input-bound: 41 % of the step is waiting for input"


def test_a_slow_source(tmp_path):
    contract, store = contract_of(tmp_path), Far()
    verdict.register(contract, 0, store, 4, (32, 32))
    start = time.monotonic()
    found = verdict.judge(interval(4 / 0.03, 0.8, 0.1))
    assert time.monotonic() - start < 4
    assert found.cause == "reading"
    assert found.text.startswith("input-bound: 80 % of the step is waiting for pictures; reading")
    assert "4 at a time" in found.text and "--cache=disk or memory" in found.text
    assert "--threads" not in found.text
    verdict.register(contract, 0, store, 4, (32, 32), cached=True, tuned=False)
    found = verdict.judge(interval(4 / 0.03, 0.8, 0.1))
    assert "its budget is too small" in found.text and "--threads" in found.text


def test_a_source_that_does_not_answer(tmp_path):
    class Stuck(cache.Store):
        def example(self, record, path, offset):
            def wait(number):
                time.sleep(4)
                return number

            return tf.strings.as_string(tf.numpy_function(wait, [record], tf.int64))

    contract, store = contract_of(tmp_path), Stuck()
    verdict.register(contract, 0, store, 2, (32, 32))
    start = time.monotonic()
    found = verdict.judge(interval(1, 0.99, 0))
    assert time.monotonic() - start < 3 and found.cause == "reading"
    assert "no picture came in 1 s" in found.text


def photograph(height, width):
    noise = np.random.RandomState(0).randint(0, 255, [height // 8, width // 8, 3], np.uint8)
    return record_files.encode(tf.image.resize(noise, [height, width]).numpy().astype(np.uint8))


def test_large_pictures(tmp_path):
    large = photograph(1200, 1600)
    contract, store = contract_of(tmp_path, encoded=dict.fromkeys(range(24), large)), cache.Store()
    verdict.register(contract, 0, store, 2, (224, 224))
    mine = verdict.cores.usable_cores()
    costs = probe.measure(contract, 0, store, 2, (224, 224))
    assert costs.short_side == 256 and costs.copy_seconds < costs.decode_seconds / 3
    assert costs.read_bytes == pytest.approx(len(large), rel=0.01)
    for _ in range(3):  # on a busy machine the reader may wait for a core time and again
        verdict.register(contract, 0, store, 2, (224, 224))
        found = verdict.judge(interval(0.9 * mine / costs.decode_seconds, 0.41, 0.95))
        if found.cause == "decoding":
            break
    assert found.cause == "decoding", found
    assert f"ms of CPU each, {mine} core" in found.text
    assert "a short-side-256 copy would decode" in found.text
    assert found.text.endswith(
        "times as fast: python -m tfscale.data.prepare --short_side=256 --quality=90"
    )


def test_small_pictures_gain_nothing_by_a_copy(tmp_path):
    contract, store = contract_of(tmp_path), cache.Store()
    verdict.register(contract, 0, store, 2, (224, 224))
    costs = probe.measure(contract, 0, store, 2, (224, 224))
    assert math.isnan(costs.copy_seconds) and 0 < costs.decode_seconds < 0.05
    mine = verdict.cores.usable_cores()
    found = verdict.judge(interval(mine / costs.decode_seconds, 0.5, 1))
    if found.cause == "decoding":
        assert "prepare" not in found.text and "--cache=decoded" in found.text
    # The cores are busy, though neither with decoding nor with reading.
    found = verdict.judge(interval(8, 0.3, 0.95))
    assert found.cause == "busy" and "busy with the step itself (reading" in found.text
    assert "this process as a whole 95 %" in found.text
    found = verdict.judge(interval(8, 0.3, 0.1))
    assert found.cause == "unknown" and "neither reading nor decoding" in found.text


def test_reading_is_timed_by_whole_bursts():
    # Three at a time, of 1 s each; the first burst took 5 s, the third came late by 0.5 s.
    bursts = [5.0, 6.0, 7.5, 8.0, 9.0, 10.0, 11.0]
    times = np.array([0.0, *np.repeat(bursts, 3)])
    assert probe._seconds_of_one(times, 3) == pytest.approx(2.5 / 9)
    assert probe._seconds_of_one(times[:4], 3) == pytest.approx(5 / 3)
    assert probe._seconds_of_one(times[:1], 3) == 0


def test_probe_passes_over_bad_records_and_takes_other_formats(tmp_path):
    bad = {0: b"", 1: b"\xff\xd8\xffcut", 2: record_files.encode(record_files.picture(), "PNG")}
    contract = contract_of(tmp_path, encoded=bad)
    costs = probe.measure(contract, 0, cache.Store(), 2, (32, 32))
    assert 0 < costs.decode_seconds < 0.05
    (tmp_path / "train-00000-of-00001.tfrecord").unlink()
    assert probe.measure(contract, 0, cache.Store(), 2, (32, 32)).read_seconds == math.inf


def test_decoded_pictures(tmp_path):
    contract = contract_of(tmp_path)
    store = cache.create("decoded", (32, 32), contract, 0)
    verdict.register(contract, 0, store, 2, (32, 32), cached=True)
    costs = probe.measure(contract, 0, store, 2, (32, 32))
    assert 0 < costs.decode_seconds < 0.05 and math.isnan(costs.copy_seconds)
    mine = verdict.cores.usable_cores()
    found = verdict.judge(interval(mine / costs.decode_seconds / 2, 0.5, 0.7))
    assert "cropping and resizing" in found.text or "cache" in found.text


def test_a_service_decodes(tmp_path):
    contract, store = contract_of(tmp_path), cache.Store()
    verdict.register(contract, 0, store, 2, (32, 32), service=True)
    assert "start more of its workers" in verdict.judge(interval(1, 0.5, 0)).text


def test_nothing_is_kept_alive(tmp_path):
    contract, store = contract_of(tmp_path), cache.Store()
    verdict.register(contract, 0, store, 2, (32, 32))
    del contract, store
    gc.collect()
    assert verdict.judge(interval(1, 0.5, 0)).text.endswith("waiting for input")


def test_when_a_verdict_is_told_again():
    first = verdict.Verdict(0.41, "reading", "")
    assert first.differs(None)
    assert not verdict.Verdict(0.50, "reading", "").differs(first)
    assert verdict.Verdict(0.52, "reading", "").differs(first)
    assert verdict.Verdict(0.41, "decoding", "").differs(first)


def verdicts_in(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "train")).Reload()
    tags = events.Tags()["tensors"]
    if "input_verdict" not in tags:
        return []
    return [
        (e.step, tf.make_ndarray(e.tensor_proto).item().decode())
        for e in events.Tensors("input_verdict")
    ]


@pytest.mark.parametrize("slow", [True, False])
def test_callbacks_tell_the_verdict(tmp_path, slow):
    contract, store = contract_of(tmp_path), Far()
    verdict.register(contract, 0, store, 1, (32, 32))
    strategy, out = tf.distribute.get_strategy(), io.StringIO()
    model = slow_model(0.0 if slow else 0.02, strategy)
    callbacks = [TensorBoard(tmp_path / "logs", 8, update_freq=3), Progress(8, stream=out)]
    # One record at a time, of 30 ms each, makes a batch of 8 in 0.24 s.
    dataset = slow_input(0.24 if slow else 0.0)
    model.fit(dataset, epochs=3, steps_per_epoch=3, verbose=0, callbacks=callbacks)
    told = verdicts_in(tmp_path / "logs")
    lines = [line for line in out.getvalue().splitlines() if "bound" in line]
    if slow:
        # The first steps are fed from buffers that were filled while the step was traced.
        assert lines and "reading is the limit" in lines[-1], out.getvalue()
        assert told and "reading is the limit" in told[-1][1]
        assert all(step % 3 == 0 and text.startswith("input-bound: ") for step, text in told)
    else:
        assert lines == []
        assert len(told) == 1 and told[0][1].startswith("compute-bound: "), told
