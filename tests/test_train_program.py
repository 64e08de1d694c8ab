"""The training program's flags and its place in the cluster are checked before TensorFlow loads."""

import json
import re
import subprocess
import sys
import types

import pytest

from experiments import communication, declared, failures, train
from experiments.communication import compression_phases
from experiments.run_config import RunConfig
from tfscale.callbacks import CompressionSchedule
from tfscale.distribute import Int8, TopK


@pytest.mark.parametrize(
    "flag",
    [
        "--epochs=0",
        "--epochs=-1",
        "--global_batch_size=0",
        "--base_learning_rate=inf",
        "--base_learning_rate=-1",
        "--base_learning_rate=nan",
        "--base_learning_rate=1e39",
        "--image_size=0",
        "--warmup_epochs=inf",
        "--warmup_epochs=-1",
        "--min_crop_area=0",
        "--min_crop_area=2",
        "--eval_crop_fraction=0",
        "--eval_crop_fraction=2",
        "--norm_group_size=0",
        "--momentum=1",
        "--weight_decay=-1",
        "--label_smoothing=2",
        "--width=0",
        "--micro_batches=0",
        "--ema=1",
        "--lars_trust_coefficient=0",
        "--momentum_values=0.9,1",
        "--phase_epochs=1,0",
        "--phase_epochs=",
        "--phase_min_crop_areas=0.5,2",
        "--train_images=0",
        "--cache_budget=lots",
        "--cache_budget=-1GiB",
        "--cache_dir=",
        "--bucket_bytes=0",
        "--bucket_bytes=many",
        "--compression=zip",
        "--compression_momentum=1",
        "--compression_warmup_epochs=-1",
        "--streams=0",
        "--start_timeout=0",
        "--start_timeout=inf",
        "--save_every=0",
        "--seed=-1",
        "--seed=99999999999",
        "--model_dir=",
    ],
)
def test_a_flag_out_of_range_is_named(flag, capsys):
    with pytest.raises(SystemExit) as ended:
        train.main([flag])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert flag.partition("=")[0] in said and said.count("\n") == 1


def test_the_ranges_let_through_what_is_usual():
    RunConfig(epochs=1, warmup_epochs=2.0, momentum=0.0, save_every=None, norm_group_size=None)
    RunConfig(base_learning_rate=0.0, min_crop_area=1.0, eval_crop_fraction=0.875, seed=2**32 - 1)


@pytest.mark.parametrize(
    "flags, said",
    [
        ("--compression=int8 --compression_ratio=0.1", "no effect with --compression=int8"),
        ("--compression_epochs=2,3", "no effect with --compression=none"),
        ("--compression=topk --compression_ratio=0", "--compression_ratio=0.0 is out of range"),
        ("--compression=topk --compression_epochs=5,3", "wrong order.*did you mean 3,5"),
        ("--compression=topk --compression_epochs=0,3", "begins at 0, .*counted from 1"),
        ("--compression=topk --compression_epochs=9,12 --epochs=8", "after the last of --epochs=8"),
        (
            "--compression=topk --compression_epochs=3,5 --compression_warmup_epochs=3",
            r"3 compressed epochs \(3 to 5\)",
        ),
        (
            "--compression=topk --compression_ratio=0.5 --compression_warmup_epochs=1",
            "--compression_ratio=0.5 is above that",
        ),
        ("--compression=topk --compression_momentum=0.9", "--optimizer=lars has --momentum=0.9"),
        (
            "--compression=topk --compression_momentum=0.9 --optimizer=sgd",
            "add --optimizer=sgd --momentum=0 ",
        ),
    ],
)
def test_flags_of_compression_that_do_not_fit(flags, said, capsys):
    with pytest.raises(SystemExit):
        train.main(flags.split())
    found = capsys.readouterr().err
    assert re.search(said, found) and found.count("\n") == 1


@pytest.mark.parametrize(
    "flags, said",
    [
        ("--phase_image_sizes=8,16", "no effect without --phase_epochs"),
        ("--phase_epochs=5,10 --phase_image_sizes=16", "has 1 values, but there are 2 phases"),
        ("--phase_epochs=5,5", "--epochs=15, but the phases have 10 epochs"),
        ("--phase_epochs=5,10 --phase_image_sizes=8,12", "--image_size=16 is not .* make it 12"),
        ("--phase_epochs=5,10 --phase_batch_sizes=64,32", "meant for, 128 .--global_batch_size"),
        ("--phase_epochs=5,10 --phase_magnitudes=3,9", "no effect without --rand_augment"),
        (
            "--phase_epochs=5,10 --phase_magnitudes=3,9 --rand_augment=0,9",
            "no effect with --rand_augment=0,9, which has 0 operations",
        ),
        (
            "--cache=disk --cache_dir=gs://bucket/cache",
            "--cache_dir=gs://bucket/cache must name a folder on a local disk",
        ),
        ("--learning_rate_epochs=0,15", "--learning_rate_epochs needs --learning_rate_values"),
        ("--momentum_values=0.9,0.8", "--momentum_values needs --momentum_epochs"),
        ("--learning_rate_epochs=0,5 --learning_rate_values=1", "as many of one as of the other"),
        ("--learning_rate_epochs=5,0 --learning_rate_values=1,2", "must ascend, to 15"),
        ("--learning_rate_epochs=0,16 --learning_rate_values=1,2", "must ascend, to 15"),
        (
            "--learning_rate_epochs=0,15 --learning_rate_values=1,2 --warmup_epochs=1",
            "--warmup_epochs=1.0 has no effect with --learning_rate_values",
        ),
        (
            "--momentum_epochs=0,15 --momentum_values=0.9,0.8 --momentum=0.5",
            "--momentum=0.5 has no effect with --momentum_values",
        ),
        (
            "--momentum_epochs=0,15 --momentum_values=0.9,0.8 --optimizer=sgd",
            "--momentum_values=0.9,0.8 has no effect with --optimizer=sgd",
        ),
        ("--peak_learning_rate=1 --base_learning_rate=2", "with --peak_learning_rate"),
        ("--reference_batch_size=64", "no effect without --peak_learning_rate or"),
        ("--per_replica_batch_size=8 --peak_learning_rate=1", "by --reference_batch_size"),
        (
            "--config=light_128 --global_batch_size=8192",
            "no effect with --per_replica_batch_size=256.*--per_replica_batch_size=none",
        ),
        ("--norm_span=64 --norm_group_size=2", "no effect with --norm_span=64"),
        ("--optimizer=sgd --lars_trust_clip=0,1", "no effect with --optimizer=sgd"),
        ("--lars_trust_clip=1,0.5", "did you mean 0.5,1"),
        (
            "--optimizer=sgd --momentum=0 --compression=topk --compression_momentum=0.9 "
            "--nesterov=true",
            "--nesterov=True has no effect with --compression_momentum",
        ),
        ("--dataset=synthetic", "--dataset=synthetic needs --num_classes"),
    ],
)
def test_settings_without_effect_are_refused(flags, said, capsys):
    with pytest.raises(SystemExit):
        train.main(flags.split())
    found = capsys.readouterr().err
    assert re.search(said, found) and found.count("\n") == 1


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize(
    "devices, flags, said",
    [
        ("4", "--global_batch_size=7", "--global_batch_size=7: 7 examples .* 4 replicas; 8 can"),
        ("4", "--global_batch_size=2", "--global_batch_size=2: 2 examples .* 4 replicas; 4 can"),
        ("4", "--phase_epochs=8,7 --phase_batch_sizes=30,128", "of which 30: .*; 32 can"),
        ("4", "--norm_group_size=3", "--norm_group_size=3: .* allowed are 1, 2, 4"),
        ("1", "--norm_group_size=100", "--norm_group_size=100: .* does not divide 1 replicas"),
        ("2", "--micro_batches=65", "--micro_batches=65: .* only 64 for each of the replicas"),
        ("1", "--micro_batches=7 --per_replica_batch_size=5", "--per_replica_batch_size=5 has"),
        ("1", "--worker_grid=2,2", "--worker_grid=.* holds 2 x 2 = 4 workers, but there are 1"),
        ("x", "", "TFSCALE_DEVICES_PER_WORKER='x' must be a whole number of at least 1"),
        ("1", "--cache=none --data_service=bad", "--data_service='bad' has no port"),
        ("1", "--data_service=host:1", "add --cache=none"),
    ],
)
def test_a_dry_run_and_a_run_refuse_the_same_before_anything_else(
    devices, flags, said, dry, monkeypatch, capsys, tmp_path
):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv("TFSCALE_DEVICES_PER_WORKER", devices)
    flags = [*flags.split(), "--dataset=synthetic", "--num_classes=9", f"--model_dir={tmp_path}"]
    assert train.main([*flags, f"--dry_run={dry}"]) == 2
    found = capsys.readouterr().err
    assert re.search(said, found) and found.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_settings_are_refused_before_tensorflow_loads():
    flags = ["--dry_run", "--micro_batches=9", "--global_batch_size=5", "--cache_budget=1GiB"]
    program = f"import sys\nfrom experiments import train\ncode = train.main({flags})\n"
    program += "sys.exit(code if 'tensorflow' not in sys.modules else 99)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 2


def test_a_complete_run_of_other_settings_is_an_error(monkeypatch, capsys, tmp_path):
    from tfscale import keras

    def tiny(run, num_classes, image_size):
        layers = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(num_classes, "softmax")]
        return keras.Sequential([keras.Input((image_size, image_size, 3)), *layers])

    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv("TFSCALE_DEVICES_PER_WORKER", raising=False)
    monkeypatch.setattr(train.optimization, "build_model", tiny)
    common = ["--dataset=synthetic", "--num_classes=3", "--global_batch_size=4", "--noexport",
              "--epochs=2", "--precision=float32", f"--model_dir={tmp_path}"]  # fmt: skip
    assert train.main(common) == 0
    summary, said = (tmp_path / "summary.json").read_text(), capsys.readouterr().out
    assert "accuracy" in said and "is complete" not in said
    assert train.main(common) == 0
    assert "has its 2 epochs and is complete" in capsys.readouterr().out
    for flags, wanted in (
        (["--phase_epochs=1,1"], "phase 1.epochs = 2, but this run has 1"),
        (["--precision=mixed_bfloat16"], "state.precision = 'float32', but this run has"),
        (["--optimizer=sgd", "--momentum=0.5"], "was saved from another model"),
    ):
        assert train.main([*common, *flags]) == 1
        assert wanted in capsys.readouterr().err
    assert train.main([*common, "--base_learning_rate=999", "--noflip", "--threads=1"]) == 0
    said = capsys.readouterr().out
    assert "with other settings: base_learning_rate=999.0 (was 32.0)\n" in said
    assert "is complete" in said
    assert (tmp_path / "summary.json").read_text() == summary
    ((entry),) = json.loads((tmp_path / "config.json").read_text())
    assert entry["from_step"] == 0 and entry["settings"]["precision"] == "float32"
    # The export that was left out is made when it is asked for, and nothing else changes.
    exported = str(tmp_path / "export")
    assert train.main([*common, "--export"]) == 0
    said = capsys.readouterr().out
    assert f"exporting to {exported}" in said and "is complete" in said
    assert (tmp_path / "export" / "saved_model.pb").exists()
    changed = json.loads((tmp_path / "summary.json").read_text())
    assert changed == {**json.loads(summary), "export_dir": exported}
    assert train.main([*common, "--export"]) == 0 and "exporting" not in capsys.readouterr().out
    keras.mixed_precision.set_global_policy("float32")


def test_flags_become_phases_of_compression():
    def phases(**flags):
        run = RunConfig(epochs=10, **flags)
        assert communication.all_reduce(run).compressor.name == names(run)[0]
        return names(run)

    def names(run):
        return CompressionSchedule(compression_phases(run)).phases

    def topk(ratio, momentum=0.0):
        return TopK(ratio, momentum=momentum).name

    assert phases() == {0: "none"}
    assert phases(compression="bfloat16") == {0: "bfloat16"}
    assert phases(compression="int8", compression_epochs=(3, 10)) == {0: "none", 2: Int8().name}
    found = phases(
        compression="topk", compression_epochs=(2, 8), compression_warmup_epochs=2,
        compression_ratio=0.01,
    )  # fmt: skip
    assert found == {0: "none", 1: topk(0.25), 2: topk(0.05), 3: topk(0.01), 8: "none"}
    dgc = {"optimizer": "sgd", "momentum": 0.0, "compression_momentum": 0.9}
    found = phases(compression="topk", compression_epochs=(1, 4), bucket_bytes="adaptive", **dgc)
    assert found == {0: topk(0.01, 0.9), 4: "none momentum 0.9"}


@pytest.mark.parametrize("listed", [True, False])
def test_an_evaluator_does_not_train_beside_the_workers(listed, monkeypatch, capsys, tmp_path):
    cluster = {"worker": ["127.0.0.1:20001", "127.0.0.1:20002"]}
    cluster |= {"evaluator": ["127.0.0.1:20003"]} if listed else {}
    task = {"type": "evaluator", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    assert train.main([f"--model_dir={tmp_path}"]) == 1
    assert "evaluator 0" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_ctrl_c_is_one_line(monkeypatch, capsys, tmp_path):
    def interrupted(run, cluster):
        raise KeyboardInterrupt

    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr(train, "train", interrupted)
    assert train.main(["--dataset=records", f"--model_dir={tmp_path}"]) == 130
    assert "Ctrl-C" in capsys.readouterr().err


def test_errors_of_tensorflow_are_shown_without_a_traceback(monkeypatch, capsys, tmp_path):
    import tensorflow as tf

    def fails(run, cluster):
        raise tf.errors.DataLossError(None, None, "record 3 of shard 1: CRC mismatch")

    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv("TFSCALE_TRACEBACK", raising=False)
    monkeypatch.setattr(train, "train", fails)
    flags = ["--dataset=records", f"--model_dir={tmp_path}"]
    assert train.main(flags) == 1
    assert "error: DataLossError: record 3 of shard 1" in capsys.readouterr().err
    monkeypatch.setenv("TFSCALE_TRACEBACK", "1")
    with pytest.raises(tf.errors.DataLossError):
        train.main(flags)


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        (
            "Collective ops is aborted by: Error reported from /job:worker/task:1: The following "
            "tasks are unhealthy (stopped sending heartbeats):\n/job:worker/replica:0/task:1\n"
            "The tasks have crashed.",
            "worker 1 has ended",
        ),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:25702\n"
            "remote target /job:worker/replica:0/task:0 while calling /tensorflow."
            "CoordinationService/InsertKeyValue",
            "worker 0 has ended",
        ),
        (
            "Collective ops is aborted by: recvmsg:Connection reset by peer\nAdditional GRPC error "
            "information from remote target /job:chief/replica:0/task:0 while calling /tensorflow.",
            "chief 0 has ended",
        ),
    ],
)
def test_a_lost_worker_is_named(text, lost):
    said = failures.explain(RuntimeError(text))
    assert said.startswith(lost) and "log" in said
    assert failures.explain(ValueError("another matter")) == "another matter"


def test_a_bad_record_is_named_without_the_traceback_inside():
    error = RuntimeError(
        "Graph execution error:\n\nDetected at node cond/PyFunc\nValueError: record 5 of "
        "train-00001: CRC mismatch.\nTraceback (most recent call last):\n\n  File ..."
    )
    assert failures.explain(error) == "record 5 of train-00001: CRC mismatch."


def test_splits_of_other_classes_are_refused():
    def contract(split, *names):
        return types.SimpleNamespace(split=split, class_names=names)

    failures.check_same_classes(contract("train", "a", "b"), contract("validation", "a", "b"))
    failures.check_same_classes(contract("train", "a", "b"), contract("validation"))
    failures.check_same_classes(contract("train"), contract("validation", "a"))
    with pytest.raises(ValueError, match="'train' has the classes a, b, but .* has b, c"):
        failures.check_same_classes(contract("train", "a", "b"), contract("validation", "b", "c"))


def test_a_tensorflow_under_another_name_is_no_error():
    assert "not installed" in declared.installed_version("no-such-distribution")


def test_a_model_dir_that_cannot_be_written_is_found_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        assert train.main(["--dataset=records", f"--model_dir={folder}"]) == 1
        assert f"--model_dir={folder} cannot be written" in capsys.readouterr().err


def test_two_runs_never_share_a_folder(tmp_path):
    with failures.run_folder(tmp_path / "run"):
        with (
            pytest.raises(OSError, match="in use by another run"),
            failures.run_folder(tmp_path / "run"),
        ):
            pass
    with failures.run_folder(tmp_path / "run"):  # Free again.
        pass
