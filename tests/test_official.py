"""tf-models-official and tensorflow-addons under our strategy, beside ours, and compared."""

import json

import numpy as np
import pytest
import tensorflow as tf

from experiments.official import report, run, settings
from experiments.official.arms import ARMS, Arm
from tests import references_lars
from tfscale import keras
from tfscale.distribute import create_strategy
from tfscale.testing import run_in_processes

pytest.importorskip("official.vision.modeling", reason="tf-models-official is not installed")
pytest.importorskip("official.modeling.optimization.lars")

from experiments.official import inputs, loops, networks, optimizers, training  # noqa: E402
from tests import official_runs  # noqa: E402
from tfscale.interop import import_addons  # noqa: E402

SETTINGS = official_runs.SETTINGS


@pytest.fixture(autouse=True)
def one_block(monkeypatch):
    official_runs.one_block(monkeypatch.setattr, monkeypatch.setitem)


def close(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


# ------------------------------------------------------------------ networks


def test_networks_are_one_architecture():
    keras.utils.set_random_seed(0)
    start = networks.ours(SETTINGS)
    last = start.get_layer("stage1_block1_bn3")
    last.gamma.assign(tf.fill(last.gamma.shape, 0.7))
    theirs, normalized = networks.theirs(SETTINGS), networks.theirs(SETTINGS, normalized=True)
    ours_normalized = networks.ours(SETTINGS, normalized=True)
    ours_normalized.set_weights(start.get_weights())
    for model in (theirs, normalized):
        networks.start_theirs_as_ours(model, start)
    images, _ = official_runs.examples()
    right = start(images).numpy()
    assert np.std(right) > 1e-3
    np.testing.assert_allclose(theirs(images), right, atol=1e-6)
    images, _ = inputs.normalize(images, None)
    for model in (normalized, ours_normalized):
        np.testing.assert_allclose(model(images), right, atol=1e-5)
    other = networks.theirs(settings.Settings(dataset="digits", width=0.25))
    with pytest.raises(ValueError, match="shape"):
        networks.start_theirs_as_ours(other, start)


# ------------------------------------------------------------------ LARS, ours against theirs

WEIGHTS = {
    "dense/kernel": np.random.default_rng(0).normal(size=(6, 5)),
    "dense/bias": np.zeros(5),
    "norm/gamma": np.ones(4),
    "zero/kernel": np.zeros((3, 2)),
}
GRADIENTS = [
    {name: np.random.default_rng([1, n]).normal(size=w.shape) for name, w in WEIGHTS.items()}
    for n in range(4)
]


def trajectory(optimizer):
    """The variables after each of four steps, {name: [steps, ...]}."""
    variables = [tf.Variable(w, dtype=tf.float32, name=name) for name, w in WEIGHTS.items()]
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    found = {name: [] for name in WEIGHTS}
    for gradients in GRADIENTS:
        pairs = [(tf.constant(gradients[v.name[:-2]], tf.float32), v) for v in variables]
        optimizer.apply_gradients(pairs)
        for v in variables:
            found[v.name[:-2]].append(v.numpy())
    return found


def lars_settings(**kwargs):
    return settings.Settings(**{"trust_coefficient": 0.1, "weight_decay": 0.0, **kwargs})


def rising():
    return keras.optimizers.schedules.PolynomialDecay(0.1, 4, 1.0)


@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_is_the_same_without_decay_on_what_is_adapted(nesterov):
    plain = lars_settings()
    close_all(
        trajectory(optimizers.our_lars(rising(), plain, nesterov=nesterov)),
        trajectory(optimizers.their_lars(rising(), plain, nesterov=nesterov)),
    )
    # Decay alone, without adaptation, is the same too.
    decayed = lars_settings(weight_decay=0.3)
    ours = optimizers.our_lars(
        rising(),
        decayed,
        nesterov=nesterov,
        exclude_from_layer_adaptation=[".*"],
        exclude_from_weight_decay=[],
    )
    theirs = optimizers.their_lars(
        rising(), decayed, lists=False, nesterov=nesterov, exclude_from_layer_adaptation=[".*"]
    )
    close_all(trajectory(ours), trajectory(theirs))


def close_all(ours, theirs):
    for name in WEIGHTS:
        close(ours[name], theirs[name])


def test_lars_differs_by_the_norm_of_a_sum_where_decay_meets_adaptation():
    decayed = lars_settings(weight_decay=0.3)
    ours = trajectory(optimizers.our_lars(0.5, decayed))
    theirs = trajectory(optimizers.their_lars(0.5, decayed))
    w, g = WEIGHTS["dense/kernel"], GRADIENTS[0]["dense/kernel"]
    norm = np.linalg.norm
    factor = (norm(g) + 0.3 * norm(w)) / norm(g + 0.3 * w)
    assert factor > 1.1
    step_of = lambda run: run["dense/kernel"][0] - w  # noqa: E731
    np.testing.assert_allclose(step_of(theirs), factor * step_of(ours), rtol=1e-4, atol=1e-7)
    after, _ = references_lars.lars_step(w, 0.0, g, 0.5, weight_decay=0.3, trust_coefficient=0.1)
    np.testing.assert_allclose(ours["dense/kernel"][0], after, rtol=1e-6, atol=1e-7)
    for name in ("dense/bias", "norm/gamma", "zero/kernel"):
        close(ours[name][:1], theirs[name][:1])


def test_their_other_momentum_is_our_scaled_one_only_without_adaptation():
    plain = lars_settings()
    ours = optimizers.our_lars(
        rising(), plain, momentum_form="scaled", exclude_from_layer_adaptation=[".*"]
    )
    theirs = optimizers.their_lars(
        rising(), plain, classic_momentum=False, exclude_from_layer_adaptation=[".*"]
    )
    close_all(trajectory(ours), trajectory(theirs))
    ours = trajectory(optimizers.our_lars(rising(), plain, momentum_form="scaled"))
    theirs = trajectory(optimizers.their_lars(rising(), plain, classic_momentum=False))
    close([ours["dense/kernel"][0]], [theirs["dense/kernel"][0]])  # no momentum yet
    assert np.abs(ours["dense/kernel"][1] - theirs["dense/kernel"][1]).max() > 1e-3


def test_their_lists_fall_back_on_each_other_and_are_lost_in_the_config():
    theirs = optimizers.their_lars(0.1, lars_settings(weight_decay=0.1))
    assert theirs.exclude_from_layer_adaptation == optimizers.NORM_AND_BIAS
    theirs = optimizers.their_lars(
        0.1, lars_settings(), exclude_from_layer_adaptation=[]
    )  # "none", read as "not given"
    assert theirs.exclude_from_layer_adaptation == optimizers.NORM_AND_BIAS
    again = type(theirs).from_config(theirs.get_config())
    assert again.exclude_from_weight_decay is None
    ours = optimizers.our_lars(0.1, lars_settings(), exclude_from_layer_adaptation=[])
    again = type(ours).from_config(ours.get_config())
    assert again.get_config() == ours.get_config()
    assert again.get_config()["exclude_from_layer_adaptation"] == []


@pytest.mark.parametrize("optimizer", ["lars", "lamb"])
def test_expressions_that_end_in_0_make_the_replicas_drift_apart(optimizer):
    strategy = create_strategy("mirrored", devices_per_worker=2)
    x, y = np.ones((8, 3), "float32"), np.arange(8, dtype="float32")[:, None]

    def biases(expression):
        with strategy.scope():
            model = keras.Sequential(
                [keras.layers.Dense(1, bias_initializer=keras.initializers.Constant(2.0))]
            )
            model.build((None, 3))
            excluded = {"exclude_from_layer_adaptation": [expression]}
            if optimizer == "lars":
                built = optimizers.their_lars(0.1, lars_settings(), **excluded)
            else:
                built = import_addons().optimizers.LAMB(0.1, **excluded)
            model.compile(built, "mse")
        model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        return [v.numpy() for v in strategy.experimental_local_results(model.weights[1])]

    first, second = biases("bias")
    assert first == second
    first, second = biases("bias:0")
    assert abs(first - second) > 1e-3


# ------------------------------------------------------------------ replicas and loops


@pytest.mark.slow
def test_their_network_and_lars_on_two_replicas_are_those_on_one():
    one, two = create_strategy("one_device"), create_strategy("mirrored", devices_per_worker=2)
    right = official_runs.trained(one, "official")
    close(right, official_runs.trained(two, "official"))
    # With batch norm as their configurations have it, local to a replica, they are not.
    local = official_runs.trained(two, "official", synchronized=False)
    assert max(np.abs(a - b).max() for a, b in zip(right, local, strict=True)) > 1e-3


@pytest.mark.slow
def test_their_loop_with_two_workers_of_ours_is_fit_on_one_device():
    right = official_runs.trained(create_strategy("one_device"), "tfscale")
    for weights in run_in_processes(official_runs.two_workers, workers=2, timeout=240):
        close(right, weights)


def test_lamb_on_two_replicas_is_that_on_one():
    x, y = np.random.default_rng(0).normal(size=(2, 8, 3)).astype("float32")

    def trained(strategy):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            layers = [keras.layers.Dense(4, activation="tanh", input_shape=(3,))]
            model = keras.Sequential([*layers, keras.layers.Dense(3)])
            model.compile(optimizers.lamb(0.01, SETTINGS), "mse")
        model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
        return model.get_weights()

    one = trained(create_strategy("one_device"))
    close(one, trained(create_strategy("mirrored", devices_per_worker=2)))


# ------------------------------------------------------------------ addons


def test_addons_augment_is_a_function_of_the_key():
    augment = inputs.addons_augment()
    images, _ = official_runs.examples()
    image = tf.constant(images[0])
    pairs = tf.data.Dataset.range(6).map(lambda key: (augment(image, key), key))
    for (pixels, key), again in zip(pairs, pairs.map(lambda p, _: p), strict=True):
        np.testing.assert_array_equal(pixels, again)
        np.testing.assert_array_equal(pixels, augment(image, key))
        assert pixels.dtype == tf.uint8
        assert 16 <= (pixels.numpy() == 0).all(-1).sum() < 400  # a hole, and corners
    different = {pixels.numpy().tobytes() for pixels, _ in pairs}
    assert len(different) == 6
    assert import_addons().__name__ == "tensorflow_addons"


# ------------------------------------------------------------------ the command


def test_runs_resume_and_are_compared(monkeypatch, tmp_path, capsys):
    calls = []

    def train(arm, seed, settings, strategy):
        calls.append((arm, seed))
        last = 0.9 + 0.01 * seed - (0.02 if arm == ARMS["official"] else 0.0)
        return {
            "accuracy": last,
            "accuracies": [0.5, last],
            "steps_done": [22, 44],
            "images_per_second": 1000.0 * (2 if arm == ARMS["official"] else 1),
        }

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(run, "ensure_records", lambda *args: None)
    flags = ["--quick", "--arms=tfscale,official", f"--json={tmp_path}/rows.json"]
    assert run.main([*flags, "--seeds=1"]) == 0
    assert run.main([*flags, "--seeds=2"]) == 0
    assert calls == [(ARMS[arm], seed) for seed in (0, 1) for arm in ("tfscale", "official")]
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["official", "0.5000", "0.8850", "2"] in lines
    assert ["official", "0.8850", "-0.0200", "[-0.0200,", "-0.0200]", "2"] in lines
    assert ["official", "2000", "2.00", "[2.00,", "2.00]", "2"] in lines
    assert (tmp_path / "rows.png").exists()
    assert run.main([*flags, "--report"]) == 0
    assert "--quick only shows that the experiment runs" in capsys.readouterr().out
    assert run.main([*flags, "--batch=256"]) == 1
    assert "batch=128, this run 256" in capsys.readouterr().err
    rows = json.loads((tmp_path / "rows.json").read_text())
    for changed, message in (
        ({"arm": "theirs"}, "rows.json, row 1 has arm='theirs'"),
        ({"accuracies": []}, "row 1 has accuracies="),
    ):
        (tmp_path / "rows.json").write_text(json.dumps([rows[0], rows[1] | changed]))
        assert run.main([*flags, "--report"]) == 1
        assert message in capsys.readouterr().err
    del rows[0]["images_per_second"]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    assert run.main([*flags, "--report"]) == 1
    assert "row 0 lacks its images_per_second" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--arms=theirs"], "--arms: theirs not among tfscale, their-model"),
        (["--arms=official,tfscale,official"], "has official twice"),
        (["--seeds=0"], "argument --seeds: '0' is no"),
        (["--warmup=nan"], "argument --warmup: 'nan' is no"),
        (["--steps=10", "--evaluations=3"], "--evaluations=3 does not divide --steps=10"),
    ],
)
def test_flags_are_checked(flags, message, capsys):
    with pytest.raises(SystemExit):
        run.main(flags)
    assert message in capsys.readouterr().err


def test_what_cannot_run_says_so_in_a_line(monkeypatch, tmp_path, capsys):
    assert run.main(["--batch=511"]) == 1
    assert "--batch=511 does not divide among 1 workers x 2 devices" in capsys.readouterr().err
    assert run.main(["--report", f"--json={tmp_path}/none.json"]) == 1
    assert "none.json is not there; run without --report first" in capsys.readouterr().err
    cluster = {"cluster": {"worker": ["localhost:1", "localhost:2"]}}
    task = {"task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps({**cluster, **task}))
    assert run.main([]) == 1
    assert "--arms: official has TensorFlow's strategy" in capsys.readouterr().err


def test_arms_name_parts_that_exist():
    for arm in ARMS.values():
        assert arm.loop in loops.LOOPS
        assert arm.start == "tfscale" or arm.model == "official"
    assert ARMS["official"] == Arm(*["official"] * 6)
    assert report.curves([]) == []
