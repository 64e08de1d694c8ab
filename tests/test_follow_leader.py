"""`FollowLeader` with the other workers played by the test; real ones are in multiprocess/."""

import logging

import numpy as np
import pytest

from tfscale._keras import keras
from tfscale.callbacks import follow_leader
from tfscale.callbacks.follow_leader import FollowLeader

EPOCHS, STEPS = 6, 3


class StopAt(keras.callbacks.Callback):
    def __init__(self, epoch, step=None):
        super().__init__()
        self.epoch, self.step = epoch, step

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.now, batch) == (self.epoch, self.step):
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if self.step is None and epoch == self.epoch:
            self.model.stop_training = True


class Halve(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.8 / 2**epoch


@pytest.fixture
def workers(monkeypatch):
    """Makes this process worker `me` of 2; `other(what, mine)` is the other one's word."""

    def play(me, other):
        def gather_values(strategy, what, value, timeout_seconds):
            # As JSON gives them back.
            mine, word = list(value) if isinstance(value, tuple) else value, other(what, value)
            return [mine, word] if me == 0 else [word, mine]

        monkeypatch.setattr(follow_leader, "gather_values", gather_values)
        private = follow_leader._tf_private
        monkeypatch.setattr(private, "worker_names", lambda strategy: ["worker 0", "worker 1"])
        monkeypatch.setattr(private, "worker_index", lambda strategy: me)

    return play


def fit(*callbacks, rate=0.1):
    """Returns (epochs, steps, rates) that a run got through."""
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), "mse")
    rates = []
    log = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: rates.append(rate_of(model)),
    )
    x = np.zeros([STEPS, 2], np.float32)
    history = model.fit(
        x, x[:, :1], 1, epochs=EPOCHS, verbose=0, callbacks=[*callbacks, log, FollowLeader()]
    )
    return len(history.epoch), len(rates), rates


def rate_of(model):
    return float(model.optimizer.learning_rate)


def goes_on(what, mine):
    """The other worker neither stops nor changes its learning rate of 0.1."""
    if what.startswith("a stop"):
        raise TimeoutError
    return [0.1] if what.startswith("the learning rate") else [False, 0.1]


def test_one_worker_stops_as_it_likes():
    assert fit(StopAt(2))[:2] == (3, 3 * STEPS)
    assert fit(StopAt(2, step=0))[:2] == (3, 2 * STEPS + 1)


def test_the_others_go_on_with_worker_0(workers, caplog):
    workers(1, goes_on)
    assert fit(StopAt(2))[:2] == (EPOCHS, EPOCHS * STEPS)
    assert "worker 1 would stop after epoch 3, and worker 0 would not" in caplog.text
    assert "tfscale.callbacks.Evaluation" in caplog.text


def test_the_others_stop_with_worker_0(workers, caplog):
    def stops(what, mine):
        return [0.1] if what.startswith("the learning rate") else [True, 0.1]

    workers(1, stops)
    assert fit()[:2] == (1, STEPS)
    assert "worker 1 would go on after epoch 1, and worker 0 would not" in caplog.text


def test_worker_0_stops_and_names_who_would_not(workers, caplog):
    workers(0, goes_on)
    assert fit(StopAt(2))[:2] == (3, 3 * STEPS)
    assert "worker 1 would go on after epoch 3, and worker 0 would not" in caplog.text


@pytest.mark.parametrize("me, epochs", [(0, 2), (1, EPOCHS)])
def test_a_stop_within_an_epoch_that_is_not_all_workers_is_put_off(workers, caplog, me, epochs):
    workers(me, goes_on)
    assert fit(StopAt(1, step=1))[:2] == (epochs, epochs * STEPS)
    assert f"worker {me} asks for a stop after step 2 of epoch 2 and the others" in caplog.text


def test_a_stop_within_an_epoch_that_all_ask_for_happens_at_once(workers, caplog):
    workers(1, lambda what, mine: list(mine) if isinstance(mine, tuple) else mine)
    assert fit(StopAt(1, step=1))[:2] == (2, STEPS + 2)
    assert not caplog.records


def test_learning_rates_are_those_of_worker_0(workers, caplog):
    workers(1, goes_on)
    assert fit(Halve())[2] == pytest.approx([0.1] * EPOCHS * STEPS)
    assert "worker 1 has the learning rate 0.4 in epoch 2, and worker 0 has 0.1" in caplog.text
    caplog.clear()
    workers(0, goes_on)
    assert fit(Halve())[2] == pytest.approx(np.repeat(0.8 / 2 ** np.arange(EPOCHS), STEPS))
    assert "worker 1 has the learning rate 0.1 in epoch 2, and worker 0 has 0.4" in caplog.text


def test_workers_that_agree_are_not_bothered(workers, caplog):
    workers(1, lambda what, mine: list(mine))
    with caplog.at_level(logging.INFO):
        assert fit(Halve(), StopAt(4))[0] == 5
    assert not [record for record in caplog.records if record.name == "tfscale"]


def test_a_schedule_that_differs_is_an_error(workers):
    workers(1, goes_on)
    schedule = keras.optimizers.schedules.PolynomialDecay(0.2, 10)
    with pytest.raises(ValueError, match="is 0.2 on worker 1 and 0.1 on worker 0, .* a schedule"):
        fit(rate=schedule)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), True, "5"])
def test_timeouts_that_are_none(seconds):
    with pytest.raises(ValueError, match="timeout_seconds must be a number of seconds above 0"):
        FollowLeader(timeout_seconds=seconds)
