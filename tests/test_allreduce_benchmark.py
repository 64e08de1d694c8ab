"""The all-reduce benchmark: its methods, rows, table, pictures, and a whole run on a small lab."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments import outputs, tables
from experiments.allreduce import benchmark, claims, methods, results, shapes, timeline, workers
from tests.network_lab import real_lab
from tfscale.distribute import compression

pytestmark = pytest.mark.alone
ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_the_gradients_are_those_of_resnet50():
    from tfscale import keras

    model = keras.applications.ResNet50(weights=None)
    # Keras's has biases before its batch norm, which add nothing.
    ours = sorted(s for s in shapes.resnet50() if len(s) > 1)
    assert ours == sorted(tuple(w.shape) for w in model.trainable_weights if len(w.shape) > 1)
    assert len(shapes.resnet50()) == 161
    assert shapes.elements(shapes.resnet50()) == 25_557_032


@pytest.mark.parametrize(
    "name, expected",
    [
        ("stock", {"family": "stock", "pack": 0}),
        ("stock:pack=4mib", {"pack": 4 << 20}),
        ("stock:pack=best", {"pack": "best"}),
        ("2d", {"family": "2d", "compression": None, "bucket": None}),
        ("2d+int8", {"compression": "int8"}),
        ("2d+topk=0.001", {"compression": "topk", "ratio": 0.001}),
        ("2d:bucket=adaptive", {"bucket": "adaptive"}),
        (
            "2d+bfloat16:bucket=1mib:streams=4:grid=2x3",
            {"compression": "bfloat16", "bucket": 1 << 20, "streams": 4, "grid": (2, 3)},
        ),
        ("gloo+powersgd", {"family": "peer"}),
        ("horovod", {"family": "peer"}),
    ],
)
def test_methods_are_read(name, expected):
    method = methods.parse_method(name)
    assert method.name == name
    assert {key: getattr(method, key) for key in expected} == expected


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("", "no method is named"),
        ("stock,2d,stock", "named twice: stock"),
        ("ring", "unknown method 'ring'; choose from stock"),
        ("stock+int8", "unknown method"),
        ("2d+zip", "unknown compression 'zip'; choose one of bfloat16"),
        ("2d+int8=3", "only topk takes a number"),
        ("2d+topk=0", "a ratio above 0"),
        ("2d+topk=x", "a ratio above 0"),
        ("2d:streams", "'streams' is not an option"),
        ("2d:streams=0", "streams=0: a whole number from 1 to 64"),
        ("2d:streams=65", "streams=65: a whole number from 1 to 64"),
        ("2d:grid=4", "grid=4: rows x columns"),
        ("2d:bucket=4mb", "bucket=4mb: .* is not a size"),
        ("2d:pack=4mib", "unknown option 'pack'; this method has bucket, streams, grid"),
        ("2d:streams=2:streams=3", "streams is given twice"),
        ("stock:pack=big", "pack=big: .* is not a size"),
    ],
)
def test_what_is_no_method_is_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        methods.parse_methods(text)


def test_methods_become_arguments_of_the_all_reduce():
    method = methods.parse_method("2d+topk=0.05:streams=3:bucket=1mib")
    arguments = method.arguments()
    assert arguments.pop("compression").name == compression.TopK(ratio=0.05).name
    assert arguments == {"streams": 3, "bucket_bytes": 1 << 20}
    assert methods.parse_method("2d").arguments() == {}


def payload(name, compressor=None, workers=4, devices=2):
    tensors = [(1000, 1000), (500,)]
    parsed = methods.parse_method(name)
    return methods.payload_bytes(
        parsed, tensors, workers, devices, compressor or compression.Uncompressed()
    )


def test_payload_by_the_formulas():
    n = 4 * 1_000_500
    assert payload("stock") == pytest.approx(2 * 7 / 8 * n)
    assert payload("2d") == pytest.approx(2 * 3 / 4 * n)
    assert payload("2d+bfloat16", compression.BFloat16()) == pytest.approx(3 / 4 * n)
    # A grid of workers moves as much as a ring.
    assert payload("2d:grid=2x2") == pytest.approx(payload("2d"))
    assert payload("2d:grid=1x4") == pytest.approx(payload("2d"))
    # Small tensors travel dense; k values and indices of the large one go to three others.
    top_k = compression.TopK(ratio=0.01)
    assert payload("2d+topk", top_k) == pytest.approx(
        1_000_000 * top_k.bytes_per_element(4) + 2 * 3 / 4 * 4 * 500
    )
    # In a grid what has residuals travels as float32 in the rows.
    int8 = compression.Int8()
    assert payload("2d+int8:grid=2x2", int8) == pytest.approx(
        1_000_500 * (8 / 2 + int8.bytes_per_element(2) / 2)
    )


# ---------------------------------------------------------------------- rows


def report(seconds, sent=100, cpu=1.0, **facts):
    sample = [{"seconds": s, "sent": sent, "cpu_seconds": cpu} for s in seconds]
    return {"samples": {"stock": sample}, "facts": {"stock": {"payload_bytes": 90, **facts}}}


def test_a_row_counts_the_slowest_worker():
    rows = results.rows_of(
        [report([2.0, 9.0, 3.0], sent=100, cpu=1.0), report([4.0, 1.0, 2.0], sent=120, cpu=3.0)],
        payload_bytes_per_second=45.0,
    )
    assert rows == [
        {
            "method": "stock",
            "seconds_median": 4.0,
            "seconds_min": 3.0,
            "seconds_max": 9.0,
            "bytes_per_link": 120,
            "link_share": 90 / 45 / 4,
            "cpu_seconds": 2.0,
            "payload_bytes": 90,
        }
    ]


def test_a_row_says_what_the_name_left_open():
    facts = {"bucket_bytes": 4 << 20, "streams": 4, "buckets": 9, "lossy": False, "checksum": 1.0}
    (row,) = results.rows_of([report([1.0], **facts)], None)
    assert (row["bucket_bytes"], row["streams"], row["buckets"]) == (4 << 20, 4, 9)
    assert "lossy" not in row and "checksum" not in row


def test_methods_that_disagree_on_the_sum_have_no_time():
    one = report([1.0], checksum=1.0, lossy=False)
    for name, checksum, lossy in (("2d", 1.0004, False), ("2d+int8", 1.3, True)):
        one["samples"][name] = one["samples"]["stock"]
        one["facts"][name] = {"checksum": checksum, "lossy": lossy}
    assert len(results.rows_of([one], None)) == 3
    one["facts"]["2d"]["checksum"] = 1.01
    with pytest.raises(ValueError, match="2d and stock do not agree on the sums: 1.01 and 1.0"):
        results.rows_of([one], None)


def row(method, seconds, **more):
    return {
        "method": method,
        "seconds_median": seconds,
        "seconds_min": seconds - 0.1,
        "seconds_max": seconds + 0.2,
        "bytes_per_link": 179e6,
        "link_share": 0.95,
        "cpu_seconds": 0.8,
        **more,
    }


ROWS = [
    row("stock", 8.0),
    row("stock:pack=best", 7.0, bytes_per_pack=4 << 20),
    row("2d", 4.0, link_share=None),
]


def test_the_table_has_ratios_to_stock_and_names_the_best_pack():
    lines = results.table(ROWS).splitlines()
    assert lines[0].split() == (
        "method seconds min max x stock x best stock MB per link link share CPU s".split()
    )
    assert lines[3].split()[:8] == [
        "stock:pack=best", "(4mib)", "7.000", "6.900", "7.200", "1.14", "1.00", "179.0",
    ]  # fmt: skip
    assert lines[4].split() == [
        "2d",
        "4.000",
        "3.900",
        "4.200",
        "2.00",
        "1.75",
        "179.0",
        "-",
        "0.80",
    ]
    assert len({len(line) for line in lines}) == 1


def test_the_table_of_a_small_model_keeps_its_digits_and_says_what_it_is():
    small = [
        row("stock", 1.0, bytes_per_link=1_820_000, payload_bytes=1.8e6),
        row("2d+topk", 1.0, bytes_per_link=18_240, payload_bytes=1.8e4),
    ]
    lines = results.table(small).splitlines()
    assert "1.82" in lines[2].split() and "0.0182" in lines[3].split()
    assert lines[-1].startswith("less than 1 M parameters: bound by latency and CPU")
    # Few bytes because of compression or of a single worker are no sign of a small model.
    for rows in (small[1:], [row("2d", 1.0, payload_bytes=0)], ROWS):
        assert "less than 1 M" not in results.table(rows)


@pytest.mark.parametrize(
    "size, text",
    [(0, "0.0"), (150, "0.000150"), (12_340, "0.0123"), (999_999, "1.000"), (178.96e6, "179.0")],
)
def test_megabytes_have_three_digits(size, text):
    assert tables.megabytes(size) == text


def test_the_table_without_stock_has_no_ratios():
    assert "x stock" not in results.table(ROWS[2:])
    assert "samples/s" in results.table([row("2d", 1.0, samples_per_second=64.0)])


def test_json_is_a_list_of_rows(tmp_path):
    path = tmp_path / "new" / "rows.json"
    outputs.write_json(path, ROWS, workers=4)
    rows = json.loads(path.read_text())
    assert [r["method"] for r in rows] == ["stock", "stock:pack=best", "2d"]
    assert all(set(results.COLUMNS) <= set(r) and r["workers"] == 4 for r in rows)


@pytest.mark.slow
def test_plots(tmp_path):
    pytest.importorskip("matplotlib")
    results.plot(tmp_path / "times.png", ROWS, "times")
    timeline.plot(tmp_path / "timeline.png", [STEP, STEP])
    for name in ("times.png", "timeline.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_says_so_before_measuring(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert benchmark.main(["--plot=x.png"]) == 1
    assert "pip install matplotlib" in capsys.readouterr().err


STEP = {
    "method": "2d",
    "step": [100.0, 110.0],
    "streams": 2,
    "layers": [[101.0, 103.0], [103.0, 106.0]],
    "buckets": [
        {"bucket": 0, "bytes": 8, "ready": 102.0, "start": 102.5, "end": 105.0},
        {"bucket": 1, "bytes": 8, "ready": 103.0, "start": 103.0, "end": 106.0},
        {"bucket": 2, "bytes": 8, "ready": 104.0, "start": 104.0, "end": 109.0},
    ],
}


def test_overlap_is_computed_from_the_times():
    # The third bucket has its stream only when the first one has arrived.
    assert timeline.sent_spans(STEP) == [(102.5, 105.0), (103.0, 106.0), (105.0, 109.0)]
    assert timeline.overlap(STEP) == {
        "buckets": 3,
        "in_flight": 2,
        "backward_seconds": 5.0,
        "exchange_seconds": 6.5,
        "overlapped_seconds": 3.5,
    }
    # Or when the second one has, if it is of that one's stream.
    said = [{**bucket, "stream": bucket["bucket"] > 0} for bucket in STEP["buckets"]]
    assert timeline.sent_spans({**STEP, "buckets": said})[2] == (106.0, 109.0)
    one_by_one = timeline.overlap({**STEP, "streams": 1})
    assert one_by_one["in_flight"] == 1
    assert one_by_one["exchange_seconds"] == 6.5
    assert "6.50 s, 3.50 s of it during backward" in timeline.describe(STEP)


# ---------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--rate=fast"], "is not a rate"),
        (["--methods=ring"], "unknown method 'ring'"),
        (["--methods=2d:grid=2x3"], "the grid does not have 4 cells"),
        (["--mode=train", "--methods=gloo"], "takes part in --mode=allreduce only"),
        (["--timeline=x.png"], "--timeline needs --mode=train"),
        (["--mode=train", "--timeline=x.png", "--methods=stock"], "shows a 2d method"),
        (["--compute_seconds=0"], "must be above 0"),
        (["--compute_seconds=soon"], "could not convert string to float"),
        (["--forward_share=1"], "--forward_share"),
        (["--repeats=0"], "must be at least 1"),
    ],
)
def test_bad_arguments_are_refused_before_a_lab_is_made(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as stop:
        benchmark.main(arguments)
    assert stop.value.code == 2
    assert complaint in capsys.readouterr().err


def test_help_teaches(capsys):
    with pytest.raises(SystemExit):
        benchmark.main(["--help"])
    text = capsys.readouterr().out
    for word in ("stock:pack=4mib", "2d+topk=0.001", "link share", "examples:", "--rate=none"):
        assert word in text


class FakeLab:
    workers, addresses = 2, ["10.77.0.10", "10.77.0.11"]

    def command(self, worker, argv):
        return ["on", str(worker), *argv]


def test_workers_get_a_cluster_of_the_labs_addresses(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://proxy:1")
    monkeypatch.setenv("TF_CONFIG", "{}")
    first, second = workers.commands(FakeLab(), ["python", "x.py"], 2, busy_threads=2)
    assert second.argv == ("on", "1", "python", "x.py")
    config = json.loads(second.env["TF_CONFIG"])
    assert config["cluster"]["worker"] == ["10.77.0.10:2222", "10.77.0.11:2222"]
    assert config["task"] == {"type": "worker", "index": 1}
    assert "http_proxy" not in second.env
    assert int(second.env["TF_NUM_INTEROP_THREADS"]) >= 5
    assert first.show and not second.show


def test_the_time_limit_leaves_room():
    args = benchmark._arguments([])
    settings = {"shapes": shapes.resnet50(), "methods": ["stock"] * 5}
    # 25.6 M parameters take 8 s at 200 Mbit/s; a slow machine needs some times that.
    assert 1000 < benchmark._time_limit(args, settings) < 7200
    assert math.isfinite(benchmark._time_limit(benchmark._arguments(["--rate=none"]), settings))


def test_a_failing_worker_ends_the_benchmark_with_its_words(tmp_path, monkeypatch, capsys):
    class Local:
        """A lab whose hosts are this machine."""

        number, payload_bytes_per_second = 0, None
        addresses = ["127.0.0.1"]

        def __init__(self, count, rate, congestion):
            self.workers, self.rate = count, rate

        def __enter__(self):
            return self

        def __exit__(self, *_):
            gone.append(True)

        def verify(self):
            return benchmark.Lab.check

        def command(self, worker, argv):
            return [sys.executable, "-c", "import sys; sys.exit('the disk is full')"]

    class Check:
        bits_per_second = None

        def describe(self):
            return "not measured"

    gone = []
    Local.check = Check()
    monkeypatch.setattr(benchmark, "Lab", Local)
    path = tmp_path / "rows.json"
    code = benchmark.main(
        ["--workers=1", "--rate=none", f"--json={path}", f"--logs={tmp_path}/logs"]
    )
    assert code == 1
    assert "the disk is full" in capsys.readouterr().err
    assert gone and not path.exists()
    assert "the disk is full" in (tmp_path / "logs/worker-0.log").read_text()


# ---------------------------------------------------------------------- on a real lab


def run_benchmark(*arguments):
    result = subprocess.run(
        [sys.executable, "-m", "experiments.allreduce.benchmark", "--parameters=small", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    number = int(re.search(r"^lab (\d+): links", result.stdout, re.M)[1])
    claim = claims.Claim.take(number)  # None: the next lab has it already.
    if claim is not None:
        assert not [n for n in claims._namespaces() if claims._number_of(n) == number]
        claim.release()
    return result.stdout


@real_lab
@pytest.mark.slow
def test_all_reduces_of_two_workers(tmp_path):
    path = tmp_path / "rows.json"
    names = ["stock", "2d", "2d+bfloat16", "2d+int8", "2d+topk"]
    out = run_benchmark(
        "--workers=2", "--rate=100mbit", "--repeats=2", f"--methods={','.join(names)}",
        f"--json={path}",
    )  # fmt: skip
    assert "repeat 2/2 2d+topk" in out and "x stock" in out
    rows = {row["method"]: row for row in json.loads(path.read_text())}
    assert list(rows) == names
    n = 4 * shapes.elements(shapes.small())
    # Headers and barriers add some per cent to what the formulas say.
    sent = {name: rows[name]["bytes_per_link"] for name in names}
    np.testing.assert_allclose(sent["stock"], 2 * 3 / 4 * n, rtol=0.08)
    np.testing.assert_allclose(sent["2d"], n, rtol=0.08)
    np.testing.assert_allclose(sent["2d+bfloat16"], n / 2, rtol=0.1)
    assert sent["2d+int8"] < 0.35 * n and sent["2d+topk"] < 0.1 * n
    for one in rows.values():
        # The buckets of the shaping let the first 128 KB of a message through at once.
        assert 0 < one["link_share"] < 1.3
        assert one["seconds_min"] <= one["seconds_median"] <= one["seconds_max"]
        assert one["cpu_seconds"] > 0 and one["cores"] >= 1
    assert rows["stock"]["bytes_per_pack"] == 0
    assert (rows["2d"]["bucket_bytes"], rows["2d"]["streams"]) == (4 << 20, 4)


@real_lab
@pytest.mark.slow
def test_training_of_two_workers(tmp_path):
    path, picture = tmp_path / "rows.json", tmp_path / "timeline.png"
    draw = [f"--timeline={picture}"] if matplotlib_is_there() else []
    run_benchmark(
        "--mode=train", "--workers=2", "--rate=100mbit", "--repeats=1", "--compute_seconds=0.2",
        "--methods=stock,2d:bucket=256kib,2d:bucket=adaptive", f"--json={path}", *draw,
    )  # fmt: skip
    rows = {row["method"]: row for row in json.loads(path.read_text())}
    assert list(rows) == ["no exchange", "stock", "2d:bucket=256kib", "2d:bucket=adaptive"]
    ceiling, stock, ours, adaptive = rows.values()
    assert all(r["compute_seconds"] == 0.2 and r["forward_share"] == 0 for r in rows.values())
    assert ours["buckets"] == 2 and adaptive["bucket_bytes"] == "adaptive"
    assert 1 <= adaptive["buckets"] <= len(shapes.small())
    (link,) = [line for line in adaptive["notes"] if "measured link" in line]
    assert re.search(r" ms for an exchange .* MB of gradients per second", link)
    assert not any("measured link" in line for line in ours["notes"])
    assert ceiling["bytes_per_link"] < 0.05 * stock["bytes_per_link"]
    assert ceiling["seconds_median"] > 0.2
    # The exchange takes 0.16 s with stock, all of it after the backward pass.
    assert stock["seconds_median"] > ceiling["seconds_median"] + 0.1
    assert ours["seconds_median"] < stock["seconds_median"]
    assert ours["samples_per_second"] == pytest.approx(32 * 4 / ours["seconds_median"])
    assert picture.exists() == bool(draw)


def matplotlib_is_there():
    try:
        outputs.check_matplotlib()
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("flag", ["json", "plot", "timeline", "logs"])
def test_paths_that_cannot_be_written_are_refused_before_measuring(
    tmp_path, monkeypatch, capsys, flag
):
    monkeypatch.setattr(benchmark, "_run", lambda args: pytest.fail("measured"))
    monkeypatch.setattr(outputs, "check_matplotlib", lambda: None)
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "out"
    assert benchmark.main(["--mode=train", "--methods=2d", f"--{flag}={path}"]) == 1
    error = capsys.readouterr().err
    assert f"--{flag}={path} can't be written: " in error and "is not a folder" in error


def test_the_check_of_a_path_leaves_no_file_and_harms_none(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "_run", lambda args: 0)
    kept, new, logs = tmp_path / "kept.json", tmp_path / "deep" / "new.json", tmp_path / "logs"
    kept.write_text("[]")
    for path in (kept, new):
        assert benchmark.main([f"--json={path}", f"--logs={logs}"]) == 0
    assert kept.read_text() == "[]" and not new.exists() and not list(logs.iterdir())
