"""Caches change nothing but the place that is read from."""

import logging
import multiprocessing
import os
import subprocess
import sys

import numpy as np
import pytest

from tests import record_files
from tests.record_files import context, take
from tfscale.data import cache, images, jpeg, local_copy, records


def train(folder, cached, *args, **options):
    return images.train_dataset(
        folder, 4, 16, *args, cache=cached, include_record_ids=True,
        cache_dir=str(folder / "cache"), **options,
    )  # fmt: skip


@pytest.mark.parametrize("cached", ["memory", "disk"])
@pytest.mark.slow
def test_same_pictures_as_without(tmp_path, cached):
    record_files.write(tmp_path, [9, 8])
    plain, kept = take(train(tmp_path, None), 12), take(train(tmp_path, cached), 12)
    for one, other in zip(plain, kept, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
    for evaluated in (plain, kept):
        assert (evaluated[0][0] != evaluated[4][0]).any()


@pytest.mark.parametrize("cached", ["memory", "disk"])
@pytest.mark.slow
def test_later_epochs_do_not_need_the_files(tmp_path, cached):
    record_files.write(tmp_path, [8])
    wanted = take(train(tmp_path, None), 8)
    iterator = iter(train(tmp_path, cached, num_parallel_calls=1))
    found = [next(iterator) for _ in range(2)]
    if cached == "disk":
        next(tmp_path.glob("*.tfrecord")).unlink()
    else:
        # Emptied, not removed: the first steps beyond these may still be under way.
        while len(found) < 5:
            found.append(next(iterator))
        next(tmp_path.glob("*.tfrecord")).unlink()
    found += [next(iterator) for _ in range(8 - len(found))]
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(one[0], other[0])


@pytest.mark.slow
def test_decoded_pictures_are_cropped_anew(tmp_path):
    record_files.write(tmp_path, [8], size=(0, 0))
    batches = take(train(tmp_path, "decoded"), 6)
    by_id = [{i: x for image, _, ids in epoch for i, x in zip(ids, image, strict=True)}
             for epoch in (batches[:2], batches[2:4], batches[4:])]  # fmt: skip
    for number in range(8):
        assert (by_id[0][number] != by_id[1][number]).any()
        assert (by_id[1][number] != by_id[2][number]).any()
    whole = {"area_range": (1, 1), "aspect_range": (4 / 3, 4 / 3), "flip": False}
    for image, label, ids in take(train(tmp_path, "decoded", **whole), 6):
        np.testing.assert_array_equal(label, ids % 4)
        for x, number in zip(image, ids, strict=True):
            small = jpeg.shrink(jpeg.decode(record_files.encode(record_files.picture(number))), 18)
            np.testing.assert_array_equal(x, jpeg.resize(small, (16, 16)))


@pytest.mark.slow
def test_evaluation_is_the_same_each_time(tmp_path):
    record_files.write(tmp_path, [6], split="validation")
    dataset = images.eval_dataset(tmp_path, 4, 16, cache="memory")
    first, second = take(dataset, -1), take(dataset, -1)
    plain = take(images.eval_dataset(tmp_path, 4, 16), -1)
    for a, b, c in zip(first, second, plain, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[0], c[0])


@pytest.mark.parametrize("cached", ["memory", "decoded", "disk"])
@pytest.mark.slow
def test_bad_records_are_named_by_their_source(tmp_path, cached):
    record_files.write(tmp_path, [8], encoded={3: b""})
    with pytest.raises(Exception, match=r"record 3 of \S*train-00000-of-00001.tfrecord.*zero byte"):
        take(train(tmp_path, cached), 2)


def test_disk_copy_of_a_cut_file_finds_the_fault_at_the_source(tmp_path, caplog):
    record_files.write(tmp_path, [8])
    records.find(tmp_path)
    path = next(tmp_path.glob("*.tfrecord"))
    path.write_bytes(path.read_bytes()[: record_files.frames(path)[6] + 50])
    ids = {i for _, _, ids in take(train(tmp_path, "disk", on_error="skip"), 8) for i in ids}
    assert ids == set(range(6))
    assert f"record 6 of {path}" in caplog.text and "truncated" in caplog.text


@pytest.mark.slow
def test_a_worker_copies_its_own_records_and_uses_the_copy_again(tmp_path, caplog):
    caplog.set_level(logging.INFO, "tfscale")
    record_files.write(tmp_path, [8])
    for worker in range(2):
        take(train(tmp_path, "disk", context(worker, 2)), 2)
    copies = sorted((tmp_path / "cache").rglob("*.records"))
    assert len(copies) == 2 and "copying 4 records" in caplog.text
    source = next(tmp_path.glob("*.tfrecord")).stat().st_size
    assert sum(copy.stat().st_size for copy in copies) == source
    caplog.clear()
    take(train(tmp_path, "disk", context(0, 2)), 2)
    assert "copying" not in caplog.text and f"reading {copies[0]}" in caplog.text
    # Other data under the same name is another copy.
    (tmp_path / "train.index.json").unlink()
    record_files.write(tmp_path, [12])
    take(train(tmp_path, "disk", context(0, 2)), 2)
    assert len(list((tmp_path / "cache").rglob("*.records"))) == 3


KILLED = """
import os, signal, sys
from tfscale.data import images, local_copy
replace = local_copy.pathlib.Path.replace
def killed(self, target):
    os.kill(os.getpid(), signal.SIGKILL)
local_copy.pathlib.Path.replace = killed
images.train_dataset(sys.argv[1], 4, 16, cache="disk", cache_dir=sys.argv[1] + "/cache")
"""


@pytest.mark.slow
def test_a_killed_run_leaves_nothing_that_stops_or_misleads_the_next(tmp_path, caplog):
    caplog.set_level(logging.INFO, "tfscale")
    record_files.write(tmp_path, [8])
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=120, check=False)
    assert done.returncode == -9
    partial = list((tmp_path / "cache").rglob("*.partial-*"))
    assert len(partial) == 1
    found = take(train(tmp_path, "disk"), 4)
    assert "left by a run that was killed" in caplog.text and not partial[0].exists()
    for one, other in zip(take(train(tmp_path, None), 4), found, strict=True):
        np.testing.assert_array_equal(one[0], other[0])


def test_a_running_owner_is_left_alone(tmp_path):
    mine = tmp_path / f"x.records{local_copy._owner_suffix()}"
    mine.write_bytes(b"")
    process = multiprocessing.get_context("spawn").Process(target=int)
    process.start()
    process.join()
    host = mine.name.rpartition(".partial-")[2].rsplit("-", 2)[0]
    dead = tmp_path / f"x.records.partial-{host}-{process.pid}-1"
    reused = tmp_path / f"x.records.partial-{host}-{os.getpid()}-1"
    elsewhere = tmp_path / f"x.records.partial-other-host-{process.pid}-1"
    for path in (dead, reused, elsewhere):
        path.write_bytes(b"")
    local_copy.remove_abandoned(tmp_path)
    assert mine.exists() and elsewhere.exists() and not dead.exists() and not reused.exists()


def test_too_little_space_is_said_with_the_numbers(tmp_path, monkeypatch):
    record_files.write(tmp_path, [8])
    monkeypatch.setattr(cache, "_free_memory", lambda: 10)
    for kind in ("memory", "decoded"):
        with pytest.raises(ValueError, match="GB of memory.*use cache='disk'"):
            train(tmp_path, kind)
    monkeypatch.setattr(local_copy.shutil, "disk_usage", lambda _: type("", (), {"free": 10}))
    with pytest.raises(ValueError, match="GB of disk.*use cache='memory'"):
        train(tmp_path, "disk")
