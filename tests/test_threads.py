"""How many cores and how many calls: the share of a process, trials on live sources, memory."""

import json
import math
import os
import threading
import time

import pytest
import tensorflow as tf

from launch import local
from tests import record_files
from tfscale import cores
from tfscale.data import records, thread_memory, threads

# ---------------------------------------------------------------- cores


@pytest.fixture
def groups(monkeypatch, tmp_path):
    """Control groups in a folder, and 64 cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    monkeypatch.setattr(cores, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cores, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.delenv(cores.LOCAL_WORKERS, raising=False)

    def make(membership, **files):
        (tmp_path / "membership").write_text(membership)
        for path, text in files.items():
            path = tmp_path / "cgroup" / path.replace("__", "/").replace("--", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return cores.available_cores()

    return make


@pytest.mark.parametrize(
    "text, expected",
    [("200000 100000", 2), ("150000 100000", 2), ("max 100000", 64), ("", 64), ("x y", 64)],
)
def test_cores_respect_a_container_limit(groups, text, expected):
    assert groups("0::/\n", **{"cpu--max": text}) == expected


def test_cores_respect_the_limits_of_outer_groups(groups):
    job = {"a__cpu--max": "300000 100000", "a__b__cpu--max": "max 100000"}
    assert groups("0::/a/b\n", **job) == 3
    assert groups("0::/a/b\n", **{"a__b__cpu--max": "50000 100000"}) == 1
    # In a container the path is often the host's, and its own group is the root.
    assert groups("0::/of/the/host\n", **{"cpu--max": "500000 100000"}) == 5


@pytest.mark.parametrize("quota, expected", [("300000", 3), ("-1", 64), ("0", 64)])
def test_cores_respect_old_control_groups(groups, quota, expected):
    files = {"cpu__job__cpu--cfs_quota_us": quota, "cpu__job__cpu--cfs_period_us": "100000"}
    assert groups("5:memory:/x\n3:cpu,cpuacct:/job\n", **files) == expected


def test_workers_share_the_cores(groups, monkeypatch):
    assert groups("") == 64 == cores.usable_cores() == threads.usable_cores()
    for workers, share in [("4", 16), ("3", 21), ("100", 1), ("", 64)]:
        monkeypatch.setenv(cores.LOCAL_WORKERS, workers)
        assert cores.usable_cores() == share
    for bad in ("0", "-1", "two", "1.5"):
        monkeypatch.setenv(cores.LOCAL_WORKERS, bad)
        with pytest.raises(ValueError, match=f"TFSCALE_LOCAL_WORKERS='{bad}'"):
            cores.usable_cores()


# ---------------------------------------------------------------- trials


def source(read, batch=8):
    """`make_dataset` of a source whose records are read by ``read(number)``."""

    def make(calls, step):
        def numbered(number):
            return tf.ensure_shape(tf.numpy_function(read, [number], tf.int64), [])

        dataset = tf.data.Dataset.counter(step * batch)
        dataset = dataset.map(numbered, num_parallel_calls=calls).batch(batch).prefetch(2)
        options = tf.data.Options()
        options.autotune.enabled = False
        options.threading.private_threadpool_size = calls
        return dataset.with_options(options)

    return make


def far(number):
    time.sleep(0.02)
    return number


@pytest.mark.alone
def test_a_slow_source_gets_many_calls_and_is_remembered(tmp_path):
    lines, file, key = [], tmp_path / "new" / "threads.json", {"source": "gs://far"}
    calls = threads.tuned_calls(source(far), [1, 2, 4, 8], key, file, lines.append)
    assert calls == 8, lines
    assert lines[0].startswith("input threads: 8 (measured 1: "), lines
    assert lines[0].endswith(f"remembered in {file}")
    entry = json.loads(file.read_text())["entries"][0]
    assert entry["calls"] == 8 and entry["key"] == key and "8" in entry["images_per_second"]

    def never(calls, step):
        pytest.fail("measured again")

    assert threads.tuned_calls(never, [1, 2, 4, 8], key, file, lines.append) == 8
    assert "remembered in" in lines[1] and "delete it to measure again" in lines[1]


@pytest.mark.alone
def test_where_more_calls_bring_nothing_few_are_kept():
    one_at_a_time = threading.Lock()

    def narrow(number):
        with one_at_a_time:
            time.sleep(0.01)
        return number

    lines = []
    assert threads.tuned_calls(source(narrow), [2, 4, 8], log=lines.append) == 2
    assert lines[0].count(":") == 3, "no third trial once the second has brought nothing"


def test_fewest_of_those_that_are_as_fast():
    assert threads._kept({2: 310, 4: 590, 8: 640}) == 8
    assert threads._kept({2: 310, 4: 620, 8: 640}) == 4
    assert threads.doubled(2) == [2, 4, 8, 16, 32, 64] and threads.doubled(96) == [96]


def test_a_source_that_does_not_answer_gets_the_most_calls(monkeypatch, tmp_path):
    monkeypatch.setattr(threads, "PATIENCE", 0.3)
    stuck, lines, file = threading.Event(), [], tmp_path / "threads.json"

    def read(number):
        stuck.wait(20)
        return number

    start = time.monotonic()
    assert threads.tuned_calls(source(read), [2, 4, 8], {}, file, lines.append) == 8
    assert time.monotonic() - start < 5
    assert "the source is slow" in lines[0] and not file.exists()
    stuck.set()


def test_a_trial_that_fails_is_left_to_the_run(tmp_path):
    def read(number):
        raise ValueError("bad record 7")

    lines, file = [], tmp_path / "threads.json"
    assert threads.tuned_calls(source(read), [2, 4], {}, file, lines.append) == 2
    assert "not measured further" in lines[0] and "bad record 7" in lines[0]
    assert not file.exists()


def test_trials_read_other_records_and_end_with_a_finite_dataset():
    begun = []

    def make(calls, step):
        begun.append(step)
        return source(lambda number: number)(calls, step).take(3)

    assert threads.tuned_calls(make, [1, 2, 4], log=lambda line: None) in (1, 2, 4)
    assert begun == sorted(set(begun)) and begun[0] == 0
    assert all(b - a >= 3 for a, b in zip(begun[:-1], begun[1:], strict=True))


def test_trials_can_be_made_while_a_function_is_traced():
    found = []

    @tf.function
    def traced():
        found.append(threads.tuned_calls(source(far), [1, 4], log=lambda line: None))
        return 0

    traced()
    assert found == [4]


def test_choose(tmp_path, monkeypatch):
    monkeypatch.setenv(thread_memory.FILE, str(tmp_path / "threads.json"))
    record_files.write(tmp_path, [8])
    contract = records.describe(str(tmp_path), "train", 4)
    assert threads.choose(3, None, contract, (32, 32)) == 3
    # So few records are read in less time than trials would take.
    assert threads.choose("auto", None, contract, (32, 32)) == threads.usable_cores()
    for bad, error in [("many", ValueError), (0, ValueError), (1.5, TypeError), (True, TypeError)]:
        with pytest.raises(error, match=f"threads={bad!r}"):
            threads.choose(bad, None, contract, (32, 32))
    monkeypatch.setattr(threads, "FEW_RECORDS", 1)
    monkeypatch.setattr(cores, "available_cores", lambda: 1)
    assert threads.choose("auto", source(far), contract, (32, 32), cache=None) > 4
    (entry,) = json.loads((tmp_path / "threads.json").read_text())["entries"]
    assert entry["key"]["source"] == str(tmp_path) and entry["key"]["image_size"] == [32, 32]
    assert entry["key"]["cores"] == 1 and "cache" in entry["key"]


# ---------------------------------------------------------------- memory


def test_a_file_that_is_not_ours_is_left_alone(tmp_path):
    file = tmp_path / "threads.json"
    entry = {"key": {"a": 1}, "calls": True}
    damaged = json.dumps({"format": thread_memory.FORMAT, "entries": [entry]})
    for text in ("{", "[]", '"x"', '{"format": "other"}', '{"entries": 3}', damaged, "\udcff"):
        file.write_text(text, errors="surrogateescape")
        before, lines = file.read_bytes(), []
        assert thread_memory.recall(file, {"a": 1}, lines.append) is None
        assert len(lines) == 1 and str(file) in lines[0] and "delete it" in lines[0], lines
        assert not thread_memory.remember(file, {"a": 1}, 2, {}, lines.append)
        assert len(lines) == 2 and file.read_bytes() == before, text


def test_a_file_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    lines = []
    assert not thread_memory.remember(tmp_path / "file" / "x.json", {}, 2, {}, lines.append)
    assert len(lines) == 1 and "not remembered" in lines[0]
    calls = threads.tuned_calls(source(far), [1, 2], {}, tmp_path / "file" / "x.json", lines.append)
    assert calls == 2


def test_many_can_remember_at_once(tmp_path):
    file, lines = tmp_path / "threads.json", []

    def remember(number):
        thread_memory.remember(file, {"n": number}, number + 1, {}, lines.append)

    writers = [threading.Thread(target=remember, args=(n,)) for n in range(12)]
    [t.start() for t in writers]
    [t.join() for t in writers]
    assert lines == []
    assert [thread_memory.recall(file, {"n": n}, print) for n in range(12)] == list(range(1, 13))
    thread_memory.remember(file, {"n": 3}, 40, {}, print)
    assert thread_memory.recall(file, {"n": 3}, print) == 40
    assert sorted(p.name for p in tmp_path.iterdir()) == ["threads.json", "threads.json.lock"]


def test_a_lock_that_is_held_does_not_hold_us_up(tmp_path, monkeypatch):
    monkeypatch.setattr(thread_memory, "LOCK_SECONDS", 0.1)
    file, lines = tmp_path / "threads.json", []
    with thread_memory._locked(f"{file}.lock"):
        assert not thread_memory.remember(file, {}, 2, {}, lines.append)
    assert "another process holds" in lines[0]


def test_where_the_memory_is(monkeypatch):
    monkeypatch.delenv(thread_memory.FILE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert thread_memory.default_file() == "/cache/tfscale/threads.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert thread_memory.default_file() == "/home/me/.cache/tfscale/threads.json"
    monkeypatch.setenv(thread_memory.FILE, "/else")
    assert thread_memory.default_file() == "/else"


# ---------------------------------------------------------------- workers of one host

COUNT = """
import json, os, sys
import tensorflow as tf
from tfscale.data import images, threads
def count():
    return len(os.listdir("/proc/self/task"))
tf.zeros([64, 64]) @ tf.zeros([64, 64])
before = count()
dataset = images.train_dataset(sys.argv[1], 8, 32)
for _ in dataset.take(8):
    during = count()
print(json.dumps([threads.usable_cores(), before, during]))
"""


@pytest.mark.slow
def test_threads_of_several_workers_are_bounded(tmp_path, capfd, monkeypatch):
    monkeypatch.delenv(cores.LOCAL_WORKERS, raising=False)
    record_files.write(tmp_path, [16])
    records.describe(str(tmp_path), "train", 8)
    (tmp_path / "count.py").write_text(COUNT)
    argv = ["--workers=4", str(tmp_path / "count.py"), "--", str(tmp_path)]
    assert local.main(argv) == 0
    lines = [line.split("] ")[-1] for line in capfd.readouterr().out.splitlines()]
    found = [json.loads(line) for line in lines if line.startswith("[")]
    assert len(found) == 4
    share = max(1, cores.available_cores() // 4)
    for own, before, during in found:
        assert own == share
        # The pipeline: its pool, and threads that wait for a buffer to empty.
        assert during - before <= 12 + 2 * share, (before, during)
        assert during <= 40 + 6 * share and math.isfinite(during)
