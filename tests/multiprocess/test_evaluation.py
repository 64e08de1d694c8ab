"""Two real workers evaluate exactly, decide alike, and say who is missing or has failed."""

import pickle

import numpy as np
import pytest

from tests.multiprocess import evaluation_runs
from tfscale.testing import run_in_processes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluation")
    with pytest.raises(RuntimeError) as caught:  # worker 1 fails at the end
        run_in_processes(evaluation_runs.everything, 2, 1, (str(folder),), timeout=150)
    paths = [folder / f"found-{worker}.pickle" for worker in range(2)]
    if not all(path.exists() for path in paths):
        raise caught.value
    return [pickle.loads(path.read_bytes()) for path in paths], str(caught.value)


def test_shards_of_unequal_size_count_by_their_examples(cluster):
    for worker in cluster[0]:
        found = worker["unequal shards"]
        assert found["top_1"] == 91 / 110 and found["examples"] == 110
    first, second = cluster[0]
    assert first["unequal shards"] == second["unequal shards"]


def test_any_remainder_equals_one_pass_over_all(cluster):
    (first, second), _ = cluster
    gamma, beta, *rest = (w.astype(np.float64) for w in first["weights"])
    kernel, bias, mean, variance = rest if len(rest[0].shape) == 2 else (*rest[2:], *rest[:2])
    for count, found in zip(evaluation_runs.REMAINDERS, first["remainders"], strict=True):
        x, y = evaluation_runs.examples(count)
        normal = (x - mean) / np.sqrt(variance + 1e-3) * gamma + beta
        powers = np.exp(normal @ kernel + bias)
        probabilities = powers / powers.sum(1, keepdims=True)
        rank = np.argmax(np.argsort(-probabilities, axis=1) == y[:, None], axis=1)
        expected = {
            "loss": -np.log(probabilities[np.arange(count), y]).mean(),
            "top_1": (rank < 1).mean(),
            "top_5": (rank < 5).mean(),
            "examples": count,
        }
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert first["remainders"] == second["remainders"]


def test_what_workers_cannot_evaluate_together(cluster):
    for worker in cluster[0]:
        kind, text = worker["unsharded"]
        assert kind == "ValueError" and "every worker would count all of its examples" in text
        kind, text = worker["differently"]
        assert kind == "ValueError" and "do not agree on what to evaluate: steps is 1 on" in text


def test_keras_callbacks_decide_alike_by_the_exact_number(cluster):
    first, second = (worker["keras callbacks"] for worker in cluster[0])
    assert first == second
    assert len(first["history"]["val_accuracy"]) < 12
    assert first["rate"] < 3
    best, loaded = first["best accuracy"]
    assert best == loaded == max(first["history"]["val_accuracy"])
    assert first["best"] != first["weights"]


def test_decisions_of_a_single_worker_do_not_part_the_others(cluster):
    first, second = (worker["decisions"] for worker in cluster[0])
    for name, run in first.items():
        for what in ("rates", "steps", "weights"):
            assert run[what] == second[name][what], f"{name}: {what}"
    # The first number below 0.3 of each worker's own.
    epochs = lots()
    assert epochs[0] != epochs[1]
    assert len(first["random stop"]["rates"]) == epochs[0]
    assert any("worker 1" in line and "epoch" in line for line in first["random stop"]["lines"])
    assert len(set(first["noisy plateau"]["rates"])) > 1
    lines = "\n".join(first["noisy plateau"]["lines"])
    assert "worker 1 (127.0.0.1:" in lines and "has the learning rate" in lines


def lots():
    draws = [np.random.RandomState(1 + worker).uniform(size=6) for worker in range(2)]
    return [int(np.argmax(draw < 0.3)) + 1 if (draw < 0.3).any() else 6 for draw in draws]


def test_a_stop_within_an_epoch(cluster):
    first, second = (worker["decisions"] for worker in cluster[0])
    assert first["stop of one"]["steps"] == 6 * 4
    assert not [line for line in first["stop of one"]["lines"] if "asks for a stop" in line]
    lines = "\n".join(second["stop of one"]["lines"])
    assert "asks for a stop after step 2 of epoch 1 and the others do not: it is put off" in lines
    assert first["stop of all"]["steps"] == 2
    assert not first["stop of all"]["lines"]


def test_a_worker_that_does_not_come_is_named(cluster):
    kind, text = cluster[0][0]["alone"]
    assert kind == "TimeoutError"
    assert "no word on what to evaluate from worker 1 (127.0.0.1:" in text


def test_a_worker_whose_callback_raises_is_named_by_the_others(cluster):
    (first, _), logs = cluster
    assert "the disk of this worker is full" in logs
    kind, text = first["failed"]
    assert kind == "RuntimeError" and "worker 1 (127.0.0.1:" in text, text
