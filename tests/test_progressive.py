"""Runs in phases in one process: equal to one plain loop, resumed in the right place."""

import dataclasses
import io
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf

from tests.multiprocess import progressive_runs as runs
from tests.multiprocess.checkpoint_runs import Watch
from tests.references_batch_norm import mirrored
from tfscale import callbacks, progressive
from tfscale._keras import keras
from tfscale.accumulation import accumulate_gradients
from tfscale.callbacks.saved_phases import check_phases
from tfscale.distribute.strategy import create_strategy
from tfscale.progressive import Phase, PhaseData
from tfscale.progressive.checks import check_labels, check_sizes
from tfscale.progressive.phases import numbered

ONE = tf.distribute.get_strategy()
STEPS = [4, 4, 8]


def assert_same(model, other, **tolerance):
    for copies, (expected, *_) in zip(runs.state_of(model), runs.state_of(other), strict=True):
        for copy in copies:
            np.testing.assert_allclose(copy, expected, **tolerance)


def small_model():
    keras.utils.set_random_seed(0)
    inputs = keras.Input([None, None, 3])
    x = keras.layers.GlobalAveragePooling2D()(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2, "softmax")(x))
    rate = keras.optimizers.schedules.PolynomialDecay(0.01, 20)
    model.compile(keras.optimizers.SGD(rate, use_ema=True), "sparse_categorical_crossentropy")
    return model


# ---------------------------------------------------------------------- the same as a plain loop


@pytest.fixture(scope="module")
def plain():
    """All batches of all phases in one loop on one device; Keras's end of `fit` after it."""
    model, rates, losses = runs.build(ONE), [], []
    for phase in numbered(runs.PHASES):
        x, y = runs.batches(phase)
        for _ in range(phase.epochs):
            model.reset_metrics()
            for _ in range(runs.RECORDS // phase.global_batch_size):
                number = len(rates) - progressive.schedule_steps(runs.PHASES, STEPS)[phase.number]
                logs = model.train_on_batch(
                    x[number], y[number], reset_metrics=False, return_dict=True
                )
                rates.append(float(tf.convert_to_tensor(model.optimizer.learning_rate)))
            losses.append(logs["loss"])
    model.optimizer.finalize_variable_values(model.trainable_variables)
    return model, rates, losses


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_phases_equal_one_loop(plain, replicas, caplog):
    strategy = ONE if replicas == 1 else create_strategy("mirrored", devices_per_worker=2)
    model, history, watch = runs.run(strategy)
    expected, rates, losses = plain
    # Weights, batch statistics, momentum, iterations; and the averages, which are not put in the
    # place of the weights before the run ends.
    assert_same(model, expected, rtol=1e-6, atol=1e-6)
    assert model.optimizer.use_ema
    assert watch.seen == list(zip(range(1, 21), rates, strict=True))
    np.testing.assert_allclose(history.history["loss"], losses, rtol=1e-6)
    assert history.epoch == [0, 1, 2, 3]
    assert history.params["epochs"] == 4 and model.history is history
    assert [r.getMessage() for r in caplog.records if r.getMessage().startswith("phase")] == [
        "phase 1 of 3: 6 pixels, batch 8, 1 epoch of 4 steps, uncompressed",
        "phase 2 of 3: 8 pixels, batch 8, 2 epochs of 4 steps, uncompressed",
        "phase 3 of 3: 10 pixels, batch 4, 1 epoch of 8 steps, uncompressed",
    ]


@pytest.mark.slow
def test_one_phase_is_a_plain_fit(tmp_path):
    phase, data = Phase(2, 6, 8), runs.data_of(ONE, validate=True)
    model, history, _ = runs.run(ONE, [phase], data=data, model=small_model())
    parts = data(phase, 0)
    other = small_model()
    expected = other.fit(
        parts.dataset, epochs=2, steps_per_epoch=4, verbose=0,
        validation_data=parts.validation_data, validation_steps=2,
    )  # fmt: skip
    assert_same(model, other, rtol=0, atol=0)
    assert history.history == expected.history


# ---------------------------------------------------------------------- resuming


class Killed(Exception):
    pass


class KillAt(keras.callbacks.Callback):
    """Stands in for kill -9 (which tests/multiprocess does for real)."""

    def __init__(self, step=None, epoch_end=None):
        super().__init__()
        self.step, self.epoch_end = step, epoch_end

    def on_train_batch_begin(self, batch, logs=None):
        if self.model.optimizer.iterations.numpy() == self.step:
            raise Killed

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch_end:
            raise Killed


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("plain")
    return *runs.run(ONE, directory=directory), directory


@pytest.mark.slow
@pytest.mark.parametrize(
    "kill, save_every, begun",
    [
        (KillAt(step=7), 2, [(1, 2), (2, 0)]),  # in mid-epoch of phase 2
        (KillAt(epoch_end=2), 2, [(1, 6), (2, 0)]),  # after phase 2, before its save
        ("data", 4, [(2, 0)]),  # between two phases
    ],
)
def test_resumed_equals_undisturbed_to_the_bit(undisturbed, tmp_path, kill, save_every, begun):
    plain, history, watch, _ = undisturbed
    make = runs.data_of(ONE)

    def dies(phase, step):
        if phase.number == 2 and kill == "data":
            raise Killed
        return make(phase, step)

    extra = [] if kill == "data" else [kill]
    with pytest.raises(Killed):
        runs.run(ONE, directory=tmp_path, extra=extra, save_every=save_every, data=dies)
    seen = []
    model, then, watched = runs.run(
        ONE, directory=tmp_path, save_every=save_every, data=runs.data_of(ONE, seen)
    )
    assert seen == begun
    assert_same(model, plain, rtol=0, atol=0)
    number, step = begun[0]
    first = progressive.schedule_steps(runs.PHASES, STEPS)[number] + step
    assert watched.seen == watch.seen[first:]
    assert watched.logs == watch.logs[first:]
    for name, values in then.history.items():
        assert values == history.history[name][-len(values) :], name
    assert then.epoch == history.epoch[-len(then.epoch) :]


class StopAt(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.at, self.ends = epoch, 0

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch == self.at

    def on_train_end(self, logs=None):
        self.ends += 1


@pytest.mark.slow
def test_a_callback_ends_all_phases_and_the_run_stays_ended(tmp_path):
    def go(stop):
        return runs.run(ONE, directory=tmp_path, extra=[stop], model=small_model())

    stop = StopAt(1)
    model, history, watch = go(stop)
    assert history.epoch == [0, 1] and len(watch.seen) == 8 and stop.ends == 1
    # As at the end of any `fit`, the averages are in the place of the weights.
    averages = [v for v in model.optimizer.variables if "average" in v.name]
    for weight, average in zip(model.trainable_variables, averages, strict=True):
        np.testing.assert_array_equal(weight, average)
    again, history, watch = go(StopAt(None))
    assert history.epoch == [] and watch.seen == []
    assert_same(again, model, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
def test_patience_goes_on_from_phase_to_phase_and_past_a_kill(tmp_path, capsys, named):
    def go(kill, folder=tmp_path):
        stop = keras.callbacks.EarlyStopping("loss", mode="max", patience=2, min_delta=99.0)
        # The run's own callbacks are saved whether they are named here or not.
        resume = callbacks.CheckpointAndResume(folder, callbacks=[stop] if named else ())
        history = progressive.fit(
            small_model(), runs.PHASES, runs.data_of(ONE), callbacks=[stop, kill], resume=resume,
            verbose=2,
        )  # fmt: skip
        return stop, history

    with pytest.raises(Killed):
        go(KillAt(step=8))
    # The first epoch is the best, and the only one of phase 1; two more, of phase 2, are waited
    # for, one before the kill and one after it.
    stop, history = go(KillAt())
    assert stop.stopped_epoch == 2 and history.epoch == [2]
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Epoch")]
    assert shown == ["Epoch 1/4", "Epoch 2/4", "Epoch 3/4", "Epoch 3/4"]
    undisturbed, history = go(KillAt(), tmp_path / "other")
    assert undisturbed.stopped_epoch == 2 and history.epoch == [0, 1, 2]


# ---------------------------------------------------------------------- callbacks


@pytest.mark.slow
def test_callbacks_see_one_run(tmp_path):
    speeds, out = [], io.StringIO()

    def throughput(phase):
        speeds.append(callbacks.Throughput(phase.global_batch_size, skip_steps=1))
        return speeds[-1]

    def board(phase):
        # TensorFlow names files by the second.
        return callbacks.TensorBoard(tmp_path / str(phase.number), phase.global_batch_size, 1)

    watch = Watch()
    history = progressive.fit(
        small_model(), runs.PHASES, runs.data_of(ONE, validate=True), verbose=0,
        callbacks=[
            throughput, board, lambda phase: callbacks.Progress(phase.global_batch_size, 0, out),
            watch,
        ],
    )  # fmt: skip
    assert [step for step, _ in watch.seen] == list(range(1, 21))
    assert history.epoch == [0, 1, 2, 3] and len(history.history["val_loss"]) == 4
    assert [len(speed.epochs) for speed in speeds] == [1, 2, 1]
    for speed, batch in zip(speeds, (8, 8, 4), strict=True):
        if len(speed.epochs) == 1:
            rate = speed.images_per_second * speed.step_seconds
            assert rate == pytest.approx(batch)
    lines = [line for line in out.getvalue().splitlines() if line.startswith("epoch")]
    places = [line.split("  loss")[0] for line in lines]
    assert places[0] == "epoch 1/4  step 2/4" and places[-1] == "epoch 4/4  step 8/8"
    assert "epoch 3/4  step 4/4" in places
    # Before the last phase nobody knows how long the others will take.
    assert {line.split()[1] for line in lines if line.endswith(" left")} == {"4/4"}
    assert out.getvalue().count("traced in") == 3
    points = {}
    for path in tmp_path.rglob("events.*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                points.setdefault(value.tag, {})[event.step] = value.simple_value
    assert points["epoch"] == {4: 1, 8: 2, 12: 3, 20: 4}
    assert sorted(points["learning_rate"]) == list(range(1, 21))


# ---------------------------------------------------------------------- what is refused


class NothingTrains(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        raise AssertionError("it trains")


@pytest.fixture(scope="module")
def untrained():
    return runs.build(ONE)


@pytest.mark.parametrize(
    "phases, options, message",
    [
        ([], {}, "phases is empty"),
        (runs.PHASES, {"steps_per_epoch": 3}, r"steps_per_epoch differs .*PhaseData\(steps_per"),
        (runs.PHASES, {"x": 3}, r"PhaseData\(dataset="),
        (runs.PHASES, {"initial_epoch": 3}, "initial_epoch has no meaning"),
        ([Phase(1, 6, 8), Phase(1, 8, 8, "int7")], {}, "phase 2: unknown compression 'int7'"),
        (
            runs.COMPRESSED,
            {"callbacks": [callbacks.CompressionSchedule({0: None})]},
            "use one of the two",
        ),
        (
            runs.PHASES,
            {"callbacks": [keras.callbacks.BackupAndRestore("/nowhere")]},
            "BackupAndRestore among the callbacks does not know of phases",
        ),
    ],
)
def test_mistakes_are_named_before_anything_is_trained(untrained, phases, options, message):
    options = {"callbacks": [NothingTrains()]} | options
    with pytest.raises(ValueError, match=message):
        progressive.fit(untrained, phases, None, **options)


def test_a_batch_too_small_for_the_micro_batches_is_refused_before_it_trains():
    strategy = create_strategy("mirrored", devices_per_worker=2)
    with strategy.scope():
        model = accumulate_gradients(small_model(), 3)
    message = "phase 2: a batch of 5 on 2 replicas cannot be run in 3 .* needs 6 examples"
    with pytest.raises(ValueError, match=message):
        progressive.fit(model, [Phase(1, 6, 6), Phase(1, 6, 5)], None)


def short_data(batches, known):
    """Phase 1 has as many batches as said, whether their number is known before or not."""

    def data(phase, step):
        one = np.zeros([8, phase.image_size, phase.image_size, 3], np.float32), np.zeros([8], int)
        dataset = tf.data.Dataset.from_tensors(one).repeat(99 if phase.number else batches)
        if not known:
            dataset = dataset.filter(lambda x, y: True)
        return PhaseData(dataset, 5)

    return data


@pytest.mark.parametrize(
    "batches, known, done", [(6, False, [0]), (10, False, [0, 1]), (6, True, [])]
)
def test_data_that_ends_before_its_phase_ends_the_run(tmp_path, batches, known, done):
    model, epochs = small_model(), []
    log = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epochs.append(epoch))
    with pytest.raises(ValueError, match=f"phase 1: its data ends after {batches} of the 15 steps"):
        progressive.fit(
            model, [Phase(3, 8, 8), Phase(1, 12, 8)], short_data(batches, known), verbose=0,
            callbacks=[log],
        )  # fmt: skip
    assert epochs == done


def test_a_run_that_a_callback_stops_may_have_short_data():
    stop = StopAt(0)
    history = progressive.fit(
        small_model(), [Phase(3, 8, 8)], short_data(6, False), verbose=0, callbacks=[stop]
    )
    assert history.epoch == [0] and stop.ends == 1
    # Keras starts one of exactly an epoch's batches again.
    phases = [Phase(2, 8, 8)]
    assert progressive.fit(small_model(), phases, short_data(5, True), verbose=0).epoch == [0, 1]


@pytest.mark.parametrize(
    "phases, options, message",
    [
        (Phase(1, 6, 8), {}, r"phases is a list of .*Phase objects, got Phase\("),
        (runs.PHASES, {"callbacks": NothingTrains()}, r"is a list, got .* write callbacks=\[...\]"),
        (runs.PHASES, {"data": None}, r"data is a function of \(phase, step\) .* got None"),
        ([(1, 6, 8)], {}, r"Phase objects, got \(1, 6, 8\)"),
        (runs.PHASES, {"callbacks": [3]}, "functions of a phase, got 3"),
        (runs.PHASES, {"callbacks": [lambda phase: None]}, "for phase 1, got None"),
        (
            runs.PHASES,
            {"callbacks": [callbacks.StopOnNonFinite]},
            r"callbacks has the class StopOnNonFinite: write StopOnNonFinite\(\), or",
        ),
        (runs.PHASES, {"resume": NothingTrains()}, "resume must be a CheckpointAndResume"),
    ],
)
def test_things_of_another_kind_are_named(untrained, phases, options, message):
    with pytest.raises(TypeError, match=message):
        progressive.fit(untrained, phases, **({"data": runs.data_of(ONE)} | options))


def test_data_of_another_kind_is_named(untrained):
    with pytest.raises(TypeError, match=r"must return a .*PhaseData, got 3 for phase 1"):
        progressive.fit(untrained, runs.PHASES, lambda phase, step: 3)


def test_a_model_that_is_not_compiled_is_named():
    inputs = keras.Input([None, None, 3])
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(inputs))
    with pytest.raises(ValueError, match="the model is not compiled"):
        progressive.fit(model, runs.PHASES, runs.data_of(ONE))


def test_a_model_of_one_size_is_refused_with_the_sizes():
    message = "takes pictures of 8 x 8 pixels, but the phases have 6, 8, 10"
    with pytest.raises(ValueError, match=message):
        progressive.fit(runs.build(ONE, side=8), runs.PHASES, None)


@pytest.mark.parametrize("replicas", [1, 2])
def test_data_of_another_size_than_the_phase_is_refused(untrained, replicas):
    strategy = ONE if replicas == 1 else create_strategy("mirrored", devices_per_worker=2)
    make = runs.data_of(strategy)

    def forgets(phase, step):
        return make(dataclasses.replace(phase, image_size=6), step)

    message = "phase 1 is of 8 pixels, but its data has pictures of 6 x 6"
    with pytest.raises(ValueError, match=message):
        progressive.fit(untrained, [Phase(1, 8, 8)], forgets, callbacks=[NothingTrains()])


@pytest.mark.parametrize(
    "replicas, plain, split", [(1, True, ""), (2, True, ""), (2, False, r" \(2 on each of 2 .*\)")]
)
def test_data_of_another_batch_than_the_phase_is_refused(untrained, replicas, plain, split):
    strategy = mirrored(replicas)

    def forgets(phase, step):
        size = 4 if plain else 2
        data = tf.data.Dataset.from_tensors((tf.zeros([size, 8, 8, 3]), tf.zeros([size])))
        distribute = strategy.distribute_datasets_from_function
        return PhaseData(data if plain else distribute(lambda context: data), 4)

    message = f"phase 1 has a global batch of 8, but its data has batches of 4{split}: data"
    with pytest.raises(ValueError, match=message):
        progressive.fit(untrained, [Phase(1, 8, 8)], forgets, callbacks=[NothingTrains()])


@pytest.mark.parametrize("known", [8, 6])
def test_a_batch_that_is_not_known_or_that_replicas_split_is_taken(known):
    """8 on 2 replicas, and 6 on 4 of them, which get 2, 2, 2 and 0."""
    strategy = mirrored(2 if known == 8 else 4)
    data = tf.data.Dataset.from_tensors((tf.zeros([known, 8, 8, 3]), tf.zeros([known])))
    for dataset in (data, strategy.experimental_distribute_dataset(data)):
        check_sizes(PhaseData(dataset, 1), Phase(1, 8, known))
    check_sizes(PhaseData(data.unbatch().batch(8), 1), Phase(1, 8, 8))


def test_data_without_labels_is_refused_where_keras_needs_them(untrained):
    data = tf.data.Dataset.from_tensors(tf.zeros([8, 8, 8, 3]))
    with pytest.raises(ValueError, match="phase 1: the model has a loss, but its data has no labe"):
        progressive.fit(untrained, [Phase(1, 8, 8)], lambda phase, step: PhaseData(data, 1))

    class LabelsItself(keras.Model):
        def train_step(self, data):
            return {}

    model = LabelsItself()
    model.compile("sgd", "mse")
    check_labels(model, PhaseData(data, 1), Phase(1, 8, 8))


@pytest.mark.slow
def test_what_changed_since_the_run_was_saved_is_named(undisturbed, tmp_path):
    *_, saved = undisturbed
    directory = shutil.copytree(saved, tmp_path / "copy")
    first, second, third = runs.PHASES
    with pytest.raises(ValueError, match=r"phase 1.image_size = 6, but this run has 5"):
        runs.run(ONE, [dataclasses.replace(first, image_size=5), second, third], directory)
    with pytest.raises(ValueError, match="saved by a run with phases, but this run has none"):
        runs.build(ONE).fit(
            runs.data_of(ONE)(first, 0).dataset, steps_per_epoch=4, verbose=0,
            callbacks=[callbacks.CheckpointAndResume(directory)],
        )  # fmt: skip
    longer = [first, second, dataclasses.replace(third, epochs=2)]

    def shorter(phase, step):
        return dataclasses.replace(runs.data_of(ONE)(phase, step), steps_per_epoch=3)

    message = "phase 3 was saved at its epoch 2, step 0, with 8 steps an epoch, but its data has 3"
    with pytest.raises(ValueError, match=message):
        runs.run(ONE, longer, directory, data=shorter)
    begun = []
    _, history, watch = runs.run(ONE, longer, directory, data=runs.data_of(ONE, begun))
    assert begun == [(2, 8)] and history.epoch == [4]
    assert [step for step, _ in watch.seen] == list(range(21, 29))


@pytest.mark.parametrize(
    "epoch, step, change, difference",
    [
        (3, 1, {0: {"epochs": 4}}, "phase 1.epochs = 2, but this run has 4"),
        (2, 0, {0: {"epochs": 4}}, None),  # at its end it may go on
        (2, 0, {0: {"epochs": 1}}, "phase 1.epochs = 2, but this run has 1"),
        (3, 1, {1: {"epochs": 1}}, "phase 2.epochs = 3, but this run has 1"),
        (3, 1, {1: {"epochs": 2}}, None),
        (3, 1, {1: {"options": {"a": 2}}}, "phase 2.options.a = 1, but this run has 2"),
        (2, 0, {1: {"image_size": 1}}, None),  # not begun
        (2, 1, {1: {"image_size": 1}}, "phase 2.image_size = 8, but this run has 1"),
    ],
)
def test_phases_that_have_begun_stay(epoch, step, change, difference):
    saved = [Phase(2, 6, 8).description(), Phase(3, 8, 8, options={"a": 1}).description()]
    present = [phase | change.get(i, {}) for i, phase in enumerate(saved)]
    position = types.SimpleNamespace(epoch=epoch, step=step, phases=saved)
    check_phases(position, saved, "here")
    if difference is None:
        check_phases(position, present, "here")
    else:
        with pytest.raises(ValueError, match=difference):
            check_phases(position, present, "here")


def test_a_phase_that_has_begun_cannot_be_left_out():
    saved = [Phase(2, 6, 8).description(), Phase(3, 8, 8).description()]
    position = types.SimpleNamespace(epoch=2, step=1, phases=saved)
    with pytest.raises(ValueError, match="phase 2.epochs = 3, but this run has absent"):
        check_phases(position, saved[:1], "here")


def test_one_worker_says_that_compression_has_no_effect(untrained, caplog):
    with pytest.raises(AssertionError, match="it trains"):
        progressive.fit(
            untrained, runs.COMPRESSED, runs.data_of(ONE), callbacks=[NothingTrains()], verbose=0
        )
    assert "batch 8, 1 epoch of 4 steps, compression topk" in caplog.text
    assert "compression has no effect: one worker has no network to cross" in caplog.text


# ---------------------------------------------------------------------- phases and their steps


@pytest.mark.parametrize(
    "change", [{"epochs": 0}, {"image_size": 1.5}, {"global_batch_size": True}]
)
def test_a_phase_checks_its_numbers(change):
    with pytest.raises(ValueError, match=f"Phase: {next(iter(change))}="):
        dataclasses.replace(Phase(1, 6, 8), **change)
    for options in ({"augment": len}, {"area": float("nan")}):
        with pytest.raises(ValueError, match="options=.*cannot be saved"):
            Phase(1, 6, 8, options=options)
    with pytest.raises(ValueError, match="options=None: a dict"):
        Phase(1, 6, 8, options=None)
    with pytest.raises(ValueError, match="steps_per_epoch=0"):
        PhaseData(None, 0)
    with pytest.raises(ValueError, match="validation_steps=3 has no effect"):
        PhaseData(None, 4, validation_steps=3)
    with pytest.raises(ValueError, match="validation_steps=-1"):
        PhaseData(None, 4, validation_data=[], validation_steps=-1)
    with pytest.raises(TypeError, match="dataset is a tuple; expected a tf.data.Dataset"):
        PhaseData((np.zeros([8, 6, 6, 3]), np.zeros([8])), 1)


def test_each_phase_has_a_seed_of_its_own():
    phases = numbered([Phase(1, 6, 8)] * 4)
    seeds = [phase.seed(seed) for phase in phases for seed in range(3)]
    assert len(set(seeds)) == 12 and seeds[:3] == [0, 1, 2]
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert Phase(1, 32, 8, number=1).seed(7) == 3553817977


def test_knots_in_epochs_as_steps():
    phases = [Phase(2, 96, 512), Phase(3, 128, 512), Phase(1, 128, 256)]
    steps = [10, 11, 20]
    assert progressive.schedule_steps(phases, steps) == [0, 20, 53, 73]
    ends = [0, 10, 20, 31, 42, 53, 73]  # of each epoch
    for epoch in np.linspace(0, 6, 49):
        expected = round(np.interp(epoch, range(7), ends))
        assert progressive.steps_at(phases, steps, epoch) == expected
    with pytest.raises(ValueError, match="epoch=6.5 is outside of the run, which has 6 epochs"):
        progressive.steps_at(phases, steps, 6.5)
    with pytest.raises(ValueError, match=r"3 phases, but steps_per_epoch=\[10\] has 1"):
        progressive.steps_at(phases, [10], 1)
    with pytest.raises(ValueError, match="is a global batch larger than the data"):
        progressive.schedule_steps(phases, [10, 11, 0])
    with pytest.raises(ValueError, match=r"steps_per_epoch=\[10, 3.5, 6\]: 3.5 is no whole number"):
        progressive.schedule_steps(phases, [10, 3.5, 6])
    with pytest.raises(ValueError, match="epoch='1' is no number of epochs"):
        progressive.steps_at(phases, steps, "1")


def test_the_plan_of_a_run():
    rate = keras.optimizers.schedules.PolynomialDecay(4.0, 40)
    phases = [
        Phase(2, 96, 512, "topk", {"min_crop_area": 0.35}),
        Phase(1, 128, 256, options={"min_crop_area": 0.25, "rand_augment": (2, 9)}),
    ]
    rows = progressive.plan(phases, [10, 20], rate, momentum=0.9)
    assert rows[1] == {
        "phase": 2, "first_epoch": 3, "last_epoch": 3, "epochs": 1, "image_size": 128,
        "global_batch_size": 256, "options": {"min_crop_area": 0.25, "rand_augment": [2, 9]},
        "steps_per_epoch": 20, "steps": 20, "first_step": 20, "compression": "none",
        "first_learning_rate": pytest.approx(float(rate(20))),
        "last_learning_rate": pytest.approx(float(rate(39))),
        "first_momentum": 0.9, "last_momentum": 0.9,
    }  # fmt: skip
    lines = progressive.plan_table(rows).splitlines()
    assert lines[0].split("  ")[-1].strip() == "options" and len(lines) == 4
    assert "2.05 -> 0.1001" in lines[2] or "2 -> 0.1" in lines[2]
    assert lines[-1] == "3 epochs, 40 steps"
    table = progressive.plan_table(progressive.plan(phases[:1], [10]))
    assert "learning rate" not in table and "topk" in table
    with pytest.raises(ValueError, match="the plan has no rows"):
        progressive.plan_table([])


def test_the_example_of_the_plan():
    text = progressive.plan.__doc__.partition(">>> ")[2].partition("\n\n")[0]
    code, *expected = [line.strip() for line in text.strip().splitlines()]
    rows = progressive.plan([Phase(2, 96, 512), Phase(1, 128, 256)], [10, 20], 0.5)
    assert [line.strip() for line in progressive.plan_table(rows).splitlines()] == expected
