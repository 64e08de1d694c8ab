"""Checkpoints in one process: resumed equals undisturbed, and what cannot be resumed says why."""

import contextlib
import functools
import json
import logging
import types

import numpy as np
import pytest
import tensorflow as tf

from tfscale._keras import install, keras
from tfscale.callbacks import compression_files
from tfscale.callbacks.checkpoint import CheckpointAndResume
from tfscale.distribute import _tf_private
from tfscale.distribute.error_feedback import CompressionState
from tfscale.precision import scale_loss_optimizer

STEPS, BATCH = 5, 8


class Killed(Exception):
    pass


class KillAt(keras.callbacks.Callback):
    """Stands in for kill -9 (which tests/multiprocess does for real)."""

    def __init__(self, step=None, epoch_end=None):
        super().__init__()
        self.step, self.epoch_end, self.seen = step, epoch_end, []

    def on_train_batch_begin(self, batch, logs=None):
        iterations = self.model.optimizer.iterations.numpy()
        if iterations == self.step:
            raise Killed

    def on_train_batch_end(self, batch, logs=None):
        rate = float(tf.convert_to_tensor(self.model.optimizer.learning_rate))
        self.seen.append((int(self.model.optimizer.iterations.numpy()), rate))

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch_end:
            raise Killed


@pytest.fixture(scope="module")
def mirrored():
    strategy = tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    install(strategy)
    return strategy


def dataset(initial_step):
    """Global batch k of a run is a function of k."""
    rng = np.random.RandomState(0)
    x = rng.randn(40, BATCH, 4).astype("float32")
    y = (x.sum(-1, keepdims=True) > 0).astype("float32")
    batches = tf.data.Dataset.from_tensor_slices((x, y))
    return batches.unbatch().batch(BATCH, drop_remainder=True).skip(initial_step).repeat()


def build(strategy, width=6, policy="float32", names=("a", "b"), optimizer=None):
    keras.mixed_precision.set_global_policy(policy)
    try:
        with strategy.scope():
            keras.utils.set_random_seed(3)
            model = keras.Sequential(
                [
                    keras.Input([4]),
                    keras.layers.Dense(width, name=names[0]),
                    keras.layers.BatchNormalization(),
                    keras.layers.Dense(1, "sigmoid", name=names[1], dtype="float32"),
                ]
            )
            rate = keras.optimizers.schedules.PolynomialDecay(0.1, 6 * STEPS, power=2.0)
            optimizer = optimizer or (lambda: keras.optimizers.SGD(rate, momentum=0.9))
            model.compile(optimizer(), "binary_crossentropy", ["accuracy", "mae"])
    finally:
        keras.mixed_precision.set_global_policy("float32")
    return model


def run(strategy, directory, kill=None, epochs=4, extra=(), build_options=None, **options):
    model = build(strategy, **(build_options or {}))
    resume = CheckpointAndResume(directory, **options)
    kill = kill or KillAt()
    history = model.fit(
        dataset(resume.initial_step),
        epochs=epochs,
        steps_per_epoch=STEPS,
        verbose=0,
        callbacks=[*extra, kill, resume],
    )
    return model, history.history, kill.seen, resume


def killed(*args, kill, **kwargs):
    with pytest.raises(Killed):
        run(*args, kill=kill, **kwargs)
    return kill.seen


@pytest.fixture(scope="module")
def undisturbed(mirrored, tmp_path_factory):
    # A save averages the statistics of the replicas: the undisturbed run saves as often.
    return functools.cache(
        lambda every: run(mirrored, tmp_path_factory.mktemp("plain"), save_every=every)
    )


def assert_same_bits(model, other):
    for a, b in zip(
        [*model.variables, *model.optimizer.variables],
        [*other.variables, *other.optimizer.variables],
        strict=True,
    ):
        np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=a.name)


@pytest.mark.parametrize(
    "kill, save_every, resumes_at",
    [
        (KillAt(step=12), None, 10),  # within epoch 2, saved at its beginning
        (KillAt(epoch_end=1), None, 5),  # after the last step of an epoch, before its save
        (KillAt(step=10), None, 10),  # just after the save of an epoch
        (KillAt(step=13), 3, 12),  # saved in mid-epoch
        (KillAt(step=8), 3, 6),
        (KillAt(epoch_end=2), 3, 12),  # a save is due at 15, but the epoch has not ended
    ],
)
@pytest.mark.slow
def test_resumed_equals_undisturbed_to_the_bit(
    mirrored, undisturbed, tmp_path, kill, save_every, resumes_at
):
    kill = KillAt(kill.step, kill.epoch_end)
    plain, history, seen, _ = undisturbed(save_every)
    first = killed(mirrored, tmp_path / "run", kill=kill, save_every=save_every)
    model, resumed, then, resume = run(mirrored, tmp_path / "run", save_every=save_every)
    assert resume.initial_step == resumes_at
    assert_same_bits(model, plain)
    # Every step once from the last save on, each with the rate of the undisturbed run.
    assert [*first[:resumes_at], *then] == seen
    assert then[0][0] == resumes_at + 1
    for name, values in resumed.items():
        assert values == history[name][-len(values) :], name
    assert resume.is_complete(4) is False or resume.initial_step == 20


@pytest.mark.slow
def test_resumed_in_mid_epoch_with_several_steps_per_execution(mirrored, tmp_path):
    def run(directory, stop=None):
        model = build(mirrored)
        model.compile(model.optimizer, "mse", ["mae"], steps_per_execution=2)
        resume = CheckpointAndResume(directory, save_every=4)
        callbacks = [resume] if stop is None else [resume, KillAt(step=stop)]
        history = model.fit(
            dataset(resume.initial_step), epochs=2, steps_per_epoch=10, verbose=0,
            callbacks=callbacks,
        )  # fmt: skip
        return model, history.history, resume

    plain, history, _ = run(tmp_path / "plain")
    with pytest.raises(Killed):
        run(tmp_path / "run", stop=14)
    model, resumed, resume = run(tmp_path / "run")
    assert resume.initial_step == 12
    assert_same_bits(model, plain)
    assert resumed["mae"][-1] == history["mae"][-1]


@pytest.mark.slow
def test_loss_scale_is_resumed(mirrored, tmp_path):
    def optimizer():
        inner = keras.optimizers.Adam(0.01, use_ema=True, clipnorm=1.0)
        return scale_loss_optimizer(inner, initial_scale=256, growth_steps=4)

    options = {"build_options": {"policy": "mixed_float16", "optimizer": optimizer}}
    plain, *_ = run(mirrored, tmp_path / "plain", save_every=3, **options)
    killed(mirrored, tmp_path / "run", kill=KillAt(step=11), save_every=3, **options)
    model, *_ = run(mirrored, tmp_path / "run", save_every=3, **options)
    assert_same_bits(model, plain)
    assert float(model.optimizer.loss_scale) == float(plain.optimizer.loss_scale) == 256 * 2**5
    assert model.optimizer.dynamic_counter.numpy() == 0


def test_settings_of_the_optimizer_that_changed_are_said_and_hold(tmp_path, caplog):
    def start(epochs, rate, lowered=None, folder="a", **settings):
        def optimizer():
            inner = keras.optimizers.SGD(rate, **settings)
            return inner if folder == "b" else scale_loss_optimizer(inner)

        def lower(epoch, rate):
            return lowered or rate

        model, *_ = run(
            tf.distribute.get_strategy(),
            tmp_path / folder,
            epochs=epochs,
            build_options={"optimizer": optimizer},
            extra=[keras.callbacks.LearningRateScheduler(lower)],
        )
        said, *_ = [r.getMessage() for r in caplog.records if "learning" in r.getMessage()] + [""]
        caplog.clear()
        return said, model.optimizer

    assert start(1, 0.1)[0] == ""
    said, optimizer = start(2, 0.1, lowered=0.01)
    assert said == ""
    # What a callback did goes on; what the program says anew is in force.
    said, optimizer = start(3, 0.1)
    assert said == "the learning rate goes on as it was saved, at 0.01 (it is 0.1 in this program)"
    assert float(optimizer.learning_rate) == pytest.approx(0.01)
    said, optimizer = start(4, 0.05, momentum=0.5, nesterov=True)
    assert said.endswith(
        "from here on learning_rate=0.05 (was 0.1), momentum=0.5 (was 0), nesterov=True (was False)"
    )
    assert float(optimizer.learning_rate) == pytest.approx(0.05)

    def decay(steps):
        return keras.optimizers.schedules.PolynomialDecay(0.1, steps)

    with pytest.raises(ValueError, match="a learning rate that is a number, and this program's"):
        start(6, decay(50))
    start(1, decay(50), folder="b")
    assert (
        "from here on learning_rate.config.decay_steps=60 (was 50)"
        in start(2, decay(60), folder="b")[0]
    )


@pytest.mark.slow
def test_a_finished_run_says_so_and_can_go_on(mirrored, tmp_path, caplog):
    caplog.set_level(logging.INFO, "tfscale")
    model, *_ = run(mirrored, tmp_path, epochs=2)
    again, history, seen, resume = run(mirrored, tmp_path, epochs=2)
    assert resume.is_complete(2) and not resume.is_complete(3)
    assert "this run is complete" in caplog.text
    assert seen == [] and history == {}
    assert_same_bits(model, again)
    longer, _, seen, _ = run(mirrored, tmp_path, epochs=3)
    assert [step for step, _ in seen] == list(range(11, 16))
    plain, *_ = run(mirrored, tmp_path / "plain", epochs=3)
    assert_same_bits(longer, plain)


@pytest.mark.slow
def test_keeps_the_newest_and_leaves_nothing_partial(mirrored, tmp_path):
    (tmp_path / ".partial-step-7-1-1").mkdir(parents=True)
    run(mirrored, tmp_path, save_every=2, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000018", "step-00000020"]
    names = {p.name for p in (tmp_path / "step-00000020").iterdir()}
    assert names == {"position.json", "variables.index", "variables.data-00000-of-00001"}


@pytest.mark.slow
def test_a_kill_in_mid_save_leaves_the_checkpoint_before(mirrored, tmp_path, monkeypatch):
    write = tf.train.Checkpoint.write

    def dies_halfway(self, prefix):
        result = write(self, prefix)
        if dies_halfway.countdown == 0:
            raise Killed
        dies_halfway.countdown -= 1
        return result

    dies_halfway.countdown = 1
    monkeypatch.setattr(tf.train.Checkpoint, "write", dies_halfway)
    with pytest.raises(Killed):
        run(mirrored, tmp_path)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000005"]
    assert CheckpointAndResume(tmp_path).initial_step == 5


# ---------------------------------------------------------------- what cannot be resumed


@pytest.mark.slow
def test_another_model_is_named_by_its_first_variable(mirrored, tmp_path):
    run(mirrored, tmp_path, epochs=1)
    wider = {"build_options": {"width": 7}}
    with pytest.raises(ValueError, match=r"variable 0 is a/kernel:0 float32\[4, 6\].*\[4, 7\]"):
        run(mirrored, tmp_path, **wider)
    with pytest.raises(ValueError, match=r"b/kernel:0.*this model's is c/kernel:0"):
        run(mirrored, tmp_path, build_options={"names": ("a", "c")})
    adam = {"optimizer": lambda: keras.optimizers.Adam()}
    with pytest.raises(ValueError, match=r"is current_learning_rate:0.*is learning_rate:0"):
        run(mirrored, tmp_path, build_options=adam)


@pytest.mark.slow
def test_another_state_is_named(mirrored, tmp_path):
    state = {"data": {"files": 4, "digest": "ab"}, "seed": 1}
    run(mirrored, tmp_path, epochs=1, save_every=3, state=state)
    other = {"data": {"files": 4, "digest": "cd"}, "seed": 1}
    with pytest.raises(ValueError, match=r"state.data.digest = 'ab', but this run has 'cd'"):
        run(mirrored, tmp_path, state=other)


@pytest.mark.slow
def test_damaged_files_are_named(mirrored, tmp_path):
    run(mirrored, tmp_path, epochs=3)
    data = tmp_path / "step-00000015" / "variables.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:40])
    with pytest.raises(ValueError, match=r"damaged at model/.*Delete .*00015 .*\(step 10\)"):
        run(mirrored, tmp_path, epochs=4)
    (tmp_path / "step-00000015" / "position.json").write_text('{"format": 1')
    with pytest.raises(ValueError, match=r"position.json cannot be read .*Delete"):
        CheckpointAndResume(tmp_path)


@pytest.mark.parametrize("change", [{"epoch": "x"}, {"step": None}, {"global_step": -5}])
def test_a_position_that_makes_no_sense_is_named(change, tmp_path):
    folder = tmp_path / "step-00000015"
    folder.mkdir()
    position = {"format": 1, "epoch": 3, "step": 0, "global_step": 15}
    (folder / "position.json").write_text(json.dumps(position | change))
    with pytest.raises(ValueError, match=rf"position.json .*{next(iter(change))} is .*Delete"):
        CheckpointAndResume(tmp_path)


def test_a_file_in_place_of_the_directory_is_found_at_once(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        CheckpointAndResume(tmp_path / "checkpoints")


def test_a_directory_that_cannot_be_written_to_is_found_before_the_first_step(tmp_path):
    (tmp_path / "file").touch()
    for folder in "/proc/none/run", tmp_path / "file" / "run":
        with pytest.raises(ValueError, match=f"directory {folder} cannot be written to"):
            run(tf.distribute.get_strategy(), folder, kill=KillAt(step=0))


@pytest.mark.slow
def test_another_epoch_length_in_mid_epoch(mirrored, tmp_path):
    killed(mirrored, tmp_path, kill=KillAt(step=4), save_every=3)
    model = build(mirrored)
    with pytest.raises(ValueError, match="an epoch of 5 steps, but an epoch of this run has 9"):
        model.fit(
            dataset(3), steps_per_epoch=9, callbacks=[CheckpointAndResume(tmp_path)], verbose=0
        )


@pytest.mark.parametrize(
    "options",
    [
        {"save_every": 0},
        {"save_every": 1.5},
        {"save_every": True},
        {"keep": 0},
        {"keep": 1.5},
        {"timeout_seconds": 0},
        {"timeout_seconds": float("nan")},
        {"state": {"a": float("nan")}},
        {"state": {"a": np.int64(3)}},
        {"callbacks": [3]},
    ],
)
def test_bad_arguments(options, tmp_path):
    with pytest.raises(ValueError, match=f"{next(iter(options))}[=:]"):
        CheckpointAndResume(tmp_path, **options)
    with pytest.raises(ValueError, match="gs://bucket/run"):
        CheckpointAndResume("gs://bucket/run")
    with pytest.raises(ValueError, match="directory is ''"):
        CheckpointAndResume("")


# ---------------------------------------------------------------- other callbacks


@pytest.mark.slow
def test_patience_and_best_value_survive(mirrored, tmp_path):
    def callbacks():
        return [
            keras.callbacks.EarlyStopping("loss", mode="max", patience=3),
            keras.callbacks.ReduceLROnPlateau("loss", mode="max", patience=2, factor=0.5),
        ]

    def go(directory, kill=None):
        extra = callbacks()
        sgd = {"optimizer": lambda: keras.optimizers.SGD(0.1)}
        model, *_ = run(
            mirrored, directory, kill, epochs=9, extra=extra, callbacks=extra, build_options=sgd
        )
        return model, extra

    plain, (stop, _) = go(tmp_path / "plain")
    assert stop.stopped_epoch == 3  # the loss falls, so "max" is never beaten
    with pytest.raises(Killed):
        go(tmp_path / "run", KillAt(step=12))
    model, (stopped, plateau) = go(tmp_path / "run")
    assert stopped.stopped_epoch == 3 and stopped.best == stop.best
    assert_same_bits(model, plain)
    position = json.loads((tmp_path / "run" / "step-00000020" / "position.json").read_text())
    assert position["stopped"] and position["epoch"] == 4
    resume = CheckpointAndResume(tmp_path / "run")
    assert resume.is_complete(9)


@pytest.mark.slow
def test_the_best_weights_survive(mirrored, tmp_path):
    class Score(keras.callbacks.Callback):
        """Epoch 2 is the best."""

        def on_epoch_end(self, epoch, logs=None):
            logs["score"] = [0.1, 0.5, 0.3, 0.2, 0.1][epoch]

    def go(directory, kill=None, epochs=5):
        stop = keras.callbacks.EarlyStopping(
            "score", mode="max", patience=2, restore_best_weights=True
        )
        extra = [Score(), stop]
        model, _, seen, _ = run(
            mirrored, directory, kill, epochs=epochs, extra=extra, callbacks=[stop]
        )
        return model, seen

    plain, _ = go(tmp_path / "plain")
    best, _ = go(tmp_path / "best", epochs=2)
    np.testing.assert_array_equal(plain.get_weights()[0], best.get_weights()[0])
    # Killed behind the best epoch; then started once more after its end.
    with pytest.raises(Killed):
        go(tmp_path / "run", KillAt(step=12))
    for steps in (10, 0):
        model, seen = go(tmp_path / "run")
        assert len(seen) == steps
        for a, b in zip(model.get_weights(), plain.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
    newest = max((tmp_path / "run").glob("step-*"))
    (newest / "best_weights.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match="best_weights.npz cannot be read.*Delete .*step-"):
        go(tmp_path / "run")


@pytest.mark.slow
def test_one_device_and_eager(tmp_path, caplog):
    strategy = tf.distribute.get_strategy()
    killed(strategy, tmp_path / "run", kill=KillAt(step=8), save_every=3)
    model, *_ = run(strategy, tmp_path / "run", save_every=3)
    plain, *_ = run(strategy, tmp_path / "plain", save_every=3)
    assert_same_bits(model, plain)


@pytest.mark.slow
def test_other_number_of_replicas_goes_on_with_a_line(mirrored, tmp_path, caplog):
    killed(mirrored, tmp_path, kill=KillAt(step=8), save_every=3)
    caplog.set_level(logging.INFO, "tfscale")
    model, *_ = run(tf.distribute.get_strategy(), tmp_path, save_every=3)
    assert "saved by 1 workers with 2 replicas, resumed by 1 with 1" in caplog.text
    assert model.optimizer.iterations.numpy() == 20


@pytest.mark.slow
def test_another_plan_of_the_all_reduce_is_said(mirrored, tmp_path, caplog, monkeypatch):
    from tfscale.distribute import all_reduce

    plans = [["kernel", [4, 6], "float32", 0]]
    plan = {"settings": {"bucket_bytes": 4}, "plans": [plans]}
    monkeypatch.setattr(all_reduce, "plan_of", lambda strategy: plan)
    run(mirrored, tmp_path, epochs=1)
    plan = {"settings": {"bucket_bytes": 4}, "plans": [[["other", [1], "float32", 0]], plans]}
    run(mirrored, tmp_path, epochs=2)
    assert "summed otherwise" not in caplog.text
    plan = {"settings": {"bucket_bytes": 8}, "plans": [plans]}
    run(mirrored, tmp_path, epochs=3)
    assert "settings.bucket_bytes was 4, is 8" in caplog.text


# ---------------------------------------------------------------- compression


class HoldsBack:
    """Stands in for an all-reduce whose compression holds something back of one model."""

    generation, wants_measurement = 0, False
    compressor = types.SimpleNamespace(name="int8", momentum=0.0)

    def __init__(self, exported=()):
        self.state, self.used_plans = CompressionState(), []
        self.state.load(list(exported))

    def state_of(self, model):
        return self.state

    def for_model(self, model):
        """A step takes over what belongs to its tensors."""
        own = [_tf_private.destination_of(v) for v in model.variables if v.name == "a/kernel:0"]
        self.state.begin_plan("plan", [("a/kernel", 24, own[0].key)])
        for slot in ("residual", "velocity"):
            self.state.vector(slot, "plan", 0, 0, ((0, 0, 24, 0),), 24, "/cpu:0")
        return contextlib.nullcontext()

    def use_plan(self, saved):
        self.used_plans.append(saved)


def held_back():
    values = np.random.RandomState(0).randn(24).astype("float32")
    return {"tensors": [["a/kernel", 24, 0]], "residual": [values], "velocity": [values * 2]}


def assert_held_back(operation):
    found, wanted = operation.state.export(), held_back()
    assert found["tensors"] == wanted["tensors"]
    for slot in ("residual", "velocity"):
        np.testing.assert_array_equal(found[slot], wanted[slot])


@pytest.mark.slow
def test_what_compression_holds_back_is_restored_to_the_bit(mirrored, tmp_path, caplog):
    operation = HoldsBack([held_back()])
    install(mirrored, operation)
    run(mirrored, tmp_path, epochs=1)
    names = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert "step-00000005/compression/worker-0000.npz" in names and len(names) == 4

    operation = HoldsBack()
    install(mirrored, operation)
    caplog.set_level(logging.INFO, "tfscale")
    run(mirrored, tmp_path, epochs=2)
    assert "taking over what compression (int8) held back on 1 workers" in caplog.text
    assert_held_back(operation)
    # The saved state counts, not what is left in the process of another run.
    operation.state.load([{"tensors": [["x", 1, 0]], "residual": [np.ones(1, "float32")]}])
    run(mirrored, tmp_path, epochs=3)
    assert_held_back(operation)
    assert "held back gradients of" not in caplog.text
    assert len(operation.used_plans) == 2

    caplog.clear()
    run(tf.distribute.get_strategy(), tmp_path, epochs=4)
    assert "what compression (int8) held back on 1 workers; this strategy has no" in caplog.text


@pytest.mark.slow
def test_what_the_first_step_does_not_take_over_is_said_and_dropped(mirrored, tmp_path, caplog):
    saved = held_back()
    saved["tensors"].append(["old/kernel", 3, 0])
    for slot in ("residual", "velocity"):
        saved[slot].append(np.ones(3, "float32"))
    operation = HoldsBack([saved])
    install(mirrored, operation)
    run(mirrored, tmp_path, epochs=1)
    assert "dropped" not in caplog.text  # nothing was restored
    operation = HoldsBack()
    install(mirrored, operation)
    run(mirrored, tmp_path, epochs=2)
    said = [r.getMessage() for r in caplog.records if "dropped" in r.getMessage()]
    assert len(said) == 2
    assert "gradients of 1 tensors that this model does not exchange (old/kernel ...)" in said[0]
    assert "velocities of 1 tensors, for which there is no momentum now (old/kernel" in said[1]
    assert_held_back(operation)


@pytest.mark.slow
def test_a_kill_while_the_residuals_are_written_leaves_the_checkpoint_before(
    mirrored, tmp_path, monkeypatch
):
    operation = HoldsBack([held_back()])
    install(mirrored, operation)
    run(mirrored, tmp_path, epochs=1)
    write = compression_files._write

    def dies_halfway(path, *args):
        write(path, *args)
        path.write_bytes(path.read_bytes()[:100])
        raise Killed

    monkeypatch.setattr(compression_files, "_write", dies_halfway)
    with pytest.raises(Killed):
        run(mirrored, tmp_path, epochs=2)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000005"]
    run(mirrored, tmp_path, epochs=2)
    assert_held_back(operation)

    def full(path, *args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compression_files, "_write", full)
    with pytest.raises(OSError, match=r"worker-0000.npz cannot be written: .*No space left"):
        run(mirrored, tmp_path, epochs=3)
    monkeypatch.undo()

    # A checkpoint that does not know of compression, as an older version wrote it.
    path = tmp_path / "step-00000010" / "position.json"
    fields = json.loads(path.read_text())
    del fields["compression"]
    path.write_text(json.dumps(fields))
    run(mirrored, tmp_path, epochs=2)
    assert operation.state.export() == {}
