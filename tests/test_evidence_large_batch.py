"""The experiment large_batch: flags, search, runs that resume, the answer."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.large_batch import report, search, settings
from experiments.large_batch import run as large_batch


def test_rates_between_the_tuned_batches():
    tuned = {256: 0.1, 16384: 6.4}  # the linear rule
    for batch in (64, 256, 1024, 4096, 16384):
        assert search.interpolated(tuned, batch) == pytest.approx(0.1 * batch / 256)


def test_search_begins_with_a_grid_and_goes_on_as_it_would_have():
    pytest.importorskip("optuna")
    chosen = settings.Settings(trials=8, low=0.01, high=100.0)
    np.testing.assert_allclose(
        search.grid(chosen), [10**-1.5, 10**-0.5, 10**0.5, 10**1.5], rtol=1e-6
    )

    def accuracy(rate):
        return 1 - (np.log10(rate) - 0.2) ** 2

    tried = []
    for _ in range(chosen.trials):
        rate = search.next_rate(tried, chosen)
        assert rate == search.next_rate(list(tried), chosen)
        tried.append((rate, accuracy(rate)))
    assert len({rate for rate, _ in tried}) == chosen.trials
    assert 0.01 <= min(tried)[0] and max(tried)[0] <= 100
    assert abs(np.log10(search.best(tried)) - 0.2) < 0.3


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--batches=256,300", "--batches: 300 is not a multiple of --micro_batch=256"),
        ("--batches=256,x", "expected numbers"),
        ("--tuned_batches=512", "two different ones"),
        ("--low=3 --high=2", "0 < low < high"),
        ("--batches=256,512,256", "argument --batches: '256,512,256' has 256 twice"),
        ("--micro_batch=0", "argument --micro_batch: '0' is no whole number from 1 on"),
        ("--examples=0", "argument --examples: '0' is no"),
        ("--trials=-1", "argument --trials: '-1' is no"),
        ("--epochs=0", "argument --epochs: '0' is no"),
        ("--seeds=0", "argument --seeds: '0' is no"),
        ("--warmup=nan", "argument --warmup: 'nan' is no number from 0 to 1"),
        ("--warmup=3", "argument --warmup: '3' is no"),
        ("--momentum=1", "argument --momentum: '1' is no number from 0 to below 1"),
        ("--high=inf", "argument --high: 'inf' is no finite number above 0"),
        ("--weight_decay=-1", "argument --weight_decay: '-1' is no finite number from 0 on"),
    ],
)
def test_large_batch_flags_are_checked(capsys, flag, message):
    with pytest.raises(SystemExit):
        settings.parse(flag.split(), "")
    assert message in capsys.readouterr().err


def test_as_many_examples_whatever_the_batch():
    from experiments.large_batch import training

    chosen = settings.Settings(epochs=10)
    steps = {b: training.steps_of(chosen, b, 50_000) for b in (256, 4096, 16384)}
    assert steps == {256: 1953, 4096: 122, 16384: 30}
    training.check_batches(chosen, [512], 1639)
    with pytest.raises(ValueError, match=r"batch of 16384 exceeds .* \(10 epochs of 1638\)"):
        training.check_batches(chosen, [512], 1638)
    with pytest.raises(ValueError, match="--examples=5: 6 are the fewest"):
        training.splits(settings.Settings("digits", examples=5))


def fake_large_batch(monkeypatch, calls, stop_after=None):
    from experiments.large_batch import training

    def train(optimizer, rate, batch, seed, split, chosen):
        if stop_after is not None and len(calls) >= stop_after:
            raise OSError("the machine went down")
        calls.append((optimizer, rate, batch, seed))
        lost = {"sgd": 0.03, "lars": 0.005}[optimizer] * (batch > 32)
        accuracy = 0.9 - lost - 0.01 * abs(np.log10(rate)) + 0.001 * (seed % 10)
        return {"accuracy": accuracy, "training_accuracy": 0.99, "steps": 7, "diverged": False}

    monkeypatch.setattr(training, "train", train)
    final = SimpleNamespace(images=range(1000))
    monkeypatch.setattr(training, "splits", lambda *args: ("search", final))


def test_large_batch_resumes_and_answers(monkeypatch, tmp_path, capsys):
    pytest.importorskip("optuna")
    flags = ["--quick", f"--results={tmp_path}"]
    whole, first, second = [], [], []
    fake_large_batch(monkeypatch, whole)
    assert large_batch.main([*flags[:1], f"--results={tmp_path / 'whole'}"]) == 0
    fake_large_batch(monkeypatch, first, stop_after=14)
    assert large_batch.main(flags) == 1
    fake_large_batch(monkeypatch, second)
    assert large_batch.main(flags) == 0
    assert first + second == whole and len(whole) == 12 + 8
    out = capsys.readouterr().out
    assert "[1/6]" in out and "yes, at batch 128" in out
    assert "--quick only shows that the experiment runs" in out
    assert large_batch.main([*flags, "--report"]) == 0
    assert large_batch.main([*flags, "--epochs=9"]) == 1
    assert "epochs=6, this run 9" in capsys.readouterr().err
    # A search that was made anew and came to another rate.
    path = tmp_path / "search.json"
    trials = [
        row | {"learning_rate": row["learning_rate"] * 2} for row in json.loads(path.read_text())
    ]
    path.write_text(json.dumps(trials))
    assert large_batch.main([*flags, "--seeds=3"]) == 1
    assert "but the search beside it gives" in capsys.readouterr().err


def test_verdict_says_what_does_not_hold():
    found = []
    for optimizer in settings.OPTIMIZERS:
        for batch, lost in ((256, 0.0), (512, 0.004), (1024, 0.05)):
            arm = settings.arm(optimizer, batch)
            found += [
                {
                    "arm": arm, "optimizer": optimizer, "batch": batch, "seed": seed, "steps": 3,
                    "learning_rate": 1.0, "accuracy": 0.9 - lost, "training_accuracy": 0.9,
                }
                for seed in range(2)
            ]  # fmt: skip
    assert report.verdict(found).endswith(
        "at none of these batches; within 1 point sgd holds to 512, lars holds to 512"
    )
    assert len(report.table(found).splitlines()) == 2 + 3


@pytest.mark.slow
def test_sgd_is_keras_sgd_and_training_is_repeatable():
    import tensorflow as tf

    from experiments.large_batch import training
    from tfscale import keras

    chosen = settings.Settings(warmup=0.5, weight_decay=0.1)
    ours = training.optimizer_of("sgd", 0.3, 4, chosen)
    theirs = keras.optimizers.SGD(1.0, momentum=chosen.momentum)
    rates = [0.15, 0.225, 0.3, 0.3 * 0.25]
    kernels = [tf.Variable(np.linspace(-1, 1, 6).reshape(2, 3), name="kernel") for _ in "ab"]
    for step, rate in enumerate(rates):
        theirs.learning_rate = rate
        gradient = tf.constant(np.random.default_rng(step).normal(size=(2, 3)))
        ours.apply_gradients([(gradient, kernels[0])])
        decay = chosen.weight_decay * kernels[1]
        theirs.apply_gradients([(gradient + decay, kernels[1])])
        np.testing.assert_allclose(kernels[0].numpy(), kernels[1].numpy(), rtol=1e-5)

    chosen = settings.Settings("digits", examples=192, epochs=1, micro_batch=16)
    split, _ = training.splits(chosen)
    assert (len(split.images), len(split.held_images)) == (160, 32)
    runs = [training.train("lars", 1.0, 32, 0, split, chosen) for _ in range(2)]
    assert runs[0] == runs[1] and runs[0]["steps"] == 5 and not runs[0]["diverged"]
