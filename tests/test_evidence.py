"""Experiments with paired seeds: rows and differences, data, large_batch, batch_norm."""

import functools
import gzip
import json
import re
import struct
from types import SimpleNamespace

import numpy as np
import pytest

from experiments import fashion, paired
from experiments.batch_norm import report as batch_norm_report
from experiments.batch_norm import run as batch_norm
from experiments.large_batch import report, search, settings
from experiments.large_batch import run as large_batch
from experiments.results_file import Results


def rows(**accuracies):
    return [
        {"arm": arm, "seed": seed, "accuracy": accuracy}
        for arm, values in accuracies.items()
        for seed, accuracy in enumerate(values)
    ]


# ------------------------------------------------------------------ rows and differences


def test_rows_are_kept_with_their_settings(tmp_path):
    path = tmp_path / "new" / "rows.json"
    results = Results(path, {"epochs": 3, "widths": (4, 8)})
    assert results.rows == [] and not results.has(arm="dense")
    results.add({"arm": "dense", "seed": 0, "accuracy": 0.9})
    again = Results(path, {"epochs": 3, "widths": (4, 8)})
    row = {"arm": "dense", "seed": 0, "accuracy": 0.9, "epochs": 3, "widths": [4, 8]}
    assert again.rows == [row]
    assert again.has(arm="dense", seed=0) and not again.has(arm="dense", seed=1)
    assert [p.name for p in path.parent.iterdir()] == ["rows.json"]
    with pytest.raises(ValueError, match=r"row 0 has epochs=3, this run 4\. Give the same"):
        Results(path, {"epochs": 4, "widths": (4, 8)})


def test_a_number_that_json_lacks_is_named_and_not_written(tmp_path):
    results = Results(tmp_path / "rows.json")
    with pytest.raises(ValueError, match="loss=nan cannot be written"):
        results.add({"arm": "dense", "seed": 0, "loss": float("nan")})
    assert results.rows == [] and not (tmp_path / "rows.json").exists()


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"accuracy": None}, "row 1 lacks its accuracy"),
        ({"accuracy": "0.9"}, "row 1 has accuracy='0.9', which is not of its kind"),
        ({"accuracy": True}, "row 1 has accuracy=True"),
        ({"accuracy": float("nan")}, "not JSON .NaN is no number"),
        ({"optimizer": "adam"}, "row 1 has optimizer='adam'"),
        ({"curve": []}, "row 1 has curve=.., which"),
        ({"curve": [{"seconds": 1.0}]}, "row 1 has curve=.*seconds"),
        ({"speed": "fast"}, "row 1 has speed='fast'"),
        ({"seed": 0}, "row 1 has arm=dense, seed=0 once more; remove it"),
    ],
)
def test_rows_of_another_form_are_refused(tmp_path, changed, message):
    form = {
        "accuracy": float,
        "optimizer": {"sgd"},
        "curve": [{"seconds": float, "accuracy": int}],
        "speed": (float, None),
    }
    row = {
        "arm": "dense", "accuracy": 1, "optimizer": "sgd", "speed": None,
        "curve": [{"seconds": 1.5, "accuracy": 1}],
    }  # fmt: skip
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([row | {"seed": 0}, row | {"seed": 1}]))
    assert len(Results(path, form=form).rows) == 2
    path.write_text(json.dumps([row | {"seed": 0}, row | {"seed": 1} | changed]))
    with pytest.raises(ValueError, match=message):
        Results(path, form=form)


def test_a_run_is_kept_once(tmp_path):
    results = Results(tmp_path / "rows.json", key=("arm", "trial"))
    results.add({"arm": "dense", "trial": 0})
    with pytest.raises(ValueError, match="has a run of arm=dense, trial=0 already"):
        results.add({"arm": "dense", "trial": 0})
    assert len(results.rows) == 1


def test_interval_is_students():
    stats = pytest.importorskip("scipy.stats")
    for n in (2, 3, 7, 31):
        values = np.random.default_rng(n).normal(size=n).tolist()
        mean, low, high = paired.interval(values)
        right = stats.t.interval(0.95, n - 1, np.mean(values), stats.sem(values))
        np.testing.assert_allclose((mean, low, high), (np.mean(values), *right), rtol=1e-3)
    assert paired.interval([0.5]) == (0.5, None, None)


def test_differences_are_paired_by_seed():
    found = rows(a=[0.9, 0.7, 0.5], b=[0.8, 0.6])
    mean, low, high, n = paired.differences(found, "a", "b")
    assert (mean, n) == (pytest.approx(0.1), 2)  # of seeds 0 and 1, whose difference is the same
    assert (low, high) == (pytest.approx(0.1), pytest.approx(0.1))
    with pytest.raises(ValueError, match="a and c have no seed in common"):
        paired.differences(found, "a", "c")
    table = paired.compare([*found, {"arm": "d", "seed": 9, "accuracy": 1.0}], "b")
    assert [row["arm"] for row in table] == ["a", "b"]
    assert table[0]["mean"] == pytest.approx(0.7) and table[1]["low"] is None
    with pytest.raises(ValueError, match="no runs of c, with which"):
        paired.compare(found, "c")


def test_progress_tells_what_is_left(capsys):
    seconds = iter([0.0, 60.0, 180.0])
    progress = paired.Progress(2, clock=lambda: next(seconds))
    progress.done("first")
    progress.done("second")
    assert capsys.readouterr().out.splitlines() == [
        "[1/2] first  (60 s; about 60 s left)",
        "[2/2] second  (2 min; all done)",
    ]


# ------------------------------------------------------------------ data


def test_fashion_mnist_of_a_folder(tmp_path):
    pixels = np.arange(4 * 28 * 28, dtype=np.uint64).astype(np.uint8).reshape(4, 28, 28)
    for prefix, count in (("train", 3), ("t10k", 1)):
        for kind, magic, body in (
            ("images-idx3", (2051, count, 28, 28), pixels[:count]),
            ("labels-idx1", (2049, count), np.arange(count, dtype=np.uint8)),
        ):
            content = struct.pack(f">{len(magic)}i", *magic) + body.tobytes()
            (tmp_path / f"{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(content))
    (images, labels), (test, _) = fashion.load(data_dir=tmp_path, examples=2)
    np.testing.assert_array_equal(images[..., 0], pixels[:2])
    assert labels.tolist() == [0, 1] and len(test) == 1
    with pytest.raises(FileNotFoundError, match="--data_dir=.*nowhere is no folder"):
        fashion.load(data_dir=tmp_path / "nowhere")


def test_halved_pictures_are_means():
    images = np.array([[1, 2, 9, 9], [3, 4, 9, 9]], np.uint8)[None, ..., None]
    assert fashion.halved(images)[0, ..., 0].tolist() == [[2, 9]]  # 2.5, to the even


def test_order_is_the_same_whatever_is_taken_of_it():
    order = fashion.order(5, seed=3, count=12)
    assert sorted(order[:5]) == sorted(order[5:10]) == list(range(5))
    np.testing.assert_array_equal(fashion.order(5, seed=3, count=7), order[:7])
    assert fashion.order(5, seed=4, count=12).tolist() != order.tolist()


# ------------------------------------------------------------------ large_batch


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


# ------------------------------------------------------------------ batch_norm


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 2, 4])
def test_chunks_are_what_groups_of_replicas_compute(group):
    from experiments.batch_norm.chunked import ChunkedBatchNormalization
    from tests.references_batch_norm import mirrored
    from tfscale import keras
    from tfscale.layers import GroupedSyncBatchNormalization
    from tfscale.layers.moving_statistics import merge_moving_statistics

    rng = np.random.default_rng(0)
    images = rng.normal(size=(24, 6, 6, 2)).astype(np.float32)
    images += np.arange(24, dtype=np.float32)[:, None, None, None] % 8  # chunks differ
    labels = rng.integers(0, 3, 24)

    def trained(norm):
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((6, 6, 2)),
                keras.layers.Conv2D(4, 3, use_bias=False),
                norm(),
                keras.layers.ReLU(),
                keras.layers.Conv2D(4, 3, use_bias=False),
                norm(),
                keras.layers.Flatten(),
                keras.layers.Dense(3),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.05, momentum=0.9),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        model.fit(images, labels, batch_size=8, epochs=2, shuffle=False, verbose=0)
        return model

    strategy = mirrored(4)
    with strategy.scope():
        real = trained(
            functools.partial(GroupedSyncBatchNormalization, group, momentum=0.9, epsilon=1e-5)
        )
    merge_moving_statistics(real)
    emulated = trained(functools.partial(ChunkedBatchNormalization, 4 // group))
    for ours, theirs in zip(emulated.get_weights(), real.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=3e-6)
    np.testing.assert_allclose(
        emulated.predict(images, verbose=0), real.predict(images, verbose=0), atol=2e-5
    )


def test_batch_norm_resumes_and_shows_its_curve(monkeypatch, tmp_path, capsys):
    from experiments.batch_norm import training

    calls = []

    def train(per_replica, group, seed, data, args):
        calls.append((per_replica, group, seed))
        return {"accuracy": 0.8 + 0.01 * group + 0.001 * seed, "training_loss": 1.0, "steps": 3}

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(training, "load", lambda *args: [(range(8), None), None])
    flags = ["--quick", "--rounds=0", f"--results={tmp_path}", "--replicas=4"]
    assert batch_norm.main([*flags, "--seeds=1"]) == 0
    assert batch_norm.main(flags) == 0
    assert calls == [(2, g, s) for s in (0, 1) for g in (1, 2, 4)]
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:5] == ["2", "1", "2", "0.8105", "-0.0300"] for line in lines)
    assert batch_norm.main([*flags, "--epochs=5"]) == 1
    assert any(line.startswith("--quick only shows") for line in lines)
    capsys.readouterr()
    assert batch_norm.main([*flags, "--per_replica=3"]) == 1
    assert "--per_replica=3 --replicas=4: a step needs more than the 8" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--groups=3", "--groups: 3 does not divide --replicas=4"),
        ("--groups=4,4", "argument --groups: '4,4' has 4 twice"),
        ("--groups=2,x", "argument --groups: '2,x': expected numbers with commas"),
        ("--replicas=0", "argument --replicas: '0' is no"),
        ("--per_replica=2,0", "argument --per_replica: '2,0': expected .* '0' is no"),
        ("--learning_rate=nan", "argument --learning_rate: 'nan' is no"),
        ("--epochs=0", "argument --epochs: '0' is no"),
        ("--seeds=0", "argument --seeds: '0' is no"),
        ("--rounds=-1", "argument --rounds: '-1' is no whole number from 0 on"),
        ("--cost_steps=3", "argument --cost_steps: '3' is no whole number from 4 on"),
    ],
)
def test_batch_norm_flags_are_checked(capsys, flag, message):
    with pytest.raises(SystemExit):
        batch_norm.parse(["--replicas=4", flag])
    assert re.search(message, capsys.readouterr().err)


def test_cost_is_compared_with_groups_of_one():
    found = [
        {"arm": f"groups of {g}", "group": g, "round": r, "milliseconds": 10.0 * g + r}
        for r in range(3)
        for g in (1, 2)
    ]
    lines = batch_norm_report.cost_table(found).splitlines()
    assert lines[2].split() == ["groups", "of", "1", "11.0", "-", "3"]
    assert lines[3].split() == ["groups", "of", "2", "21.0", "+10.0", "[+10.0,", "+10.0]", "3"]


@pytest.mark.slow
def test_cost_is_measured_in_a_process_of_its_own(tmp_path):
    flags = ["--quick", f"--results={tmp_path}", "--rounds=1", "--cost_steps=6"]
    args = batch_norm.parse([*flags, "--workers=1", "--devices_per_worker=1"])
    cost = Results(tmp_path / "cost.json", key=("arm", "round"))
    assert batch_norm.measure_cost(args, cost) == 0
    assert [row["group"] for row in cost.rows] == [1]
    assert all(row["milliseconds"] > 0 for row in cost.rows)
