"""The cost model: its formulas by hand, its limits, its monotony, and what calibration recovers."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.references_cost_model import TRUE
from tfscale.distribute import merging
from tfscale.distribute.cost_model import (
    Calibration,
    Cluster,
    Costs,
    Measurement,
    Method,
    calibrate,
    predict,
)
from tfscale.distribute.cost_model.prediction import _sent, _Stages, bucket_link, plan_buckets

ROOT = Path(__file__).resolve().parent.parent
FREE = Costs(**dict.fromkeys([f.name for f in dataclasses.fields(Costs)], 0.0))
SIZES = tuple([1 << 20] * 40 + [4096] * 60)


def lab(workers, devices, rate):
    return Cluster(
        workers, devices, rate, latency_seconds=0.0, cores_per_host=2, workers_per_host=workers
    )


@pytest.mark.parametrize(
    "method, share, steps",
    [
        (Method("ring"), 2 * 7 / 8, 14),
        (Method("tree"), 2.0, 4),
        (Method("2d"), 1.5, 6),
        (Method("grid", worker_grid=(2, 2)), 1.5, 4),
        (Method("grid", worker_grid=(4, 1)), 1.5, 6),
        (Method("2d", "bfloat16"), 0.75, 6),
        (Method("2d", "float16"), 0.75, 2),
        (Method("2d", "int8"), 1.5 * (1 + 4 / 256) / 4, 2),
        (Method("2d", "topk", ratio=0.01), 0.06, 1),
        (Method("grid", "bfloat16", worker_grid=(2, 2)), 0.75, 4),
    ],
)
def test_bytes_and_steps_of_4_workers_with_2_devices(method, share, steps):
    cluster = Cluster(4, 2, 1e9)
    assert method.sent_share(cluster) == pytest.approx(share)
    assert method.steps(cluster) == steps


def test_top_k_sends_small_tensors_whole_and_large_ones_too_where_that_is_shorter():
    cluster, method = Cluster(4, 2, 1e9), Method(compression="topk", ratio=0.01)
    predicted = predict(cluster, method, [4 * 100_000, 4 * 4095])
    assert predicted.bytes_per_link == pytest.approx(4 * (0.06 * 100_000 + 1.5 * 4095))
    assert predicted.buckets == 2
    crowd = Cluster(100, 1, 1e9)
    assert method.sent_share(crowd) == Method().sent_share(crowd)
    assert method.steps(crowd) == Method().steps(crowd)


def test_one_worker_sends_nothing():
    for method in (Method("ring"), Method("2d"), Method("tree"), Method(compression="topk")):
        predicted = predict(Cluster(1, 4, 1e9), method, SIZES, costs=FREE)
        assert predicted.bytes_per_link == predicted.seconds == predicted.steps == 0


def test_wire_time_by_hand():
    # 1e6 bytes, 2 (N - 1) / N = 1.5 times over, at 1e6 bytes/s.
    cluster = Cluster(4, 2, 8e6, latency_seconds=0.01)
    predicted = predict(cluster, Method("2d", bucket_bytes=None), [1_000_000], costs=FREE)
    assert predicted.seconds == pytest.approx(1.5 + 6 * 0.01)
    assert predicted.latency_seconds == pytest.approx(0.06)
    assert predicted.bound_by == "link"
    slower = dataclasses.replace(FREE, link_overhead=0.1)
    assert predict(cluster, Method("2d", bucket_bytes=None), [1_000_000], costs=slower).seconds == (
        pytest.approx(1.65 + 0.06)
    )


def test_what_goes_to_several_others_at_once_fills_the_link_less():
    four = Cluster(4, 2, 8e6, latency_seconds=0.0)
    # Of 1.5 times a quarter of the bytes, two of three go to others than the first.
    int8 = Method(compression="int8")
    assert int8.direct_share(four) == pytest.approx(int8.sent_share(four) * 2 / 3)
    for method in (Method(), Method("ring"), Method("tree"), Method(compression="bfloat16")):
        assert method.direct_share(four) == 0
    # The columns of a grid of 2 x 2 are pairs, and so are its rows.
    assert Method("grid", "int8", worker_grid=(2, 2)).direct_share(four) == 0
    assert Method("grid", worker_grid=(1, 4)).direct_share(four) == pytest.approx(3 / 4 * 2 / 3)
    assert int8.direct_share(Cluster(2)) == int8.direct_share(Cluster(1)) == 0
    uneven = dataclasses.replace(FREE, uneven_connections=0.3)
    fair, slowed = (
        predict(four, dataclasses.replace(int8, bucket_bytes=None), [1_000_000], costs=c).seconds
        for c in (FREE, uneven)
    )
    assert slowed == pytest.approx(1.2 * fair)


def test_the_cpus_work_hides_behind_the_wire_where_several_messages_are_in_flight():
    # 1.5e6 bytes: 1.5 s on the wire; half as much work of the CPU on them.
    costs = dataclasses.replace(FREE, transport=0.5e-6, interference=0.4)
    for devices, streams, in_flight in ((1, 1, 1), (1, 4, 4), (2, 1, 2), (2, 4, 8)):
        cluster = Cluster(
            4, devices, 8e6, latency_seconds=0.0, cores_per_host=1, workers_per_host=1
        )
        method = Method(bucket_bytes=None, streams=streams)
        predicted = predict(cluster, method, [1_000_000], costs=costs)
        assert predicted.seconds == pytest.approx(1.5 + 0.4 * 0.75 / in_flight)


def test_cpu_time_by_hand():
    # 4 workers on 2 cores: each second of work takes two.
    costs = dataclasses.replace(FREE, local=1e-6, transport=1e-6, int8=1e-6)
    cluster = lab(4, 2, None)
    predicted = predict(cluster, Method("2d", "int8", bucket_bytes=None), [1_000_000], costs=costs)
    sent = 1.5 * (1 + 4 / 256) / 4
    assert predicted.cpu_seconds == pytest.approx(2 + sent + 1)
    assert predicted.seconds == pytest.approx(2 * predicted.cpu_seconds)
    assert predicted.bound_by == "cpu"


def prepared_and_sent(work, ready, method, link=0.0):
    links = [link] * len(work) if isinstance(link, float) else link
    stages = [
        _Stages(before=w, latency=0.0, link=k, between=0.0, after=0.0, cpu=w, wire=k)
        for w, k in zip(work, links, strict=True)
    ]
    return _sent(stages, ready, method)


def test_buckets_that_are_ready_together_share_the_cpu():
    ring = Method("ring", streams=1)
    for work, ready, expected in (
        ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [3.0, 3.0, 3.0]),
        ([3.0, 1.0], [0.0, 0.0], [4.0, 2.0]),
        ([2.0, 2.0], [0.0, 1.0], [3.0, 4.0]),
        ([1.0, 1.0], [0.0, 5.0], [1.0, 6.0]),
    ):
        assert prepared_and_sent(work, ready, ring)[0] == expected


def test_a_bucket_waits_for_the_link_to_be_done_with_an_earlier_one():
    # One stream: two buckets share the CPU, the third begins when the first has been sent.
    prepared, ends = prepared_and_sent([1.0] * 3, [0.0] * 3, Method("2d", streams=1), link=10.0)
    assert prepared == [2.0, 2.0, 13.0] and ends == [12.0, 22.0, 32.0]
    assert prepared_and_sent([1.0] * 3, [0.0] * 3, Method("ring", streams=1))[0] == [3.0] * 3


@pytest.mark.parametrize("method", [Method("ring", streams=2), Method("2d", streams=2)])
def test_the_schedule_is_that_of_small_slices_of_time(method):
    rng = np.random.default_rng(3)
    work, ready = rng.uniform(0, 1, 30).tolist(), np.sort(rng.uniform(0, 5, 30)).tolist()
    link = rng.uniform(0, 1, 30).tolist()
    prepared, ends = prepared_and_sent(work, ready, method, link)
    lead = 4 if method.algorithm == "2d" else 30
    left, time, step, expected, sent = list(work), 0.0, 1e-3, [None] * 30, []
    while len(sent) < 30:
        running = [
            i
            for i in range(30)
            if expected[i] is None
            and ready[i] <= time
            and (i < lead or (len(sent) > i - lead and sent[i - lead] <= time))
        ]
        for i in running:
            left[i] -= step / len(running)
            if left[i] <= 0:
                expected[i] = time
        while len(sent) < 30 and expected[len(sent)] is not None:
            i = len(sent)
            sent.append(max(expected[i], sent[-1] if sent else 0.0) + link[i])
        time += step
    assert prepared == pytest.approx(expected, abs=0.08)
    assert ends == pytest.approx(sent, abs=0.08)


def test_cluster_contention():
    assert lab(4, 2, None).contention == 2.0
    assert Cluster(4, 8, cores_per_host=32).contention == 1 / 8
    assert Cluster(4, 8, cores_per_host=4).contention == 1 / 4
    assert Cluster(2, 4, cores_per_host=2, workers_per_host=2).contention == 1.0


def test_exchange_is_that_of_the_merging_recurrence_where_only_the_link_costs():
    cluster = Cluster(4, 1, 8e8, latency_seconds=1e-3)
    rng = np.random.default_rng(0)
    sizes = [int(s) for s in rng.integers(1, 1 << 20, 50)]
    ready = sorted(rng.uniform(0, 0.2, 50).tolist())
    for streams in (1, 2, 3):
        method = Method(bucket_bytes=1 << 20, streams=streams)
        plan = [bucket for _, bucket in plan_buckets(cluster, method, sizes, ready, FREE)]
        link = bucket_link(cluster, method, FREE)
        end = merging.finish_time(plan, sizes, ready, link)
        predicted = predict(cluster, method, sizes, ready, FREE)
        assert predicted.exposed_seconds == pytest.approx(end - ready[-1])


def test_overlap_hides_what_fits_behind_the_backward_pass():
    cluster = Cluster(4, 1, 1e9)
    ready = np.linspace(0.01, 10, len(SIZES)).tolist()
    overlapped = predict(cluster, Method(bucket_bytes=1 << 20), SIZES, ready)
    assert overlapped.exposed_seconds < 0.1 * overlapped.seconds
    single = predict(cluster, Method(bucket_bytes=None), SIZES, ready)
    assert single.exposed_seconds == pytest.approx(single.seconds)


def test_more_streams_hide_latency_and_adaptive_is_never_worse():
    cluster = Cluster(8, 1, 1e9, latency_seconds=2e-3)
    times = [
        predict(cluster, Method(bucket_bytes=1 << 16, streams=s), SIZES).seconds for s in (1, 2, 4)
    ]
    assert times[0] > times[1] > times[2]
    ready = np.linspace(0.001, 0.3, len(SIZES)).tolist()
    for streams in (1, 2):
        adaptive = predict(cluster, Method(bucket_bytes="adaptive", streams=streams), SIZES, ready)
        for p in range(12, 28):
            fixed = predict(cluster, Method(bucket_bytes=1 << p, streams=streams), SIZES, ready)
            assert adaptive.exposed_seconds <= fixed.exposed_seconds * 1.02


def test_where_each_algorithm_pays():
    sizes = [4096]
    many = Cluster(64, 8, 25e9, latency_seconds=1e-4)
    seconds = {
        m.algorithm: predict(many, m, sizes).seconds
        for m in (Method("ring"), Method("2d"), Method("tree"), Method("grid", worker_grid=(8, 8)))
    }
    # Short messages: the fewest steps win.
    assert seconds["tree"] < seconds["grid"] < seconds["2d"] < seconds["ring"]
    # Long messages: the fewest bytes.
    sizes = [1 << 28]
    assert (
        predict(lab(2, 4, 2e8), Method("2d"), sizes).seconds
        < predict(lab(2, 4, 2e8), Method("ring"), sizes).seconds
    )
    # What top-k gathers grows with the workers, what int8 exchanges does not.
    few, crowd = Cluster(4, 1, 1e8), Cluster(64, 1, 1e8)
    for cluster, better in ((few, "topk"), (crowd, "int8")):  # 1 % of 64 workers is 64 %
        sent = {c: Method(compression=c).sent_share(cluster) for c in ("topk", "int8")}
        assert min(sent, key=sent.get) == better


def test_calibration_recovers_the_constants_that_matter():
    true = TRUE
    methods = [
        Method("ring", bucket_bytes=None, streams=1),
        Method("2d"),
        Method(compression="bfloat16"),
        Method(compression="int8"),
        Method(compression="topk"),
    ]

    def measured(cluster, method):
        p = predict(cluster, method, SIZES, costs=true)
        return Measurement(cluster, method, SIZES, p.seconds, p.cpu_seconds)

    # Runs that differ in workers too: else what a message costs and what its selection costs
    # cannot be told apart.
    seen = [measured(cluster, m) for cluster in (lab(4, 2, 2e8), lab(2, 3, 5e8)) for m in methods]
    fitted = calibrate(seen)
    assert isinstance(fitted, Calibration)
    assert fitted.typical_error < 0.01
    assert "float16" in fitted.undetermined
    assert fitted.costs.float16 == pytest.approx(Costs().float16, rel=1e-3)
    # Eight workers on two cores are twice as crowded as anything that was seen: ten rows do not
    # fix every constant, and there it shows most. It has to stay within the model's 10 %.
    for cluster, tolerance in (
        (lab(2, 4, 1e8), 0.03),
        (lab(4, 1, 5e8), 0.03),
        (lab(8, 1, 1e9), 0.1),
    ):
        for method in methods:
            p = predict(cluster, method, SIZES, costs=fitted.costs)
            unseen = predict(cluster, method, SIZES, costs=true)
            assert p.seconds == pytest.approx(unseen.seconds, rel=tolerance)


def test_calibration_recovers_every_constant_that_its_rows_depend_on():
    names = (None, "bfloat16", "float16", "int8", "topk")
    methods = [Method(compression=name) for name in names]
    # Many small buckets one after another show what a step costs.
    methods += [
        Method("ring", bucket_bytes=None, streams=1),
        Method(bucket_bytes=1 << 16, streams=1),
    ]
    seen = []
    for cluster in (lab(4, 2, 2e8), lab(4, 2, 1e9), lab(2, 1, 1e9)):
        for method in methods:
            p = predict(cluster, method, SIZES, costs=TRUE)
            seen.append(Measurement(cluster, method, SIZES, p.seconds, p.cpu_seconds))
    fitted = calibrate(seen)
    assert not fitted.undetermined
    for name, value in dataclasses.asdict(TRUE).items():
        assert getattr(fitted.costs, name) == pytest.approx(value, rel=0.15), name


def test_calibration_is_not_thrown_by_noise_and_says_how_good_it_is():
    rng = np.random.default_rng(1)
    seen = []
    for rate in (1e8, 1e9):
        for method in (Method("ring", bucket_bytes=None, streams=1), Method("2d")):
            seconds = predict(lab(4, 2, rate), method, SIZES).seconds * rng.uniform(0.95, 1.05)
            seen.append(Measurement(lab(4, 2, rate), method, SIZES, seconds))
    fitted = calibrate(seen)
    assert 0.001 < fitted.typical_error < 0.05
    assert abs(fitted.worst_error) < 0.06
    assert all(value >= 0 for value in dataclasses.asdict(fitted.costs).values())
    wrong = dataclasses.replace(seen[0], seconds=3 * seen[0].seconds)
    assert abs(calibrate([*seen, wrong]).worst_error) > 0.3


def test_starts_without_tensorflow():
    code = (
        "import sys, tfscale.distribute.cost_model as c; c.Cluster, c.calibrate, c.predict; "
        "sys.exit(any(m in sys.modules for m in ('tensorflow', 'tf_keras', 'keras')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Cluster(0), "workers must be a whole number of at least 1, got 0"),
        (lambda: Cluster(2, 1, -1.0), "bits_per_second must be positive or None, got -1.0"),
        (lambda: Cluster(2, 1, workers_per_host=4), "workers_per_host is 4, but there are only 2"),
        (lambda: Cluster(2, latency_seconds=-1), "latency_seconds must be finite"),
        (lambda: Method("star"), "unknown algorithm 'star'"),
        (lambda: Method(compression="zip"), "unknown compression 'zip'"),
        (lambda: Method("ring", "int8"), "ring has no compression"),
        (lambda: Method(ratio=0), "ratio must be above 0"),
        (lambda: Method(bucket_bytes=0), "bucket_bytes must be a positive int"),
        (lambda: Method(streams=0), "streams must be a positive int"),
        (lambda: Method("grid"), "worker_grid belongs to the algorithm 'grid'"),
        (
            lambda: Method("grid", worker_grid=(2, 3)).steps(Cluster(4)),
            "has 6 cells, but there are 4",
        ),
        (lambda: Costs(local=-1.0), "local must be a finite number, not negative, got -1.0"),
        (lambda: calibrate([]), "at least one measurement"),
        (lambda: Measurement(Cluster(2), Method(), (4,), 0.0), "seconds must be positive"),
        (lambda: predict(Cluster(2), Method(), [4, 4], [0.0]), "2 sizes but 1 ready times"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        call()


@pytest.mark.parametrize("name", ["2d", "2d+bfloat16", "2d+float16", "2d+int8", "2d+topk"])
@pytest.mark.parametrize("grid", ["", ":grid=2x2"])
def test_bytes_are_those_that_the_benchmark_expects_of_the_compressors(name, grid):
    from experiments.allreduce.methods import parse_method, payload_bytes
    from experiments.allreduce.shapes import resnet50
    from experiments.simulate.methods import method_of
    from tfscale.distribute import Hierarchical2DAllReduce

    method, shapes = parse_method(name + grid), resnet50()
    compressor = Hierarchical2DAllReduce(**method.arguments()).compressor
    sizes = [4 * int(np.prod(shape)) for shape in reversed(shapes)]
    predicted = predict(Cluster(4, 2, 1e9), method_of(name + grid), sizes)
    expected = payload_bytes(method, shapes, 4, 2, compressor)
    assert predicted.bytes_per_link == pytest.approx(expected, rel=1e-6)
