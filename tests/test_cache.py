"""Caches change nothing but the place that is read from."""

import fcntl
import gc
import logging
import os
import pathlib
import signal
import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from tests import record_files
from tests.record_files import context, take
from tfscale.data import (
    cache,
    cache_budget,
    cache_key,
    cache_log,
    cache_pictures,
    cache_tiers,
    images,
    jpeg,
    native,
    reading,
    records,
)
from tfscale.data.cache import Cache

SHORT = 20


@pytest.fixture(autouse=True)
def log(caplog):
    caplog.set_level(logging.INFO, "tfscale")
    yield caplog
    restart()


def restart():
    """Lets go of all logs, as the end of the process does."""
    for tier in list(cache_tiers._open_tiers.values()) + others:
        if tier._writer:
            fcntl.flock(tier._writer.file, fcntl.LOCK_UN)
    cache_tiers._open_tiers.clear()
    others.clear()


others = []


def another_process():
    """Makes the next cache that is opened that of another process."""
    others.extend(cache_tiers._open_tiers.values())
    cache_tiers._open_tiers.clear()


def contract_of(folder, owned=None, split="train"):
    index = records.find(str(folder), split)
    owned = np.arange(index.num_records) if owned is None else np.asarray(owned, np.int64)
    return types.SimpleNamespace(index=index, owned=lambda worker: owned)


def opened(kept, contract):
    return cache.create(kept, (16, 16), contract, 0)


def reader(store, contract, threads=4):
    """A dataset of what a store returns for its owned records."""
    files, offsets, _ = contract.index.locations()
    paths, files, offsets = (
        tf.constant(contract.index.paths),
        tf.constant(files),
        tf.constant(offsets),
    )
    load = store.picture if store.decoded else lambda *place: (store.example(*place),)
    dataset = tf.data.Dataset.from_tensor_slices(contract.owned(0))
    return dataset.map(
        lambda i: load(i, paths[files[i]], offsets[i]), num_parallel_calls=threads
    )  # fmt: skip


def values(dataset):
    return [tuple(part.numpy() for part in element) for element in dataset]


def expected(contract, decoded):
    """What every cache must return, without one: by TensorFlow's own reader, one by one."""
    found = []
    for payload in tf.data.TFRecordDataset(contract.index.paths):
        if not decoded:
            found.append((payload.numpy(),))
            continue
        encoded, label = reading.parse(payload)[:2]
        found.append((jpeg.shrink(jpeg.decode(encoded), decoded).numpy(), label.numpy()))
    return [found[record] for record in contract.owned(0)]


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def break_source(contract):
    """Makes reading any record of the source an error."""
    for path in contract.index.paths:
        pathlib.Path(path).write_bytes(b"")


def served_without_source(store, contract):
    """Which of the owned records a store returns when the source is broken."""
    break_source(contract)
    files, offsets, _ = contract.index.locations()
    load, found = (store.picture if store.decoded else store.example), []
    for record in contract.owned(0):
        try:
            load(tf.constant(record), contract.index.paths[files[record]], offsets[record])
            found.append(int(record))
        except tf.errors.OpError:
            pass
    return found


@pytest.mark.parametrize("decoded", [None, SHORT])
@pytest.mark.parametrize("tiers", [("memory",), ("disk",), ("memory", "disk")])
def test_later_epochs_are_the_same_without_the_source(tmp_path, tiers, decoded):
    contract = contract_of(record_files.write(tmp_path, [9, 8]))
    wanted = expected(contract, decoded)
    folder = str(tmp_path / "cache") if "disk" in tiers else None
    store = opened(Cache(**dict.fromkeys(tiers, "auto"), decoded=decoded, folder=folder), contract)
    assert store.decoded == bool(decoded)
    dataset = reader(store, contract)
    assert_same(values(dataset), wanted)
    break_source(contract)
    for _ in range(2):
        assert_same(values(dataset), wanted)


@pytest.mark.parametrize("decoded", [None, SHORT])
@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_a_budget_is_kept_to_the_byte_and_the_rest_is_read_through(tmp_path, tier, decoded):
    contract = contract_of(record_files.write(tmp_path, [10]))
    wanted = expected(contract, decoded)
    sizes = contract.index.locations()[2]
    if decoded:
        sizes = cache_pictures.sizes(*contract.index.sizes(), decoded)
        assert sizes.tolist() == [80 + image.size for image, _ in wanted]
    sizes = sizes + (cache_log.OVERHEAD if tier == "disk" else cache_tiers.MEMORY_OVERHEAD)
    for budget, fit in ((int(sizes[:4].sum()), 4), (int(sizes[:4].sum()) - 1, 3)):
        folder = tmp_path / f"cache-{fit}"
        there = {"folder": folder} if tier == "disk" else {}
        store = opened(Cache(**{tier: budget}, decoded=decoded, **there), contract)
        dataset = reader(store, contract)
        for _ in range(3):  # no growth either
            assert_same(values(dataset), wanted)
        if tier == "disk":
            on_disk = sum(path.stat().st_size for path in folder.rglob("log-*"))
            assert on_disk == sizes[:fit].sum() <= budget
        else:
            assert store._tiers[0]._payloads.size() == fit
    intact = [pathlib.Path(path).read_bytes() for path in contract.index.paths]
    assert served_without_source(store, contract) == list(range(3))
    pathlib.Path(contract.index.paths[0]).write_bytes(intact[0])
    assert_same(values(dataset), wanted)


def test_disk_takes_first_what_memory_has_no_room_for(tmp_path, log):
    contract = contract_of(record_files.write(tmp_path, [10]), owned=[1, 3, 5, 7, 9])
    sizes = contract.index.locations()[2]
    memory = int(sizes[[1, 3]].sum() + 2 * cache_tiers.MEMORY_OVERHEAD)
    for last, share in ((7, 40), (1, 80)):  # 5, 7, 9, and then 1, which memory has as well
        disk = int(np.sum(sizes[[5, 7, 9, 1][: share // 20]] + cache_log.OVERHEAD))
        kept = Cache(memory=memory, disk=disk, folder=tmp_path / f"cache-{last}")
        store = opened(kept, contract)
        assert log.messages[-1].startswith("cache [train]: 5 records of worker 0, encoded, ")
        assert "has room for 40%, the rest is read through; disk " in log.messages[-1]
        assert f"has 0% from earlier runs, and room for {share}%" in log.messages[-1]
        values(reader(store, contract))
        assert store._tiers[1].has(np.arange(10)).sum() == share // 20
        assert store._tiers[1].has(np.array([5, 7, last])).all()
    restart()
    store = opened(kept, contract)
    assert (
        "has 80% from earlier runs, and room for 80%, the rest is read through" in log.messages[-1]
    )
    assert_same(values(reader(store, contract)), expected(contract, None))
    assert served_without_source(store, contract) == [1, 3, 5, 7, 9]


def test_pictures_of_unknown_size_never_take_more_than_was_reckoned(tmp_path):
    wide = record_files.encode(record_files.picture(0, 30, 90))
    square = record_files.encode(record_files.picture(1, 60, 60))
    contract = contract_of(record_files.write(tmp_path, [3], encoded={0: wide, 1: square}))
    index = contract.index
    unknown = types.SimpleNamespace(
        num_records=3, split="train", directory=index.directory, paths=index.paths,
        locations=index.locations, sizes=lambda: (np.zeros(3), np.zeros(3)), digest=index.digest,
    )  # fmt: skip
    contract.index = unknown
    reckoned = 80 + 3 * SHORT * 2 * SHORT
    for tier, overhead in (
        ("memory", cache_tiers.MEMORY_OVERHEAD), ("disk", cache_log.OVERHEAD),
    ):  # fmt: skip
        there = {"folder": tmp_path / "cache"} if tier == "disk" else {}
        budget = 3 * (reckoned + overhead)
        store = opened(Cache(**{tier: budget}, decoded=SHORT, **there), contract)
        assert_same(values(reader(store, contract)), expected(contract, SHORT))
        if tier == "memory":
            assert store._tiers[0]._payloads.size() == 2  # 3:1 is more than was reckoned
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("log-*")) <= budget


def folders(root):
    return {path.parent.relative_to(root) for path in root.rglob(cache_log.LOGS)}


def test_another_state_of_the_source_is_another_cache_and_the_old_one_goes(tmp_path, log):
    source, root = tmp_path / "source", tmp_path / "cache"
    source.mkdir()
    contract = contract_of(record_files.write(source, [6]))
    values(reader(opened(Cache(disk="auto", folder=root), contract), contract))
    values(reader(opened(Cache(disk="auto", folder=root, decoded=SHORT), contract), contract))
    record_files.write(source, [4], split="other")
    other = contract_of(source, split="other")
    values(reader(opened(Cache(disk="auto", folder=root), other), other))
    first = folders(root)
    assert len(first) == 3
    path = pathlib.Path(contract.index.paths[0])

    # The same size and lengths, written anew.
    content = path.read_bytes()
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    assert cache_key.folder_of(root, contract.index, None).relative_to(root) not in first
    held = opened(Cache(disk="auto", folder=root), contract)
    assert folders(root) > first, "a log that somebody writes must stay"
    assert served_without_source(held, contract) == []
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    restart()
    values(reader(opened(Cache(disk="auto", folder=root), contract), contract))
    left = folders(root)
    assert len(left) == 2 and len(left & first) == 1  # of the other split
    assert "its source has changed since" in log.text
    restart()

    # Another size: the index is another one.
    record_files.write(source, [7])
    pathlib.Path(source, "train.index.json").unlink()
    contract = contract_of(source)
    store = opened(Cache(disk="auto", folder=root), contract)
    assert "has 0%" in log.messages[-1]
    assert_same(values(reader(store, contract)), expected(contract, None))
    assert len(folders(root)) == 2


CHILD = """
import json, os, sys, types
import numpy as np
import tensorflow as tf
from tfscale.data import cache, records
folder, root = sys.argv[1:]
index = records.find(folder)
contract = types.SimpleNamespace(index=index, owned=lambda worker: np.arange(0, 24, 2))
store = cache.create(cache.Cache(disk="auto", folder=root), (16, 16), contract, 0)
files, offsets, _ = index.locations()
for record in range(0, 16, 2):
    store.example(tf.constant(record, tf.int64), index.paths[files[record]], offsets[record])
log = store._tiers[0]._writer.path
with open(log, "ab") as file:
    file.write(b"a frame that is not finished")
with open(log.with_suffix(".places"), "ab") as file:
    file.write(b"nor is this")
print("ready", log, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_two_processes_at_once_and_one_killed_in_its_first_epoch(tmp_path, log):
    source, root = tmp_path / "source", tmp_path / "cache"
    source.mkdir()
    contract_of(record_files.write(source, [24]))
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(source), str(root)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        said, path = child.stdout.readline().split()
        assert said == "ready"
        mine = contract_of(source, owned=range(1, 24, 2))
        kept = Cache(disk="auto", folder=root)
        store = opened(kept, mine)
        assert_same(values(reader(store, mine)), expected(mine, None))
        unfinished = pathlib.Path(path).read_bytes()
        assert unfinished.endswith(b"not finished"), "a log that is being written was cut"
        # What the other process has written can be read meanwhile.
        theirs = contract_of(source, owned=range(0, 16, 2))
        assert_same(values(reader(store, theirs)), expected(theirs, None))
        assert store._tiers[0]._written == mine.index.locations()[2][1::2].sum() + 12 * (
            cache_log.OVERHEAD
        )
        child.send_signal(signal.SIGKILL)
        child.wait(20)
    finally:
        child.kill()
        child.wait(20)
        child.stdin.close()
        child.stdout.close()
    restart()
    log.clear()
    everything = contract_of(source)
    wanted = expected(everything, None)
    store = opened(kept, everything)
    assert f"cut 28 unfinished bytes off {path}" in log.text
    assert "has 83% from earlier runs, and room for 100%" in log.messages[-1]  # 8 and 12 of 24
    assert_same(values(reader(store, everything)), wanted)
    assert served_without_source(store, everything) == list(range(24))


def test_a_cache_outlives_another_number_of_workers(tmp_path, log):
    source, root = tmp_path / "source", tmp_path / "cache"
    source.mkdir()
    record_files.write(source, [12])
    kept = Cache(disk="auto", folder=root)
    written = []
    for workers in (2, 3, 1):
        log.clear()
        stores = []
        for worker in range(workers):
            contract = contract_of(source, owned=range(worker, 12, workers))
            another_process()
            stores.append((opened(kept, contract), contract))
        for store, contract in stores:
            assert_same(values(reader(store, contract)), expected(contract, None))
        written.append([store._tiers[0]._written for store, _ in stores])
        restart()
        assert ("has 100%" in log.text) == (workers != 2)
    assert min(written[0]) > 0 and written[1:] == [[0, 0, 0], [0]]
    # Empty logs of those that had nothing to write are removed by the next.
    opened(kept, contract)
    assert len(list(root.rglob(cache_log.LOGS))) == 3


def test_a_damaged_log_is_never_served_and_is_mended(tmp_path, log):
    contract = contract_of(record_files.write(tmp_path, [12]))
    wanted, root = expected(contract, None), tmp_path / "cache"
    kept = Cache(disk="auto", folder=root)
    values(reader(opened(kept, contract), contract, threads=1))
    restart()
    path = next(root.rglob(cache_log.LOGS))
    at = record_files.frames(path)
    record_files.flip_byte(path, at[2] + 500)  # in a payload
    record_files.flip_byte(path, at[4] + 3)  # in a length
    places = path.with_suffix(".places")
    record_files.flip_byte(places, 6 * 32)  # the number of a record
    with open(path, "r+b") as file:
        file.truncate(at[11] + 20)
    store = opened(kept, contract)
    assert "has 83%" in log.messages[-1]  # those of which the damage is seen only in reading too
    log.clear()
    dataset = reader(store, contract)
    for _ in range(2):
        assert_same(values(dataset), wanted)
    warnings = [r.getMessage() for r in log.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1 and f"of {path} is damaged; it, and others that are" in warnings[0]
    restart()
    log.clear()
    store = opened(kept, contract)
    assert_same(values(reader(store, contract)), wanted)
    assert store._tiers[0]._written == 0 and "is damaged" not in log.text
    # Nor does it hang or fail when somebody deletes the folder, or empties a log.
    for path in root.rglob(cache_log.LOGS):
        if path.stat().st_size:
            with open(path, "r+b") as file:
                file.truncate(path.stat().st_size // 2)
        path.unlink()
    assert_same(values(reader(store, contract)), wanted)
    assert "is damaged" in log.text


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.decode().strip()}")
    yield folder
    restart()
    subprocess.run(["umount", "-l", str(folder)], check=True)


def assert_goes_on_with_one_warning(store, contract, log, reason):
    wanted = expected(contract, None)
    dataset = reader(store, contract)
    for _ in range(3):
        assert_same(values(dataset), wanted)
    warnings = [r.getMessage() for r in log.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1 and "nothing more is written to" in warnings[0]
    assert reason in warnings[0] and "What is there is read" in warnings[0]
    return served_without_source(store, contract)


def test_a_full_disk_turns_writing_off_with_one_warning(tmp_path, small_disk, log):
    contract = contract_of(record_files.write(tmp_path, [20]))
    store = opened(Cache(disk="1GiB", folder=small_disk), contract)
    served = assert_goes_on_with_one_warning(store, contract, log, "No space left on device")
    assert 0 < len(served) < 20


def test_an_error_in_writing_turns_it_off_with_one_warning(tmp_path, monkeypatch, log):
    contract = contract_of(record_files.write(tmp_path, [20]))
    store = opened(Cache(disk="1GiB", folder=tmp_path / "cache"), contract)
    append = cache_log.Writer.append

    def fails(writer, record, payload):
        if writer.size > 10_000:
            raise OSError(28, "No space left on device")
        return append(writer, record, payload)

    monkeypatch.setattr(cache_log.Writer, "append", fails)
    served = assert_goes_on_with_one_warning(store, contract, log, "No space left on device")
    assert 0 < len(served) < 20
    # Another dataset of this process does not try again.
    log.clear()
    opened(Cache(disk="1GiB", folder=tmp_path / "cache"), contract)
    assert "written" not in log.text


def test_a_folder_that_cannot_be_used_is_an_error_or_one_warning(tmp_path, log, monkeypatch):
    contract = contract_of(record_files.write(tmp_path, [4]))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ValueError, match="folder of the disk cache cannot be used: .*--cache_dir"):
        opened(Cache(disk="auto", folder=tmp_path / "file"), contract)
    # The default one was not asked for: the run goes on.
    monkeypatch.setattr(cache.cache_key, "default_root", lambda: tmp_path / "file")
    store = opened(Cache(disk="auto"), contract)
    assert_same(values(reader(store, contract)), expected(contract, None))
    assert "disk tier is off, its folder cannot be used: [Errno 20] Not a directory" in log.text


def test_no_growth_over_many_epochs(tmp_path):
    contract = contract_of(record_files.write(tmp_path, [12]))
    root = tmp_path / "cache"
    sizes = contract.index.locations()[2]
    kept = Cache(memory=int(sizes[:4].sum()) + 600, disk=int(sizes[:5].sum()) + 300, folder=root)
    store = opened(kept, contract)
    dataset = reader(store, contract).repeat(30)
    taken = [len(values(dataset))]
    before = [path.stat().st_size for path in sorted(root.rglob("log-*"))]
    tables = [int(store._tiers[0]._payloads.size()), int(store._tiers[1]._table.size())]
    taken.append(len(values(dataset)))
    assert taken == [360, 360]
    assert before == [path.stat().st_size for path in sorted(root.rglob("log-*"))]
    assert tables == [int(store._tiers[0]._payloads.size()), int(store._tiers[1]._table.size())]


@pytest.mark.slow
def test_datasets_of_one_process_share_a_folder(tmp_path):
    record_files.write(tmp_path, [8])
    record_files.write(tmp_path, [5], split="validation")
    kept = Cache(disk="auto", folder=tmp_path / "cache")
    small = Cache(disk="auto", folder=tmp_path / "cache", decoded=10)
    train, test = contract_of(tmp_path), contract_of(tmp_path, split="validation")
    plan = [(kept, train), (kept, train), (kept, test), (small, train)]
    stores = [(opened(k, contract), contract, k.decoded) for k, contract in plan]
    assert stores[0][0]._tiers[0] is stores[1][0]._tiers[0]
    merged = tf.data.Dataset.zip(tuple(reader(store, contract) for store, contract, _ in stores))
    assert len(list(merged)) == 5
    for store, contract, decoded in stores:
        assert_same(values(reader(store, contract)), expected(contract, decoded))
    logs = sorted(path.stat().st_size for path in (tmp_path / "cache").rglob(cache_log.LOGS))
    assert len(logs) == 3 and logs[0] > 0


def test_bad_records_are_raised_and_not_kept(tmp_path):
    contract = contract_of(record_files.write(tmp_path, [4], encoded={1: b"", 2: b"no picture"}))
    files, offsets, _ = contract.index.locations()
    store = opened(Cache(memory="auto", disk="auto", folder=tmp_path / "c", decoded=10), contract)
    dataset = reader(store, contract)
    for _ in range(2):
        assert len(values(dataset.ignore_errors())) == 2
    assert store._tiers[0]._payloads.size() == 2
    assert store._tiers[1].has(np.arange(4)).tolist() == [True, False, False, True]


def test_pictures_and_bytes_end_as_they_are(tmp_path):
    black = tf.zeros([3, 5, 3], tf.uint8)
    image, label = cache_pictures.unpack(cache_pictures.pack(black, tf.constant(-7, tf.int64)))
    assert image.shape == (3, 5, 3) and not image.numpy().any() and label == -7
    payload = cache_pictures.pack(black, tf.constant(1, tf.int64))
    assert len(payload.numpy()) == cache_pictures.sizes([3], [5], 8)[0]
    tier = cache_tiers.open_tier(tmp_path / "cache", 2)
    tier.admit(np.arange(2), np.full(2, 125), 10_000)
    keep = tf.function(tier.keep)
    for run in (tier.keep, keep):  # eager and in a graph
        record = tf.constant(int(run is keep), tf.int64)
        assert run(record, lambda: payload).numpy() == payload.numpy()
        assert run(record, lambda: tf.constant("not asked")).numpy() == payload.numpy()


def test_reckoned_sizes_are_those_of_shrunk_pictures():
    shapes = np.array([[30, 40], [41, 30], [33, 35], [20, 90], [19, 19], [21, 20], [45, 67]])
    found = cache_pictures.sizes(*shapes.T, SHORT)
    for shape, size in zip(shapes, found, strict=True):
        image = jpeg.shrink(tf.zeros([*shape, 3], tf.uint8), SHORT)
        assert size == 80 + np.prod(image.shape)


def test_many_logs_do_not_use_up_the_open_files(tmp_path, monkeypatch, log):
    monkeypatch.setattr(cache_log, "MANY", 3)
    for number in range(5):
        writer = cache_log.Writer(tmp_path)
        for record in range(5 - number):
            writer.append(record, b"abc")
    del writer
    found = cache_log.find(tmp_path)
    assert [len(log.records) for log in found] == [5, 4, 3]
    assert len(list(tmp_path.iterdir())) == 6 and log.text.count("more than 3 logs; removed") == 2
    assert all(log.bytes == len(log.records) * (3 + cache_log.OVERHEAD) for log in found)


@pytest.mark.parametrize(
    "asked, wanted",
    [("8GiB", 8 * 2**30), ("500MB", 500 * 10**6), (" 1.5 KiB ", 1536), ("7", 7), (9, 9),
     ("auto", "auto"), (None, None), (np.int64(3), 3)],
)  # fmt: skip
def test_budgets(asked, wanted):
    assert cache_budget.parse("memory", asked) == wanted


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: Cache(memory="8 gigs"), ValueError, "memory='8 gigs' is no budget; wanted 'auto'"),
        (lambda: Cache(disk="-1GiB"), ValueError, "disk='-1GiB' is no budget"),
        (lambda: Cache(disk="0GiB"), ValueError, "disk='0GiB' is no budget"),
        (lambda: Cache(disk=0), ValueError, "disk=0; wanted an integer of at least 1"),
        (lambda: Cache(memory=1.5), TypeError, "memory=1.5 is no integer"),
        (lambda: Cache(memory=True), TypeError, "memory=True is no integer"),
        (lambda: Cache(), ValueError, "no tier is on; pass memory= or disk="),
        (lambda: Cache(decoded=5), ValueError, "no tier is on"),
        (lambda: Cache(memory="auto", decoded=0), ValueError, "decoded=0"),
        (lambda: Cache(memory="auto", folder="x"), ValueError, "folder='x' is for the disk tier"),
        (lambda: Cache(disk=1, folder="gs://b"), ValueError, "'gs://b' is not on a local disk"),
        (lambda: cache.resolve("ram", (8, 8)), ValueError, "cache='ram' is none of 'memory'"),
        (lambda: cache.resolve({"memory": 1}, (8, 8)), TypeError, "is neither None, a name"),
    ],
)
def test_what_is_asked_wrongly_is_named(make, error, text):
    with pytest.raises(error) as raised:
        make()
    assert text in str(raised.value)


def test_short_forms():
    assert cache.resolve(None, (8, 8)) is None
    assert cache.resolve("memory", (8, 8)) == Cache(memory="auto")
    assert cache.resolve("disk", (8, 8)) == Cache(disk="auto")
    assert cache.resolve("decoded", (112, 224)) == Cache(memory="auto", decoded=256)


def test_memory_is_never_more_than_can_be_had(tmp_path, monkeypatch, log):
    contract = contract_of(record_files.write(tmp_path, [10]))
    sizes = contract.index.locations()[2] + cache_tiers.MEMORY_OVERHEAD
    for tier in list(cache_tiers.MemoryTier._all):
        cache_tiers.MemoryTier._all.discard(tier)

    def kept(asked, free):
        monkeypatch.setattr(cache_budget, "free_memory", lambda: free)
        return opened(Cache(memory=asked), contract)

    total = int(sizes.sum())
    half = kept("auto", total)
    assert half._tiers[0]._count == np.sum(np.cumsum(sizes) <= total // 2)
    # What another dataset is still going to take is not free.
    promised = cache_tiers.MemoryTier.promised()
    assert promised == sizes[: half._tiers[0]._count].sum()
    more = kept("auto", total)
    assert more._tiers[0]._count == np.sum(np.cumsum(sizes) <= (total - promised) // 2)
    del more
    values(reader(half, contract))
    assert cache_tiers.MemoryTier.promised() == 0  # it is taken by now
    log.clear()
    assert kept("1TiB", 10**12)._tiers[0]._count == 10 and not log.records[:-1]
    few = kept("1TiB", int(sizes[:3].sum() / 0.9) + 2)
    assert few._tiers[0]._count == 3 and "memory='1TiB' asks for" in log.text
    monkeypatch.setenv("TFSCALE_LOCAL_WORKERS", "2")
    del half, few
    gc.collect()
    assert kept("auto", total)._tiers[0]._count == np.sum(np.cumsum(sizes) <= total // 4)
    monkeypatch.setenv("TFSCALE_LOCAL_WORKERS", "two")
    with pytest.raises(ValueError, match="TFSCALE_LOCAL_WORKERS='two': wanted the number"):
        kept("auto", total)
    monkeypatch.delenv("TFSCALE_LOCAL_WORKERS")
    with pytest.raises(ValueError, match="does not say how much memory is free"):
        kept("auto", None)
    assert kept(total, None)._tiers[0]._count == 10


def test_memory_of_a_container_is_what_its_limit_leaves(tmp_path):
    def group(name, **files):
        folder = tmp_path / name
        folder.mkdir()
        for file, content in files.items():
            (folder / file.replace("__", ".")).write_text(content)
        return folder

    stat = {"memory__stat": "anon 5\ninactive_file 300\ntotal_inactive_file 200\n"}
    new = group("2", memory__max="1000\n", memory__current="900\n", **stat)
    old = group("1", memory__limit_in_bytes="1000", memory__usage_in_bytes="900", **stat)
    free = group("0", memory__max="max\n", memory__current="900\n", **stat)
    left = [cache_budget._left_in_group(folder) for folder in (new, old, free, tmp_path / "none")]
    assert left == [400, 300, None, None]
    assert cache_budget.free_memory() > 0


def ids_and_pixels(dataset, epochs, per_epoch):
    """For each epoch, its order, and the picture of each record."""
    found = []
    for epoch in range(epochs):
        batches = take(dataset.skip(epoch * per_epoch), per_epoch)
        ids = [int(i) for *_, ids in batches for i in ids]
        found.append((ids, dict(zip(ids, np.concatenate([b[0] for b in batches]), strict=True))))
    return found


@pytest.mark.parametrize("kept", [Cache(memory=6000, disk="auto"), "decoded"])
@pytest.mark.slow
def test_neither_order_nor_crops_are_frozen(tmp_path, monkeypatch, kept):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    record_files.write(tmp_path, [8])
    options = {"seed": 3, "include_record_ids": True}
    dataset = images.train_dataset(tmp_path, 4, 16, cache=kept, **options)
    epochs = ids_and_pixels(dataset, 3, 2)
    for ids, _ in epochs:
        assert sorted(ids) == list(range(8))
    assert len({tuple(ids) for ids, _ in epochs}) == 3
    for (_, one), (_, other) in ((epochs[0], epochs[1]), (epochs[1], epochs[2])):
        assert all((one[number] != other[number]).any() for number in range(8))


@pytest.mark.slow
def test_evaluation_is_the_same_each_time(tmp_path):
    record_files.write(tmp_path, [6], split="validation")
    dataset = images.eval_dataset(tmp_path, 4, 16, cache="memory")
    assert_same(take(dataset, -1), take(dataset, -1))


built = pytest.mark.skipif(not native.LIBRARY.exists(), reason="the C ops are not built")


def by_native_ops_or_tensorflow(monkeypatch, make, epochs):
    """The same batches with the C ops and without, equal but for a grey level."""
    found = []
    for switch in ("1", "0"):
        monkeypatch.setenv("TFSCALE_NATIVE", switch)
        restart()
        dataset = make(switch)
        found.append(take(dataset, epochs))
    assert len(found[0]) == len(found[1])
    for one, other in zip(*found, strict=True):
        for a, b in zip(one[1:], other[1:], strict=True):
            np.testing.assert_array_equal(a, b)
        assert one[0].shape == other[0].shape
        assert np.abs(one[0].astype(int) - other[0].astype(int)).max() <= 1
    return found[0]


@built
@pytest.mark.parametrize("tiers", [{"memory": "auto"}, {"disk": "auto"}, {"memory": 9000}])
@pytest.mark.slow
def test_kept_pictures_are_cropped_alike_by_native_ops(tmp_path, monkeypatch, tiers):
    shapes = {0: (90, 30), 1: (60, 61), 2: (31, 20), 3: (7, 90), 4: (16, 16), 5: (1, 1)}
    encoded = {n: record_files.encode(record_files.picture(n, *s)) for n, s in shapes.items()}
    encoded[6] = record_files.encode(record_files.picture(6), "PNG")
    record_files.write(tmp_path, [10], encoded=encoded)

    def make(switch):
        folder = tmp_path / f"cache-{switch}" if "disk" in tiers else None
        kept = Cache(**tiers, decoded=24, folder=folder)
        return images.train_dataset(
            tmp_path, 5, (16, 20), cache=kept, threads=2, include_record_ids=True
        )

    by_native_ops_or_tensorflow(monkeypatch, make, 6)


@built
@pytest.mark.slow
def test_kept_pictures_are_padded_and_mended_alike_by_native_ops(tmp_path, monkeypatch):
    bad = {2: b"", 4: b"no picture", 5: record_files.encode(record_files.picture(), "WEBP")}
    record_files.write(tmp_path, [7], encoded=bad, split="validation")

    def make(switch):
        return images.eval_dataset(
            tmp_path, 5, 16, pad_remainder=True, cache="decoded", threads=2, on_error="skip",
            include_record_ids=True,
        )  # fmt: skip

    batches = by_native_ops_or_tensorflow(monkeypatch, make, -1)
    _, _, weights, ids = (np.concatenate(part) for part in zip(*batches, strict=True))
    assert ids[weights > 0].tolist() == [0, 1, 3, 5, 6]
    assert all(not image[weight == 0].any() for image, _, weight, _ in batches)


@built
def test_decoded_pictures_come_where_no_tier_can_be_had(tmp_path, monkeypatch, log):
    record_files.write(tmp_path, [6])
    (tmp_path / "file").touch()
    monkeypatch.setattr(cache.cache_key, "default_root", lambda: tmp_path / "file" / "cache")
    kept = Cache(disk="auto", decoded=24)
    by_native_ops_or_tensorflow(
        monkeypatch, lambda switch: images.train_dataset(tmp_path, 3, 16, cache=kept, threads=2), 4
    )
    assert "the disk tier is off" in log.text


@pytest.mark.slow
def test_caches_work_in_a_strategy(tmp_path):
    record_files.write(tmp_path, [16])
    kept = Cache(memory=20_000, disk="auto", folder=tmp_path / "cache")
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(2)])

    with strategy.scope():
        dataset = strategy.distribute_datasets_from_function(
            lambda context: images.train_dataset(tmp_path, 8, 16, context, cache=kept)
        )
    plain = iter(images.train_dataset(tmp_path, 8, 16))
    for _, batch in zip(range(6), dataset, strict=False):
        for part, whole in zip(batch, next(plain), strict=True):
            local = strategy.experimental_local_results(part)
            np.testing.assert_array_equal(tf.concat(local, 0), whole)


@pytest.mark.slow
def test_bad_records_are_named_by_their_source(tmp_path):
    record_files.write(tmp_path, [8], encoded={3: b""})
    with pytest.raises(Exception, match=r"record 3 of \S*train-00000-of-00001.tfrecord.*zero byte"):
        take(images.train_dataset(tmp_path, 4, 16, context(), cache="decoded"), 2)
