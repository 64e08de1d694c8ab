"""The ImageNet recipes: what they say they will do, and what becomes of them on few replicas."""

import json
import math
import re

import numpy as np
import pytest
import tensorflow as tf

from experiments import inputs, memory, optimization, plan, scaling, train, trial
from experiments.imagenet.config import MLPERF_POINTS, RECIPES
from experiments.run_config import RunConfig
from tfscale import keras
from tfscale.config import help_text
from tfscale.topology import Topology

IMAGES = 1_281_167
PARAMETERS = 25_557_032


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv("TFSCALE_TRACEBACK", raising=False)
    yield
    keras.mixed_precision.set_global_policy("float32")


@pytest.fixture(scope="module")
def models():
    """Models by what they depend on: to build ResNet-50 takes seconds."""
    built, build = {}, optimization.build_model

    def cached(run, num_classes, image_size):
        key = (run.model, run.width, run.blur_pool, image_size, num_classes)
        if key not in built:
            built[key] = build(run, num_classes, image_size)
        return built[key]

    return cached


def meant_for(run):
    return Topology(run.assumed_workers, run.assumed_devices_per_worker)


# ---------------------------------------------------------------- the plan
@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_has_a_plan(name, models, monkeypatch, capsys):
    monkeypatch.setattr(optimization, "build_model", models)
    assert train.main([f"--config={name}", "--dry_run"]) == 0
    said = capsys.readouterr().out
    run = RECIPES[name]()
    assert "in place of" not in said  # it is planned for the source's hardware
    assert f"{PARAMETERS:,} parameters in 161 tensors, {run.precision}" in said
    batches = run.phase_batch_sizes or (run.global_batch_size,)
    epochs = run.phase_epochs or (run.epochs,)
    steps = sum(e * (IMAGES // b) for e, b in zip(epochs, batches, strict=False))
    steps += sum(e * (IMAGES // batches[-1]) for e in epochs[len(batches) :])
    assert f"{run.epochs} epochs, {steps} steps" in said
    assert "memory of a device" in said and "time of all steps" in said
    each = run.global_batch_size // meant_for(run).num_replicas
    span = re.search(r"\n1 .*?(\d+) \((\d+) x (\d+)\)", said)
    assert int(span[1]) == run.norm_span and int(span[3]) == each
    first, last = re.findall(r"([\d.e-]+) -> ([\d.e-]+)", said)[0]
    assert float(first) == pytest.approx(0.0, abs=1e-3)


@pytest.mark.slow
def test_numbers_of_a_plan_against_their_formulas(models, monkeypatch):
    monkeypatch.setattr(optimization, "build_model", models)
    run, line = scaling.for_replicas(RECIPES["light_128"](), Topology(16, 8))
    assert line is None and run.norm_group_size == 1
    text = "\n".join(plan.lines(run, Topology(16, 8)))
    rows = [line.split("  ") for line in text.splitlines() if re.match(r"[1-4]  .*\d x ", line)]
    rows = [[cell.strip() for cell in row if cell] for row in rows]
    # Float32 between 16 workers: 2 (N - 1) / N of each gradient.
    assert [row[5] for row in rows[1:]] == [f"{4 * PARAMETERS * 2 * 15 / 16 / 1e6:.1f}"] * 3
    assert float(rows[0][5]) < float(rows[1][5]) / 4
    # 39 steps an epoch; a replica takes 256 / 4400 s for one, and what of the exchange is exposed.
    assert [row[3] for row in rows] == ["58.2 ms", "85.0 ms", "206.5 ms", "180.3 ms"]
    seconds = float(re.search(r"time of all steps: ([\d.]+)", text)[1])
    least = 39 * (13 * 256 / 4400 + 11 * 256 / 3010 + 3 * 256 / 1240) + 78 * 128 / 710
    assert least < seconds < 2 * least
    assert "learning rate 25 at its peak, after 14 epochs" in text


def test_memory_of_a_device(models, monkeypatch):
    run = RunConfig(
        model="resnet_small", image_size=32, num_classes=10, train_images=640, dataset="synthetic",
        global_batch_size=64, precision="float32", ema=0.9, epochs=2,
    )  # fmt: skip
    topology = Topology(1, 2)
    phases = inputs.phases(run)
    model = models(run, 10, 32)
    optimizer = optimization.build_optimizer(run, phases, [10])
    optimizer.build(model.trainable_variables)
    found = memory.bytes_of(run, topology, phases, model, optimizer)
    trainable = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    assert found["weights"] == 4 * model.count_params()
    assert found["gradients"] == 4 * trainable
    assert found["slots"] == 2 * 4 * trainable  # momentum and average
    assert found["pictures"] == 32 * 32 * 32 * 3
    # The first norm layer's output alone is 32 examples x 32 x 32 x 16 x 4 bytes.
    assert found["activations"] > 10 * 32 * 32 * 32 * 16 * 4
    halved = memory.bytes_of(
        RunConfig(**{**vars(run), "micro_batches": 2}), topology, phases, model, optimizer
    )
    assert halved["activations"] == found["activations"] / 2


def test_a_plan_needs_the_number_of_pictures(tmp_path, capsys):
    assert train.main(["--dry_run", "--dataset=records", f"--data_dir={tmp_path}"]) == 1
    assert "--train_images=N" in capsys.readouterr().err


def test_speeds_of_phases_follow_from_pixels():
    run = RunConfig(
        phase_epochs=(1, 1), epochs=2, phase_image_sizes=(16, 32), image_size=32,
        assumed_images_per_second=(100.0,),
    )  # fmt: skip
    assert plan._speeds(run) == [400.0, 100.0]


# ---------------------------------------------------------------- other numbers of replicas
def test_the_change_is_one_line():
    run, line = scaling.for_replicas(RECIPES["light_128"](), Topology(1, 8))
    rate = 25 * 10 * math.sqrt(2048 / 4096) / 32
    assert line == (
        f"8 replicas in place of 128: batch 32768 -> 2048 (256 each), learning rate 25 -> "
        f"{rate:.4g}, warm-up 14 -> 5 epochs (as Google's table of LARS has it by batch)"
    )
    assert run.global_batch_size == 2048 and run.phase_batch_sizes == (2048, 2048, 2048, 1024)
    assert run.learning_rate_values == pytest.approx((0, rate, 0.2 * rate / 25))
    assert run.learning_rate_epochs == (0, 5, 28) == run.momentum_epochs
    assert run.per_replica_batch_size is None


def test_sgd_scales_linearly_and_keeps_its_warmup():
    run, line = scaling.for_replicas(RECIPES["single_host_16"](), Topology(1, 2))
    assert run.learning_rate_values == pytest.approx((1.7e-4 / 4, 1.7 / 4, 0))
    assert run.learning_rate_epochs == (0, 2, 16) and "(linearly)" in line
    assert "2 replicas in place of 8: batch 1024 -> 256" in line


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("workers, devices", [(1, 1), (1, 8), (3, 4), (512, 8)])
def test_any_number_of_replicas_gets_a_whole_batch(name, workers, devices):
    topology = Topology(workers, devices)
    run, _ = scaling.for_replicas(RECIPES[name](), topology)
    for batch in (run.global_batch_size, *(run.phase_batch_sizes or ())):
        assert batch >= topology.num_replicas and batch % topology.num_replicas == 0
    assert topology.num_replicas % run.norm_group_size == 0


def test_on_its_own_replicas_a_recipe_stays_as_it_is():
    for name, make in RECIPES.items():
        run, line = scaling.for_replicas(make(), meant_for(make()))
        assert line is None, name
        assert run.peak_learning_rate == make().peak_learning_rate


def test_the_batch_of_a_recipe_by_accumulation_keeps_its_rates():
    few = RECIPES["light_128"]()
    few = RunConfig(**{**vars(few), "per_replica_batch_size": None, "micro_batches": 16})
    run, line = scaling.for_replicas(few, Topology(1, 8))
    assert line == "8 replicas in place of 128: batch 32768 as it was (4096 each)"
    assert run.global_batch_size == 32768
    assert run.learning_rate_values == few.learning_rate_values
    assert run.norm_group_size == 1  # 256 examples a replica at a time


def test_a_batch_of_ones_own_moves_the_rates():
    other = RunConfig(
        **{**vars(RECIPES["mlperf_32768"]()), "per_replica_batch_size": None,
           "global_batch_size": 8192}
    )  # fmt: skip
    run, line = scaling.for_replicas(other, Topology(8, 8))
    assert run.peak_learning_rate == pytest.approx(21.2 * 10 / 32)
    assert run.warmup_epochs == pytest.approx(16 * 5 / 14)
    assert line.startswith(
        "64 replicas in place of 256: batch 32768 -> 8192 (128 each), learning rate 21.2 -> 6.625"
    )


def test_a_plain_run_by_replica():
    run = RunConfig(per_replica_batch_size=32, base_learning_rate=1.0)
    run, line = scaling.for_replicas(run, Topology(2, 4))
    assert run.global_batch_size == 256
    assert line == "8 replicas: batch 128 -> 256 (32 each), learning rate 0.5 -> 1"
    assert scaling.for_replicas(RunConfig(), Topology(2, 4)) == (RunConfig(), None)


def test_groups_of_batch_norm():
    assert scaling.group_of(64, 16, Topology(256, 8)) == 4
    assert scaling.group_of(128, 16, Topology(256, 8)) == 8
    assert scaling.group_of(256, 16, Topology(256, 8)) == 16  # two workers
    assert scaling.group_of(100, 16, Topology(1, 6)) == 6
    assert scaling.group_of(100, 16, Topology(3, 4)) == 4  # 6 would be a worker and a half
    assert scaling.group_of(8, 16, Topology(4, 2)) == 1


# ---------------------------------------------------------------- the recipes themselves
def test_mlperf_points():
    for batch, (rate, warmup, momentum, decay, epochs) in MLPERF_POINTS.items():
        run = RECIPES[f"mlperf_{batch}"]()
        assert run.global_batch_size == batch == 128 * meant_for(run).num_replicas
        assert (run.peak_learning_rate, run.warmup_epochs) == (rate, warmup)
        assert (run.momentum, run.weight_decay) == (momentum, decay)
        assert epochs + 1 <= run.epochs < epochs + 2


def test_help_shows_the_recipes():
    text = help_text(train.CONFIGS, "quickstart")
    for name, make in RECIPES.items():
        assert re.search(rf"  {name} +\S.*source", text), name
        assert "ource" in make.__doc__ and "ssumed" in make.__doc__


def test_schedules_are_the_knots():
    run, _ = scaling.for_replicas(RECIPES["light_128"](), Topology(16, 8))
    phases = inputs.phases(run)
    steps = [39, 39, 39, 78]
    rate = optimization.learning_rate(run, phases, steps)
    momentum = optimization.momentum_schedule(run, phases, steps)
    total = 27 * 39 + 78
    at = [0, 100, 14 * 39, 800, 27 * 39, total]
    knots = [0, 14 * 39, total]
    np.testing.assert_allclose(
        [rate(step) for step in at], np.interp(at, knots, [0, 25, 0.2]), rtol=1e-5
    )
    np.testing.assert_allclose(
        [momentum(step) for step in at], np.interp(at, knots, [0.98, 0.9, 0.98]), rtol=1e-5
    )


def test_warmup_and_decay_as_mlperf_has_them():
    run, _ = scaling.for_replicas(RECIPES["mlperf_4096"](), Topology(4, 8))
    steps = IMAGES // 4096
    rate = optimization.learning_rate(run, inputs.phases(run), [steps])
    warmup, total = 5 * steps, 41 * steps
    assert float(rate(warmup // 2)) == pytest.approx(10 * (warmup // 2) / warmup, rel=1e-5)
    half = (warmup + total) // 2
    share = 1 - (half - warmup) / (total - warmup)
    assert float(rate(half)) == pytest.approx(1e-4 + (10 - 1e-4) * share**2, rel=1e-4)
    assert float(rate(total)) == pytest.approx(1e-4, rel=1e-3)


# ---------------------------------------------------------------- optimizers
@pytest.mark.parametrize("replicas", [1, 2])
def test_sgd_decays_kernels_only(replicas):
    run = RunConfig(
        optimizer="sgd", weight_decay=0.1, momentum=0.5, nesterov=False, ema=0.75,
        base_learning_rate=256.0, global_batch_size=1, warmup_epochs=0.0, end_learning_rate=1.0,
    )  # fmt: skip
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(2, input_shape=(3,), name="head"),
                                  keras.layers.BatchNormalization(name="norm")])  # fmt: skip
        optimizer = optimization.build_optimizer(run, inputs.phases(run), [100])
        optimizer.build(model.trainable_variables)
    before = [v.numpy() for v in model.trainable_variables]

    @tf.function
    def step():
        def apply():
            zeros = [tf.zeros_like(v) for v in model.trainable_variables]
            optimizer.apply_gradients(zip(zeros, model.trainable_variables, strict=True))

        strategy.run(apply)

    step()
    step()
    for variable, old in zip(model.trainable_variables, before, strict=True):
        kept = 0.9**2 if "kernel" in variable.name else 1.0
        np.testing.assert_allclose(variable.numpy(), kept * old, rtol=1e-6)


def test_settings_of_lars_reach_it():
    run, _ = scaling.for_replicas(RECIPES["light_128"](), Topology(16, 8))
    optimizer = optimization.build_optimizer(run, inputs.phases(run), [39, 39, 39, 78])
    config = optimizer.get_config()
    assert config["trust_coefficient"] == 8e-4 and config["nesterov"] is True
    assert list(config["trust_clip"]) == [1e-5, 1.0]
    pod, _ = scaling.for_replicas(RECIPES["tpu_v3_pod"](), Topology(256, 8))
    assert optimization.build_optimizer(pod, inputs.phases(pod), [39]).momentum_form == "scaled"


# ---------------------------------------------------------------- trials
def test_a_trial_keeps_what_makes_the_recipe():
    for name, make in RECIPES.items():
        run = trial.reduced(make())
        run, _ = scaling.for_replicas(run, Topology(1, 2))
        assert run.dataset == "synthetic" and run.width == 0.125, name
        assert run.epochs == len(make().phase_epochs or (1,))
        assert run.global_batch_size == 8 and run.image_size <= 72
        assert (run.compression, run.ema, run.blur_pool) == (
            make().compression, make().ema, make().blur_pool
        )  # fmt: skip
    light = trial.reduced(RECIPES["light_128"]())
    assert light.compression_epochs == (1, 1) and light.learning_rate_epochs == (0, 2, 4)
    assert light.phase_image_sizes == (32, 32, 56, 72)


def test_a_trial_starts_anew_but_removes_no_other_run(tmp_path, monkeypatch, capsys):
    def trains(run, cluster):
        folder = tmp_path / "trial"
        assert str(folder) == run.model_dir and not list(folder.glob("[!.]*"))
        (folder / "checkpoints").mkdir()
        (folder / "summary.json").write_text("{}")
        return 0

    monkeypatch.setattr(train, "train", trains)
    flags = ["--dataset=synthetic", "--num_classes=2", f"--model_dir={tmp_path}", "--trial"]
    assert train.main(flags) == 0 == train.main(flags)
    (tmp_path / "trial" / trial.MARK).unlink()
    assert train.main(flags) == 2
    assert "which no --trial has written" in capsys.readouterr().err
    assert (tmp_path / "trial" / "summary.json").exists()


@pytest.mark.parametrize("batch", [8192, 1024])
def test_phases_keep_an_example_for_each_micro_batch(batch):
    run = RunConfig(
        phase_epochs=(8, 7), phase_batch_sizes=(256, 8192), global_batch_size=batch,
        reference_batch_size=8192, peak_learning_rate=1.0, micro_batches=16,
    )  # fmt: skip
    run, _ = scaling.for_replicas(run, Topology(1, 8))
    assert run.phase_batch_sizes == ({8192: 256, 1024: 128}[batch], batch)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_trial_trains_here(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFSCALE_DEVICES_PER_WORKER", "2")
    two_phases = [
        "--phase_epochs=13,15",
        "--phase_image_sizes=96,288",
        "--phase_batch_sizes=32768,16384",
        "--phase_min_crop_areas=0.15,0.5",
    ]
    options = ["--blur_pool", "--flip_eval", "--ema=0.9", "--micro_batches=2"]
    quick = [
        "--model=resnet_small",
        "--precision=mixed_bfloat16",
        f"--model_dir={tmp_path}",
        "--trial",
    ]
    assert train.main(["--config=light_128", *two_phases, *options, *quick]) == 0
    said = capsys.readouterr().out
    assert "2 replicas in place of 128: batch 32768 -> 16 (8 each)" in said
    summary = json.loads((tmp_path / "trial" / "summary.json").read_text())
    assert summary["devices_per_worker"] == 2 and summary["input"] == {"dataset": "synthetic"}
    assert 0 <= summary["accuracy"] <= summary["top_5"] <= 1 and np.isfinite(summary["loss"])
    lines = (tmp_path / "trial" / "epochs.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]
    assert json.loads(lines[-1])["metrics"]["val_top_5"] == summary["top_5"]
    # Another trial begins with an empty folder.
    monkeypatch.setattr(
        train, "train", lambda run, cluster: len(list(tmp_path.glob("trial/[!.]*")))
    )
    assert train.main(["--config=light_128", *two_phases, *options, *quick]) == 0
