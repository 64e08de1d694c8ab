"""The simulator: networks, advice, calibration files, and the program as a user runs it."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.simulate import __main__ as program
from experiments.simulate import advice, curves, light, scaling, selection
from experiments.simulate.calibration_files import read_costs, write_calibration
from experiments.simulate.measurements import read_measurements
from experiments.simulate.methods import method_of
from experiments.simulate.networks import NETWORKS, even, network
from experiments.simulate.validation import validate
from tests.references_cost_model import TRUE
from tfscale.distribute.cost_model import Cluster, Costs, Method, predict
from tfscale.distribute.cost_model.costs import ACCELERATOR

ROOT = Path(__file__).resolve().parent.parent
USUAL = ["--workers=16", "--devices_per_worker=8", "--rate=25gbit", "--step_time=0.2"]
NAMES = ("stock", "2d", "2d+bfloat16", "2d+int8", "2d+topk")


def rows_of(workers, devices, rate, bits, names=NAMES, **facts):
    """Rows as the benchmark writes them, of exchanges that behave exactly as the model."""
    cluster = Cluster(workers, devices, bits, 3.5e-5, cores_per_host=2, workers_per_host=workers)
    sizes = network("resnet50").gradient_bytes()
    rows = []
    for name in names:
        p = predict(cluster, method_of(name), sizes, costs=TRUE)
        row = {"method": name, "seconds_median": p.seconds, "cpu_seconds": p.cpu_seconds}
        row |= {"mode": "allreduce", "workers": workers, "devices_per_worker": devices}
        rows.append({**row, "rate": rate, "parameters": "resnet50", "cores": 2, **facts})
    return rows


def write(path, rows):
    path.write_text(json.dumps(rows))
    return str(path)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    runs = [
        write(folder / "a.json", rows_of(4, 2, "200mbit", 2e8)),
        write(folder / "b.json", rows_of(4, 2, "1gbit", 1e9)),
    ]
    file = folder / "deep" / "costs.json"
    return file, write_calibration(file, runs)


def run(*flags):
    return subprocess.run(
        [sys.executable, "-m", "experiments.simulate", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    "name, parameters, tensors",
    [
        ("resnet50", 25_557_032, 161),
        ("resnet101", 44_549_160, 314),
        ("resnet152", 60_192_808, 467),
        ("vgg16", 138_357_544, 32),
        ("bert_base", 110_000_000, 160),
    ],
)
def test_networks(name, parameters, tensors):
    net = network(name)
    assert net.parameters == parameters
    assert len(net.shapes) == len(net.work) == tensors
    ready = net.ready_seconds(0.3)
    assert ready == sorted(ready)
    assert 0.1 <= ready[0] < ready[-1] == pytest.approx(0.3)
    assert sum(net.gradient_bytes()) == 4 * parameters


def test_resnet50_is_the_models_and_its_work_the_papers():
    from experiments.allreduce.shapes import resnet50

    assert list(network("resnet50").shapes) == resnet50()
    # Multiply-adds of an image of 224 pixels; 3.8e9 in the paper's v1, 4.1e9 with v1.5's strides.
    assert sum(network("resnet50").work) == pytest.approx(4.09e9, rel=0.01)
    # A network for which the first gradients are most of the bytes.
    net = network("vgg16")
    early = [
        s for s, t in zip(net.gradient_bytes(), net.ready_seconds(1.0), strict=True) if t < 0.4
    ]
    assert sum(early) > 0.8 * 4 * net.parameters


def test_even_network():
    assert even(7).parameters == 7 and len(even(7).shapes) == 7
    assert even(110_000_001).parameters == 110_000_001
    assert not even(100).exact and network("resnet50").exact
    for arguments in ({}, {"name": "resnet50", "parameters": 5}):
        with pytest.raises(ValueError, match="give one of"):
            network(**arguments)


def test_methods_are_written_as_in_the_benchmark():
    assert method_of("stock") == Method("ring", bucket_bytes=None, streams=1)
    assert method_of("stock:pack=4mib") == Method("ring", bucket_bytes=4 << 20, streams=1)
    assert method_of("stock:pack=best", 1 << 20) == Method("ring", bucket_bytes=1 << 20, streams=1)
    assert method_of("2d") == Method()
    assert method_of("2d+topk=0.001:streams=4") == Method(
        compression="topk", ratio=0.001, streams=4
    )
    assert method_of("2d:grid=2x2:bucket=adaptive") == Method(
        "grid", worker_grid=(2, 2), bucket_bytes="adaptive"
    )
    # A row says what the all-reduce's defaults were when it was measured.
    assert method_of("2d", bucket_bytes=1 << 20, streams=2) == Method(
        bucket_bytes=1 << 20, streams=2
    )
    assert method_of("2d", bucket_bytes="adaptive").bucket_bytes == "adaptive"
    assert method_of("tree").algorithm == "tree"
    for name, message in (
        ("gloo", "is a peer"),
        ("stock:pack=best", "say which size"),
        ("3d", "unknown method '3d'"),
    ):
        with pytest.raises(ValueError, match=message):
            method_of(name)


def test_calibration_predicts_what_it_has_not_seen(calibrated, tmp_path):
    file, (report, rows) = calibrated
    assert "no proof" in report[0] and all(abs(row.error) < 0.02 for row in rows)
    assert "left near their defaults: step_seconds, float16" in report[-1]
    unseen = [
        write(tmp_path / "c.json", rows_of(2, 4, "100mbit", 1e8)),
        write(tmp_path / "d.json", rows_of(8, 1, "500mbit", 5e8)),
    ]
    lines, rows = validate(unseen, read_costs(file))
    assert len(rows) == 10 and all(row.within for row in rows)
    assert lines[-1].startswith("10 of 10 exchanges (100%) within 10%")
    wrong = write(tmp_path / "e.json", rows_of(2, 4, "100mbit", 3e8))
    _, rows = validate([wrong], read_costs(file))
    assert not all(row.within for row in rows)


def test_configuration_from_the_files_name(tmp_path):
    bare = [{"method": "stock", "seconds_median": 7.8}, {"method": "gloo", "seconds_median": 6.4}]
    path = write(tmp_path / "lab-4x2-200mbit.json", bare)
    (found,), left_out = read_measurements(path, cores=2)
    assert left_out == ["gloo"]
    cluster = found.cluster
    assert (cluster.workers, cluster.devices_per_worker) == (4, 2)
    assert (cluster.bits_per_second, cluster.contention) == (2e8, 2.0)
    assert found.name == "4 x 2, 200mbit, stock"
    (found,), _ = read_measurements(write(tmp_path / "2x1-none.json", bare), cores=2)
    assert found.cluster.bits_per_second is None


def test_rows_of_training(tmp_path):
    costs, name = Costs(), "2d"
    train = {"mode": "train", "compute_seconds": 0.8, "forward_share": 0.25}
    rows = rows_of(4, 2, "200mbit", 2e8, [name], **train)
    alone = {**rows[0], "method": "no exchange", "seconds_median": 1.0}
    path = write(tmp_path / "train.json", [alone, *rows])
    (found,), _ = read_measurements(path)
    assert found.cpu_seconds is None and found.name.endswith("2d, training")
    # 54 layers, equally long; the first gradients come after the forward pass and one of them.
    assert found.ready[0] == pytest.approx(0.2 + 0.6 / 54)
    assert found.ready[-1] == pytest.approx(0.8)
    exposed = predict(found.cluster, found.method, found.sizes, found.ready, costs).exposed_seconds
    assert found.predicted(costs)[0] == pytest.approx(1.0 + exposed)
    with pytest.raises(ValueError, match="need one of 'no exchange'"):
        read_measurements(write(tmp_path / "half.json", rows))


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "is not JSON"),
        ("{}", "does not hold a list of rows"),
        (
            '[{"method": "stock"}]',
            "row 0: seconds_median must be a number of seconds above 0, got None",
        ),
        ('[{"method": "stock", "seconds_median": 1}]', "lacks workers, devices_per_worker, rate"),
        (
            '[{"method": "stock", "seconds_median": 1, "workers": 2, "devices_per_worker": 1, '
            '"rate": "1gbit"}]',
            "add --cores_per_host=NUMBER",
        ),
        ('[{"method": "gloo", "seconds_median": 1}]', "no row of a method that the model knows"),
    ],
)
def test_bad_benchmark_files(tmp_path, content, message):
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_measurements(path)


def outcomes(cluster, step=0.2, names=None):
    names = names.split(",") if names else scaling.METHODS
    return scaling.outcomes(cluster, network("resnet50"), names, step, 64, ACCELERATOR)


def test_outcomes_are_consistent():
    for row in outcomes(Cluster(8, 4, 10e9)):
        assert row.step_seconds == pytest.approx(0.2 + row.exposed_seconds)
        assert row.samples_per_second == pytest.approx(32 * 64 / row.step_seconds)
        assert row.efficiency == pytest.approx(0.2 / row.step_seconds)
        assert row.exposed_seconds <= row.exchange_seconds + 1e-9


def test_advice_compresses_only_where_it_pays_and_warns():
    fast = " ".join(advice.advise(outcomes(Cluster(4, 8, 100e9)), Cluster(4, 8, 100e9)))
    assert "Compression: not needed" in fast and "topk" not in fast
    slow = advice.advise(outcomes(Cluster(8, 2, 1e9)), Cluster(8, 2, 1e9))
    (topk,) = [line for line in slow if "2d+topk would reach" in line]
    assert "lossy and changes training" in topk and "final accuracy" in topk
    # What is about as fast is not worth a more complicated choice.
    assert "precision 2d is the best choice" in fast
    assert any("bfloat16" in line and "rounds every gradient" in line for line in slow)
    assert "Without loss of precision 2d" in slow[0] and "TensorFlow's default" in slow[0]
    assert "nothing crosses a network" in advice.advise(outcomes(Cluster(1)), Cluster(1))[0]


def outcome(method, seconds):
    compression = method.partition("+")[2] or None
    return scaling.Outcome(
        method, compression, seconds, seconds, seconds, 1 / seconds, 0.1 / seconds, 1e8, 9, "link"
    )


def test_advice_names_the_default_among_equals_and_says_what_is_faster():
    cluster = Cluster(4, 1, 1e9)
    pack, default = outcome("stock:pack=4mib", 1.370), outcome("2d", 1.357)
    (text,) = advice.advise([pack, default], cluster)
    assert "2d is the best choice" in text and "faster" not in text
    (text,) = advice.advise([outcome("stock:pack=4mib", 1.343), default], cluster)
    assert "2d is the best choice" in text
    assert "stock:pack=4mib is 1.0% faster, which is within the model's error" in text
    (text,) = advice.advise([outcome("stock:pack=4mib", 1.2), default], cluster)
    assert "stock:pack=4mib is the best choice" in text
    lines = advice.advise([default, outcome("2d+bfloat16", 1.3)], cluster)
    assert "Stay with float32" in lines[-1]


def test_advice_rounds_as_the_table():
    row = outcome("2d", 0.1 / 0.9951)
    assert "99.5%" in scaling.table([row])
    assert "99.5% of perfect" in advice.advise([row], Cluster(8, 1, 1e9))[0]


def test_every_method_says_how_a_program_selects_it():
    import tensorflow as tf

    from experiments.allreduce.methods import parse_method
    from tfscale.distribute import Hierarchical2DAllReduce, TopK

    made = {
        "Hierarchical2DAllReduce": Hierarchical2DAllReduce,
        "TopK": TopK,
        "create_strategy": lambda cross_device_ops=None: cross_device_ops,
    }
    names = [*scaling.METHODS, "2d+topk=0.001:grid=4x4", "2d:streams=2:bucket=1mib"]
    for name in names:
        code = selection.selection(name)
        if name == "stock:pack=4mib":
            assert "MultiWorkerMirroredStrategy" in code and "bytes_per_pack=4194304" in code
            options = code.partition("communication_options=")[2][:-1]
            assert eval(options, {"tf": tf}).bytes_per_pack == 4 << 20
            continue
        operation = eval(code, dict(made))
        if name in ("stock", "2d"):
            assert operation == {"stock": "stock", "2d": None}[name]
            continue
        expected = Hierarchical2DAllReduce(**parse_method(name).arguments())
        assert operation.settings() == expected.settings()
    assert selection.selection("tree") is None and selection.describe(["tree"]) == []


def test_advice_on_a_grid_of_workers():
    crowd = Cluster(256, 1, 100e9, latency_seconds=5e-4)
    names = "tree,2d,2d:grid=16x16"
    lines = advice.advise(outcomes(crowd, names=names), crowd)
    assert any("worker_grid=(16, 16) gains" in line for line in lines)
    assert "tree" not in " ".join(lines)
    few = Cluster(16, 1, 1e9)
    lines = advice.advise(outcomes(few, names="2d,2d:grid=4x4"), few)
    assert any("one ring of workers is as good" in line for line in lines)
    assert scaling.usual_methods(13) == scaling.METHODS
    assert scaling.usual_methods(17) == scaling.METHODS
    assert scaling.usual_methods(32)[-1] == "2d:grid=4x8:bucket=adaptive"


def test_curve_is_linear_in_2d_and_quadratic_in_1d():
    points = curves.mesh_curve(1e8, 1e-9, 1e-5, sides=(4, 8, 16, 32, 64))
    assert points[-1].replicas == 4096
    for small, large in zip(points, points[1:], strict=False):
        assert (large.hops_1d + 2) / (small.hops_1d + 2) == 4
        assert (large.hops_2d + 4) / (small.hops_2d + 4) == 2
        assert large.seconds_1d / large.seconds_2d > small.seconds_1d / small.seconds_2d


def test_light_is_labelled_and_has_two_constants():
    lines = light.describe()
    assert light.LABEL == "illustration, figures unverified"
    assert light.LABEL in lines[0] and "no evidence" in lines[-1]
    drawn, hidden, fixed = light.redraw()
    assert len(drawn) == 4 and 0 <= hidden <= 1 and 0 <= fixed < 0.1
    assert all(math.isfinite(images) for images in drawn)


def test_program_predicts_advises_and_writes(capsys, tmp_path):
    file = tmp_path / "new" / "result.json"
    plot = tmp_path / "plots" / "steps.png"
    flags = [*USUAL, "--model=resnet50", "--batch_per_device=256", f"--json={file}"]
    assert program.main([*flags, f"--plot={plot}"]) == 0
    out = capsys.readouterr().out
    assert "16 workers x 8 devices, 25 Gbit/s, resnet50, 25.6 M parameters" in out
    assert "ASSUMED for accelerators, not measured" in out
    assert "Without loss of precision" in out and "an upper bound" in out
    result = json.loads(file.read_text())
    assert [row["method"] for row in result["rows"]] == [
        *scaling.METHODS,
        "2d:grid=4x4:bucket=adaptive",
    ]
    assert result["cluster"]["workers"] == 16 and result["advice"]
    assert plot.stat().st_size > 10_000


def test_program_with_other_networks_and_a_calibration(calibrated, capsys):
    file, _ = calibrated
    flags = [*USUAL, "--parameters=110e6", "--methods=stock,tree,2d:grid=4x4"]
    assert program.main([*flags, f"--calibration={file}"]) == 0
    out = capsys.readouterr().out
    assert f"constants: measured, {file}" in out
    assert "tensors of equal size and work are assumed" in out
    assert "2d:grid=4x4" in out and "say --batch_per_device" in out


def test_program_calibrates_and_validates(tmp_path, capsys):
    runs = ",".join(
        write(tmp_path / f"{rate}.json", rows_of(4, 2, rate, bits))
        for rate, bits in (("200mbit", 2e8), ("1gbit", 1e9))
    )
    file = tmp_path / "costs.json"
    assert program.main([f"--calibrate={runs}", f"--calibration={file}"]) == 0
    good = write(tmp_path / "good.json", rows_of(2, 4, "200mbit", 2e8))
    bad = write(tmp_path / "bad.json", rows_of(2, 4, "200mbit", 1e8))
    assert program.main([f"--validate={good}", f"--calibration={file}"]) == 0
    assert "5 of 5 exchanges (100%) within 10%" in capsys.readouterr().out
    result = tmp_path / "result.json"
    plot = tmp_path / "plot.png"
    flags = [f"--validate={good},{bad}", f"--calibration={file}", f"--json={result}"]
    assert program.main([*flags, f"--plot={plot}"]) == 1
    # Top-k is bound by the CPU: a wrong rate does not show in it.
    assert "6 of 10 exchanges (60%) within 10%; the worst is off by -4" in capsys.readouterr().out
    rows = json.loads(result.read_text())
    assert len(rows) == 10 and set(rows[0]) >= {"predicted_seconds", "measured_seconds", "error"}
    assert plot.stat().st_size > 10_000


def test_program_draws_curve_and_light(tmp_path, capsys):
    assert program.main(["--curve", "--rate=10gbit", f"--plot={tmp_path / 'curve.png'}"]) == 0
    assert "64 x 64 = 4096" in capsys.readouterr().out
    assert program.main(["--light", f"--plot={tmp_path / 'light.png'}"]) == 0
    assert light.LABEL in capsys.readouterr().out
    assert all((tmp_path / name).exists() for name in ("curve.png", "light.png"))


@pytest.mark.parametrize(
    "flags, message",
    [
        ([], "--workers, --rate, --step_time, --model (or --parameters) must be given"),
        (["--workers=2", "--rate=1gbit", "--model=resnet50"], "--step_time must be given"),
        ([], "for example\n  python -m experiments.simulate --workers=4"),
        (["--workers=four"], "--workers: invalid int value: 'four'"),
        (["--wrkers=4"], "unrecognized arguments: --wrkers=4; --help shows all flags"),
        (["--workers=0", *USUAL[2:], "--model=resnet50"], "workers must be a whole number"),
        ([*USUAL, "--rate=25gb", "--model=resnet50"], "'25gb' is not a rate"),
        ([*USUAL, "--model=resnet18"], "unknown model 'resnet18'; choose one of resnet50"),
        ([*USUAL], "--model (or --parameters) must be given"),
        ([*USUAL, "--model=vgg16", "--parameters=9"], "give one of --model=NAME"),
        ([*USUAL, "--parameters=0"], "--parameters=0 is not a number of parameters"),
        ([*USUAL, "--parameters=nan"], "--parameters=nan is not a number of parameters"),
        ([*USUAL, "--model=resnet50", "--step_time=0"], "--step_time=0 must be a number above 0"),
        ([*USUAL, "--model=resnet50", "--step_time=2min"], "seconds, as 0.2, or milliseconds, as"),
        ([*USUAL, "--model=resnet50", "--methods=2d,4d"], "unknown method '4d'"),
        ([*USUAL, "--model=resnet50", "--methods=2d:grid=3x3"], "has 9 cells, but there are 16"),
        ([*USUAL, "--model=resnet50", "--calibration=absent.json"], "absent.json"),
        ([*USUAL, "--model=resnet50", f"--calibration={__file__}"], "is not a calibration file"),
        ([*USUAL, "--model=resnet50", "--methods=,"], "--methods names no method"),
        (["--calibrate=a.json"], "--calibrate needs --calibration=F"),
        (["--validate=a.json"], "--validate needs --calibration=F"),
        (["--curve", "--rate=none"], "--curve needs a --rate"),
        (["--curve"], "--rate must be given; for example --curve --rate=10gbit"),
    ],
)
def test_errors_name_the_flag_and_the_way_out(flags, message, capsys):
    assert program.main(flags) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error
    assert len(error.splitlines()) <= 2
    assert "Traceback" not in error


def test_step_time_has_units(capsys):
    texts = []
    for step_time in ("0.2", "200ms", "0.2s"):
        assert program.main([*USUAL, "--model=resnet50", f"--step_time={step_time}"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2] and "0.2 s of computation" in texts[0]
    assert "is 0.2 seconds" not in texts[0]
    assert program.main([*USUAL, "--model=resnet50", "--step_time=200"]) == 0
    assert "200 seconds for one step; milliseconds are written as" in capsys.readouterr().out


def test_help_teaches_and_starts_without_tensorflow():
    result = run("--help")
    assert result.returncode == 0
    for word in ("--step_time is the time of a step on ONE device", "--calibrate=", "examples:"):
        assert word in result.stdout
    code = (
        "import sys, experiments.simulate.__main__; "
        "sys.exit(any(m in sys.modules for m in ('tensorflow', 'matplotlib')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_all_named_networks_exist():
    assert all(network(name).parameters > 1e7 for name in NETWORKS)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"seconds_median": "x"}, "seconds_median must be a number of seconds above 0, got 'x'"),
        ({"seconds_max": None}, "seconds_max must be a number of seconds above 0, got None"),
        ({"parameters": ["small"]}, r"parameters must be .*resnet50, small, got \['small'\]"),
        ({"cpu_seconds": math.nan}, "cpu_seconds must be null or a number .*, got nan"),
        ({"workers": "4"}, "workers must be a whole number of at least 1, got '4'"),
        ({"rate": "4 knots"}, "rate '4 knots' is not a rate"),
        ({"streams": 1.5}, "streams must be .*, got 1.5"),
    ],
)
def test_a_field_of_no_use_is_named_with_file_and_row(tmp_path, fields, message):
    rows = rows_of(4, 2, "1gbit", 1e9, ["stock", "2d"])
    path = write(tmp_path / "rows.json", [rows[0], rows[1] | fields])
    with pytest.raises(ValueError, match=f"rows.json, row 1: {message}"):
        read_measurements(path)


def test_the_step_without_exchange_is_checked_before_it_is_used(tmp_path):
    (row,) = rows_of(4, 2, "1gbit", 1e9, ["2d"], mode="train")
    path = write(tmp_path / "rows.json", [row, {"method": "no exchange"}])
    with pytest.raises(ValueError, match="row 1: seconds_median must be .*, got None"):
        read_measurements(path)


def test_no_cores_and_paths_of_no_use_are_refused_at_once(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "out"
    for flag in ("--cores_per_host=0", f"--json={below}", f"--plot={below}", f"--json={tmp_path}"):
        assert program.main([*USUAL, "--model=resnet50", flag]) == 2
        shown = capsys.readouterr()
        assert flag in shown.err and len(shown.err.splitlines()) == 1 and not shown.out
    assert program.main(["--calibrate=a.json", f"--calibration={below}"]) == 2
    assert f"--calibration={below} can't be written" in capsys.readouterr().err
