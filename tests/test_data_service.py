"""The data service's client and command line, without a service: order, gaps, silence, errors."""

import itertools
import logging
import queue
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tfscale.cores import available_cores
from tfscale.data import repair, service_address, service_client

ROWS = 4
NOWHERE = "127.0.0.1:1"


def vectors_of(step, bad=()):
    """Two vectors of the rows of a step; records in `bad` are left out."""
    rows = tf.data.Dataset.range(step * ROWS, (step + 1) * ROWS)
    rows = rows.filter(lambda r: ~tf.reduce_any(r == tf.constant([-1, *bad], tf.int64)))

    def example(row):
        image = tf.fill([2, 2, 3], tf.cast(row % 256, tf.uint8))
        return row, image, tf.cast(row, tf.int32), tf.constant(1.0), tf.identity(row)

    return rows.map(example).batch(3)


def sent(steps, bad=(), sender=vectors_of):
    """What the service sends for `steps`: their vectors, and the empty one that ends each."""
    for step in steps:
        vectors = list(sender(tf.constant(step, tf.int64), bad))
        yield from ((tf.constant(step, tf.int64), *vector) for vector in vectors)
        empty = (tf.zeros([0, *spec.shape[1:]], spec.dtype)
                 for spec in vectors_of(tf.constant(0, tf.int64)).element_spec)  # fmt: skip
        yield (tf.constant(step, tf.int64), *empty)


def ordered(elements, first_step=0, bad=(), probe=lambda step: True, window=8):
    def blocks():
        yield from elements
        queue.Queue().get()  # as TensorFlow does when nothing comes

    steps = service_client._Ordered(
        NOWHERE, first_step, lambda step: vectors_of(step, bad), ROWS, probe, blocks, window
    )
    return steps.vectors()


def positions(vectors, count):
    parts = itertools.islice(vectors, count)
    return np.concatenate([vector[0] for vector in parts]).tolist()


def test_steps_that_come_in_any_order_go_on_in_order():
    order = [5, 3, 4, 8, 7, 6]
    vectors = ordered(sent(order), first_step=3)
    assert positions(vectors, 12) == list(range(12, 36))


def test_a_step_that_never_comes_is_made_here_and_dropped_if_it_comes_late(caplog):
    caplog.set_level(logging.WARNING, "tfscale")
    vectors = ordered(sent([0, 2, 3, 4, 1, 5]), window=3)
    assert positions(vectors, 12) == list(range(24))
    assert "step 1 did not come in time and is made here (1 step(s) so far)" in caplog.text


def test_vectors_of_one_step_may_come_between_those_of_another():
    first, second = list(sent([0])), list(sent([1]))
    mixed = [x for pair in zip(first, second, strict=True) for x in pair]
    assert positions(ordered(mixed), 4) == list(range(8))


def test_a_gap_is_left_for_the_repair_to_find():
    vectors = ordered(sent([0, 1], bad=[2, 6]), bad=[2, 6])
    assert positions(vectors, 2) == [0, 1, 3, 4, 5, 7]


def test_a_step_of_bad_records_only_asks_the_repair():
    bad = [*range(4, 8)]
    asked = []
    good = ordered(sent([0, 1, 2], bad), bad=bad, probe=lambda step: asked.append(step) or True)
    assert positions(good, 4) == [0, 1, 2, 3, 8, 9, 10, 11] and asked == [1]
    poisoned = ordered(sent([0, 1, 2], bad), bad=bad, probe=lambda step: False)
    *_, last = itertools.islice(poisoned, 3)
    assert last[0].tolist() == [4] and last[-1].tolist() == [repair.POISON]


def test_a_service_that_cannot_see_the_records_is_named():
    nothing = lambda step, bad: vectors_of(step, range(100))  # noqa: E731
    vectors = ordered(sent([0], sender=nothing))
    with pytest.raises(ValueError, match=r"could read no record of step 0.*same paths"):
        next(vectors)


def test_silence_is_mentioned_and_then_an_error(monkeypatch, caplog):
    monkeypatch.setattr(service_client, "MENTION_SECONDS", 0.1)
    monkeypatch.setattr(service_client, "GONE_SECONDS", 0.3)
    monkeypatch.setattr(service_client, "GIVE_UP_SECONDS", 0.3)
    vectors = ordered(list(sent([0])))
    assert positions(vectors, 2) == [0, 1, 2, 3]
    with pytest.raises(ConnectionError, match=f"{NOWHERE} has sent nothing.*does not answer"):
        next(vectors)
    assert caplog.text.count("step 1 waits for it") == 2
    monkeypatch.setattr(service_address, "answers", lambda address: True)
    with pytest.raises(ConnectionError, match="no data worker sends anything"):
        next(ordered([]))


def test_an_error_of_the_service_carries_its_address():
    def fails():
        raise tf.errors.NotFoundError(None, None, "Op type not registered 'TfscaleReadRecords'")
        yield

    with pytest.raises(RuntimeError, match=f"data service at {NOWHERE} failed: Op.*C ops: install"):
        next(ordered(fails()))


def test_the_reader_of_an_abandoned_pass_ends():
    before = set(threading.enumerate())
    vectors = ordered(itertools.cycle(list(sent([0]))))
    next(vectors)
    (reader,) = set(threading.enumerate()) - before
    vectors.close()
    reader.join(5)
    assert not reader.is_alive()


def test_what_only_this_process_can_run_is_refused():
    steps = tf.data.Dataset.range(3)
    python = steps.map(lambda x: tf.numpy_function(lambda y: y, [x], tf.int64))
    with pytest.raises(ValueError, match="cannot run Python.*PyFunc"):
        service_client._refuse_local(python)
    table = tf.lookup.experimental.MutableHashTable(
        tf.int64, tf.int64, 0, experimental_is_anonymous=True
    )
    with pytest.raises(ValueError, match="use no cache with it"):
        service_client._refuse_local(steps.map(table.lookup))
    service_client._refuse_local(service_client._made_by_service(0, vectors_of, 2))


def test_a_port_where_another_program_listens(monkeypatch):
    monkeypatch.setattr(service_client, "REGISTER_SECONDS", 0.5)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"{address} has not answered.*another program"):
            service_client.distribute(address, 0, vectors_of, ROWS, lambda step: True)


def test_nobody_at_the_address():
    start = time.monotonic()
    with pytest.raises(ConnectionError, match=f"no data service answers at {NOWHERE}"):
        service_address.wait_for(NOWHERE, seconds=0.5)
    assert time.monotonic() - start < 5


def test_a_proxy_in_between_is_named(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    with pytest.raises(ConnectionError, match="export no_proxy=10.0.0.7"):
        service_address.wait_for("10.0.0.7:5050")


def test_addresses(monkeypatch):
    monkeypatch.delenv(service_address.VARIABLE, raising=False)
    assert service_address.resolve(None) is None
    assert service_address.resolve("grpc://[::1]:5050") == "[::1]:5050"
    monkeypatch.setenv(service_address.VARIABLE, "grpc://node:5050")
    assert service_address.resolve(None) == "node:5050"
    assert service_address.resolve("other:1") == "other:1"
    monkeypatch.setenv(service_address.VARIABLE, "node")
    with pytest.raises(ValueError, match="TFSCALE_DATA_SERVICE='node' has no port"):
        service_address.resolve(None)
    with pytest.raises(ValueError, match="data_service='http://node:1' has a scheme"):
        service_address.resolve("http://node:1")
    with pytest.raises(TypeError, match="data_service=5050"):
        service_address.resolve(5050)


def program(*arguments, module="tfscale.data.service"):
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_the_program_explains_itself_and_its_errors():
    shown = program("--help")
    assert shown.returncode == 0 and "--dispatcher=10.0.0.7:5050" in shown.stdout
    assert "listen on every interface" in shown.stdout
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        for arguments, message in {
            (f"--port={taken}",): f"--port={taken} is in use",
            ("--workers=0",): "'0' must be a whole number of at least 1",
            (f"--dispatcher=127.0.0.1:{taken}", "--port=5050"): "--dispatcher starts none",
            ("--dispatcher=127.0.0.1",): "has no port",
        }.items():
            done = program(*arguments)
            assert done.returncode == 2 and message in done.stderr, done.stderr


def test_what_the_launcher_would_start():
    arguments = ("--workers=2", "--data_service=3", "--first_port=21000", "--dry_run")
    done = program(*arguments, "tests/conftest.py", module="launch.local")
    assert done.returncode == 0, done.stderr
    cores = max(1, available_cores() // 5)
    first, *workers, service = done.stdout.split("\n# ")
    assert f"data service of 3 x {cores}" in first
    for worker in workers:
        assert "TFSCALE_DATA_SERVICE=grpc://127.0.0.1:21002" in worker
        assert f"OMP_NUM_THREADS={cores} " in worker
    assert f"tfscale.data.service --port=21002 --workers=3 --threads={cores}" in service
    done = program("--first_port=65534", *arguments[:2], "tests/conftest.py", module="launch.local")
    assert done.returncode == 2 and "leaves no room below port 65536" in done.stderr
