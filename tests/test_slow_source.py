"""The slow source: its rate, its bytes, its errors, and tfscale's datasets on it."""

import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from experiments.input import slow_source
from tests import record_files


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a file.bin"
    path.write_bytes(np.random.RandomState(0).bytes(300_000))
    return path


def read(path):
    with tf.io.gfile.GFile(str(path), "rb") as opened:
        return opened.read()


@pytest.mark.parametrize(
    ("text", "rate"),
    [("5MB", 5_000_000), (5_000_000, 5_000_000), ("1.5 kib/s", 1536), (2.5e6, 2_500_000)],
)
def test_rates_as_people_write_them(text, rate):
    assert slow_source.parse_rate(text) == rate
    assert slow_source.parse_rate("none") is None


@pytest.mark.parametrize("text", ["", "fast", "5mbit", "-1", 0, "1.2.3MB", "1e30MB"])
def test_a_rate_that_is_none_is_named(text):
    with pytest.raises(ValueError, match=r"bytes_per_second=.* is no rate"):
        slow_source.register(text)


@pytest.mark.parametrize("text", ["soon", -1, "nan", 1e9])
def test_a_latency_that_is_none_is_named(text):
    with pytest.raises(ValueError, match=r"latency_seconds=.* is no latency"):
        slow_source.register("none", text)


def test_the_environment_gives_the_defaults_and_is_named(monkeypatch, file):
    monkeypatch.setenv("SLOW_BYTES_PER_SECOND", "3MB")
    started = time.monotonic()
    assert read(slow_source.register() + str(file)) == file.read_bytes()
    assert time.monotonic() - started >= 0.099
    monkeypatch.setenv("SLOW_LATENCY_SECONDS", "long")
    with pytest.raises(ValueError, match="SLOW_LATENCY_SECONDS='long'"):
        slow_source.register()


def test_bytes_arrive_no_faster_than_the_rate_and_are_the_file_s(file):
    prefix, before = slow_source.register(1_000_000), slow_source.bytes_read()
    started = time.monotonic()
    assert read(prefix + str(file)) == file.read_bytes()
    assert time.monotonic() - started >= 0.299
    assert slow_source.bytes_read() - before == 300_000
    slow_source.register("none")
    assert read(prefix + str(file)) == file.read_bytes()
    assert slow_source.bytes_read() - before == 600_000


def test_threads_share_the_rate(file):
    path = slow_source.register(2_000_000) + str(file)
    threads = [threading.Thread(target=read, args=(path,)) for _ in range(3)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - started >= 0.449


def test_every_request_waits_for_the_latency(file):
    path = slow_source.register("none", 0.05) + str(file)
    before, started = slow_source.requests(), time.monotonic()
    assert tf.io.gfile.exists(path)
    assert tf.io.gfile.stat(path).length == 300_000
    assert tf.io.read_file(path).numpy() == file.read_bytes()
    requests = slow_source.requests() - before
    assert requests >= 3
    assert time.monotonic() - started >= 0.0499 * requests


@pytest.mark.slow
def test_processes_share_a_link(tmp_path, file):
    link, prefix = tmp_path / "link", slow_source.register(100_000_000)
    slow_source.register(100_000_000, shared=str(link))
    assert slow_source.bytes_read() == 0
    program = (
        "import sys; from experiments.input import slow_source\n"
        "slow_source.register(100_000_000, shared=sys.argv[1])\n"
        "import tensorflow as tf; tf.io.read_file(sys.argv[2])"
    )
    subprocess.run([sys.executable, "-c", program, link, prefix + str(file)], check=True)
    assert slow_source.bytes_read() == 300_000
    with pytest.raises(OSError, match="cannot be written: No such file"):
        slow_source.register("none", shared=str(tmp_path / "nowhere" / "link"))


def test_listing_and_patterns(tmp_path):
    for name in ("b.txt", "a.txt", "c.bin"):
        (tmp_path / name).write_text(name)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "d.txt").write_text("d")
    root = slow_source.register("none") + str(tmp_path)
    assert sorted(tf.io.gfile.listdir(root)) == ["a.txt", "b.txt", "c.bin", "folder"]
    assert sorted(tf.io.gfile.glob(root + "/*.txt")) == [root + "/a.txt", root + "/b.txt"]
    assert tf.io.gfile.glob(root + "/fold*/?.txt") == [root + "/folder/d.txt"]
    assert tf.io.gfile.isdir(root + "/folder") and not tf.io.gfile.isdir(root + "/a.txt")
    assert [files for _, _, files in tf.io.gfile.walk(root)][1] == ["d.txt"]
    local, slow = ((tmp_path / "a.txt").stat(), tf.io.gfile.stat(root + "/a.txt"))
    assert (slow.length, slow.mtime_nsec) == (local.st_size, local.st_mtime_ns)


def test_errors_name_the_path(tmp_path):
    root = slow_source.register("none") + str(tmp_path)
    with pytest.raises(tf.errors.NotFoundError, match=f"{root}/no; No such file"):
        tf.io.read_file(root + "/no")
    with pytest.raises(tf.errors.NotFoundError, match=f"{root}/no"):
        tf.io.gfile.listdir(root + "/no")
    with pytest.raises(tf.errors.FailedPreconditionError, match=f"{root}; Is a directory"):
        read(root)
    with pytest.raises(tf.errors.UnimplementedError, match=f"{root}/new"):
        tf.io.gfile.GFile(root + "/new", "w").write("x")
    assert not tf.io.gfile.exists(root + "/no")


@pytest.mark.slow
def test_records_are_the_same_as_from_the_plain_path(tmp_path):
    from tfscale.data import train_dataset

    record_files.write(tmp_path, [5, 7])
    root = slow_source.register("none") + str(tmp_path)
    paths = sorted(tf.io.gfile.glob(root + "/train-*"))
    frames = list(tf.data.TFRecordDataset(paths).as_numpy_iterator())
    assert frames == [record_files.serialised(number) for number in range(12)]
    slow, plain = (
        record_files.take(train_dataset(folder, 4, 16, seed=3), 7) for folder in (root, tmp_path)
    )
    for one, other in zip(slow, plain, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])


def test_without_a_compiler_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="there is no gcc to build it: apt-get install gcc"):
        slow_source.build()


def test_a_program_runs_with_the_scheme(tmp_path, file, capsys):
    from experiments.input.slow_source import __main__ as command

    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nimport tensorflow as tf\nprint(len(tf.io.read_file(sys.argv[1]).numpy()))"
    )
    before = list(sys.argv), list(sys.path)
    try:
        assert command.main(["--rate=none", str(program), f"slow://{file}"]) == 0
    finally:
        sys.argv[:], sys.path[:] = before
    assert capsys.readouterr().out == "300000\n"
    assert command.main(["--rate=fast", str(program)]) == 2
    assert "bytes_per_second='fast' is no rate" in capsys.readouterr().err
    assert command.main([str(tmp_path / "no.py")]) == 2
    assert "no.py is no file" in capsys.readouterr().err
