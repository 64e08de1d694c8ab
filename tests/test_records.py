"""Order, index and contract."""

import dataclasses
import gzip
import itertools
import json
import logging
import math

import numpy as np
import pytest
import tensorflow as tf

from tests import record_files
from tfscale.data import index, order, records


def plain_hash(*words):
    """The hash said again, in Python's integers."""
    state, mask = 0, 2**64 - 1
    for word in words:
        state = ((state ^ (word & mask)) + 0x9E3779B97F4A7C15) & mask
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return state


def plain_place(place, count, *key):
    """The permutation said again, one place at a time."""
    base = max(8, math.isqrt(count - 1) + 1)
    state = plain_hash(*key)
    while True:
        high, low = divmod(place, base)
        for number in range(8):
            high, low = low, (high + (plain_hash(state, number, low) >> 1) % base) % base
        place = high * base + low
        if place < count:
            return place


def plain_order(num_records, batch, streams, seed, epochs):
    """The order said again, slowly: deal the records, then cut the streams."""
    per_stream, floating = divmod(num_records, streams)
    drawn = [[] for _ in range(streams)]
    for epoch in range(epochs):
        members = [[stream + streams * i for i in range(per_stream)] for stream in range(streams)]
        for number in range(floating):
            members[(epoch * floating + number) % streams].append(per_stream * streams + number)
        for stream, own in enumerate(members):
            places = [plain_place(i, len(own), seed, 1, epoch, stream) for i in range(len(own))]
            drawn[stream] += [(own[place], epoch) for place in places]
    rows = batch // streams
    steps = min(len(stream) for stream in drawn) // rows
    return [
        [row for stream in drawn for row in stream[step * rows : (step + 1) * rows]]
        for step in range(steps)
    ]


@pytest.mark.parametrize("size, batch, streams", [(10, 4, 2), (17, 4, 4), (3, 2, 2), (101, 12, 6)])
def test_order_equals_the_plain_one(size, batch, streams):
    fast = order.Order(size, batch, streams, seed=-5)
    for step, rows in enumerate(plain_order(size, batch, streams, -5, epochs=4)):
        found, epochs = fast.batch(step)
        assert list(zip(found.numpy().tolist(), epochs.numpy().tolist(), strict=True)) == rows


@pytest.mark.parametrize("count", [1, 2, 5, 97, 1000])
def test_permutation_takes_every_place_once_and_its_key_matters(count):
    places, counts = tf.range(count, dtype=tf.int64), tf.fill([count], count)
    one, other = (order.permute(places, counts, 3, key).numpy() for key in (1, 2))
    assert sorted(one) == sorted(other) == list(range(count))
    assert count < 5 or (one != other).any()


@pytest.mark.parametrize("count, keys, share", [(5, 12000, 1 / 120), (60, 3000, 1 / 60)])
def test_permutations_are_uniform(count, keys, share):
    """Of five, each of the 120 permutations; of sixty, each neighbour's distance."""
    places = tf.tile(tf.range(count, dtype=tf.int64), [keys])
    key = tf.repeat(tf.range(keys, dtype=tf.int64), count)
    drawn = order.permute(places, tf.fill([count * keys], count), 0, key).numpy()
    drawn = drawn.reshape(keys, count)
    if count == 5:
        kinds = np.unique(drawn, axis=0, return_counts=True)[1]
        assert len(kinds) == 120
    else:
        kinds = np.bincount((drawn[:, 1] - drawn[:, 0]) % count)[1:]
        share = 1 / (count - 1)
    expected = keys * share
    chi_squared = ((kinds - expected) ** 2 / expected).sum()
    assert chi_squared < len(kinds) + 4 * np.sqrt(2 * len(kinds))


@pytest.mark.parametrize("size, batch", [(10, 4), (17, 16), (3, 2), (1003, 64)])
def test_every_record_once_an_epoch_and_epochs_differ(size, batch):
    stream = order.Order(size, batch, order.logical_streams(size, batch), seed=1)
    rows, epochs = tf.function(stream.batch), {}
    for step in tf.range(4 * size // batch + 4, dtype=tf.int64):
        for record, epoch in zip(*(part.numpy() for part in rows(step)), strict=True):
            epochs.setdefault(int(epoch), []).append(int(record))
    for epoch in range(3):
        assert sorted(epochs[epoch]) == list(range(size))
    if size > 3:
        assert epochs[0] != epochs[1]


def test_dropped_remainder_is_another_one_each_epoch():
    rows = tf.function(order.Order(10, 4, 2, seed=1, remainder="drop").batch)
    seen = []
    for epoch in range(12):
        batches = [rows(tf.constant(2 * epoch + step, tf.int64)) for step in range(2)]
        assert all((epochs.numpy() == epoch).all() for _, epochs in batches)
        drawn = np.concatenate([found for found, _ in batches])
        assert len(set(drawn)) == 8
        seen.append(frozenset(drawn))
    assert len(set(seen)) > 3


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6])
def test_workers_take_the_rows_of_one_order_and_own_records(workers):
    streams = order.logical_streams(1000, 24)
    assert streams == 24
    stream = order.Order(1000, 24, streams)
    cuts = range(0, 25, 24 // workers)
    parts = [stream.batch(3, a, b)[0] for a, b in itertools.pairwise(cuts)]
    np.testing.assert_array_equal(np.concatenate(parts), stream.batch(3)[0])
    # What a worker reads outside the floating records is its own for ever.
    for first, last in itertools.pairwise(cuts):
        owned = set(stream.owned(first, last))
        assert len(owned) <= 1000 // workers + 1000 % 24
        for step in range(0, 90, 7):
            assert set(stream.batch(step, first, last)[0].numpy()) <= owned


def test_rows_that_cut_a_stream_in_two_own_all_of_it():
    stream = order.Order(40, 12, 4)
    parts = [set(stream.owned(first, first + 4)) for first in (0, 4, 8)]
    assert parts[0] == set(range(0, 40, 4)) | set(range(1, 40, 4))
    assert set.union(*parts) == set(range(40))
    for step in range(12):
        for first, owned in zip((0, 4, 8), parts, strict=True):
            assert set(stream.batch(step, first, first + 4)[0].numpy()) <= owned


GOLDEN_HASH = ["0xb8b4c2977eabce45", "0x3d41bf495cd3075f"]
GOLDEN_BATCH = [6, 8, 1, 5]


def test_hash_is_fixed_for_ever():
    assert [hex(int(x)) for x in order.mix64(7, [0, 1]).numpy()] == GOLDEN_HASH
    assert [hex(plain_hash(7, x)) for x in (0, 1)] == GOLDEN_HASH
    assert order.Order(10, 4, 2, seed=7).batch(0)[0].numpy().tolist() == GOLDEN_BATCH


def test_more_rows_than_records_is_refused_with_the_arithmetic():
    with pytest.raises(ValueError, match="3 // 4 = 0 steps"):
        order.Order(3, 4, 2)


def test_index_of_files_without_one_is_built_saved_and_read_again(tmp_path, caplog):
    caplog.set_level(logging.INFO, "tfscale")
    record_files.write(tmp_path, [3, 4])
    built = records.find(tmp_path)
    assert "no index" in caplog.text and "index written" in caplog.text
    assert built.num_records == 7 and built.label_counts == {0: 2, 1: 2, 2: 2, 3: 1}
    again = records.find(str(tmp_path))
    assert again == built and again.digest() == built.digest()
    files, offsets, lengths = built.locations()
    assert files.tolist() == [0, 0, 0, 1, 1, 1, 1]
    path, number, offset, length = built.locate(4)
    assert path.endswith("train-00001-of-00002.tfrecord") and number == 1
    assert (offset, length) == (offsets[4], lengths[4])


def test_index_of_another_version_or_kind_is_refused(tmp_path):
    record_files.write(tmp_path, [3])
    path = records.find(tmp_path).save()
    content = json.loads(open(path).read())
    for change, message in (({"version": 9}, "version 9"), ({"format": "x"}, "not an index")):
        open(path, "w").write(json.dumps({**content, **change}))
        with pytest.raises(ValueError, match=message):
            records.find(tmp_path)
    open(path, "w").write(json.dumps({**content, "label_counts": {"0": 4}}))
    with pytest.raises(ValueError, match=f"{path} was changed .*; delete it"):
        records.find(tmp_path)

    def write_with_checksum(content):
        open(path, "w").write(json.dumps({**content, "checksum": index.checksum(content)}))

    for change in ({"shards": [{"name": "x"}]}, {"shards": 3}, {"label_counts": {"a": 1}}):
        write_with_checksum({**content, **change})
        with pytest.raises(ValueError, match=f"{path} is damaged .*; delete it"):
            records.find(tmp_path)
    write_with_checksum({**content, "shards": []})
    with pytest.raises(ValueError, match="lists no records; delete it"):
        records.find(tmp_path)
    open(path, "w").write("{")
    with pytest.raises(ValueError, match="not JSON"):
        records.find(tmp_path)


def test_missing_cut_and_extra_files_are_named_at_once(tmp_path, caplog):
    record_files.write(tmp_path, [4, 4, 4])
    records.find(tmp_path)
    paths = sorted(tmp_path.glob("*.tfrecord"))
    paths[0].unlink()
    cut = record_files.frames(paths[1])[2] + 5
    paths[1].write_bytes(paths[1].read_bytes()[:cut])
    (tmp_path / "train-copy.tfrecord").write_bytes(b"")
    with pytest.raises(ValueError) as error:
        records.find(tmp_path)
    text = str(error.value)
    assert f"{paths[0]} is missing (4 records)" in text
    assert f"{paths[1]} has {cut} bytes" in text and "cut in record 2, 2 of 4 records lost" in text
    assert "train-copy.tfrecord is not in the index" in text
    assert records.find(tmp_path, on_error="skip").num_records == 12
    assert "is missing" in caplog.text


def test_truncated_and_damaged_files_without_index(tmp_path, caplog):
    record_files.write(tmp_path, [10, 10])
    paths = sorted(tmp_path.glob("*.tfrecord"))
    places = record_files.frames(paths[0])
    whole = paths[0].read_bytes()
    paths[0].write_bytes(whole[: places[8] + 50])
    with pytest.raises(ValueError, match=f"record 8 of {paths[0]}, at byte {places[8]}.*truncated"):
        records.find(tmp_path)
    assert records.find(tmp_path, on_error="skip").num_records == 18
    assert "truncated); 50 bytes are lost" in caplog.text
    assert not (tmp_path / "train.index.json").exists()
    paths[0].write_bytes(whole)
    record_files.flip_byte(paths[0], places[5] + 1)
    with pytest.raises(ValueError, match=f"record 5 of {paths[0]}.*its length is damaged"):
        records.find(tmp_path)
    found = records.find(tmp_path, on_error="skip")
    assert found.shards[0].offsets.tolist() == places[:5] + places[6:]
    assert found.num_records == 19 and not (tmp_path / "train.index.json").exists()


def test_a_file_that_the_names_say_is_missing(tmp_path, caplog):
    record_files.write(tmp_path, [2, 2, 2, 2])
    (tmp_path / "train-00002-of-00004.tfrecord").unlink()
    for gone in ("train-00002-of-00004.tfrecord", "train-00003-of-00004.tfrecord"):
        (tmp_path / gone).unlink(missing_ok=True)
        with pytest.raises(ValueError, match=f"4 files, but . (is|are) missing: .*{gone}"):
            records.find(tmp_path)
    assert records.find(tmp_path, on_error="skip").num_records == 4
    assert caplog.text.count("2 are missing: train-00002-of-00004.tfrecord, train-00003") == 1
    assert not (tmp_path / "train.index.json").exists()
    assert records.find(str(tmp_path / "train-*")).num_records == 4  # a pattern may want a part
    assert caplog.text.count("2 are missing") == 2
    assert not index.gaps([f"/x/a-{i}-of-2.rec" for i in range(2)] + ["/x/train-0", "/x/a"])
    assert "1022 are missing: t-00001-of-01024, " in index.gaps(
        ["t-00000-of-01024", "t-00009-of-01024"])[0]  # fmt: skip


def test_empty_shard_warns_and_only_empty_ones_raise(tmp_path, caplog):
    record_files.write(tmp_path, [2, 0, 2])
    assert records.find(tmp_path).num_records == 4
    assert "train-00001-of-00003.tfrecord holds no records" in caplog.text
    (tmp_path / "only").mkdir()
    record_files.write(tmp_path / "only", [0])
    with pytest.raises(ValueError, match="holds a record"):
        records.find(tmp_path / "only")


def test_nothing_found_says_pattern_and_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    for place in ("trian-*", ".", "absent"):
        with pytest.raises(FileNotFoundError) as error:
            records.find(place)
        assert place in str(error.value) and str(tmp_path) in str(error.value)


def test_gzip_is_recognised(tmp_path):
    record_files.write(tmp_path, [3])
    path = next(tmp_path.glob("*.tfrecord"))
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(ValueError, match="1f 8b.*decompress"):
        records.find(tmp_path)


def test_patterns_and_single_files(tmp_path):
    record_files.write(tmp_path, [2, 3])
    assert records.find(str(tmp_path / "train-*")).num_records == 5
    assert records.find(str(tmp_path / "train-00001-of-00002.tfrecord")).num_records == 3
    assert not list(tmp_path.glob("*.json"))


def test_labels_against_classes(tmp_path, caplog):
    record_files.write(tmp_path, [10], labels=list(range(1, 11)))
    with pytest.raises(ValueError, match="label 10 .*from 1 to 10: pass label_offset=1"):
        records.describe(tmp_path, "train", 2, num_classes=10)
    assert records.describe(tmp_path, "train", 2, num_classes=10, label_offset=1).num_classes == 10
    with pytest.raises(ValueError, match="label 10 .*: pass num_classes=11"):
        records.check_labels(
            dataclasses.replace(records.find(tmp_path), label_counts={0: 1, 10: 1}), 10
        )
    caplog.clear()
    records.describe(tmp_path, "train", 2, num_classes=11)
    assert "1 of 11 classes never occur: 0" in caplog.text
    with pytest.raises(ValueError, match="label -1"):
        records.describe(tmp_path, "train", 2, label_offset=2)


def test_classes_guessed_from_labels_with_a_gap(tmp_path, caplog):
    record_files.write(tmp_path, [7], labels=[0, 1, 2, 0, 1, 7, 2])
    assert records.describe(tmp_path, "train", 2).num_classes == 8
    assert (
        "4 of 8 classes never occur: 3, 4, 5, 6 (a number guessed from the highest label, 7, of "
        "1 record(s): if that is a mistake" in caplog.text
    )
    with pytest.raises(ValueError, match=r"label 7 \(1 records\) is outside \[0, 3\)"):
        records.describe(tmp_path, "train", 2, num_classes=3)
    caplog.clear()
    found = dataclasses.replace(records.find(tmp_path), class_names=tuple("abcdefgh"))
    assert records.check_labels(found) == 8
    assert "3 (d), 4 (e), 5 (f), 6 (g)" in caplog.text and "guessed" not in caplog.text


def test_contract_says_who_reads_what(tmp_path):
    record_files.write(tmp_path, [3])
    contract = records.describe(tmp_path, "train", 2, num_replicas=2, num_workers=2)
    text = "\n".join(contract.lines(0))
    assert "3 records" in text and "train-00000-of-00001.tfrecord" in text
    assert "worker 0 of 2 reads 1 of 3 records" in text and "1 that take turns" in text
    assert "1 steps an epoch" in text and "1 records carried into the next epoch" in text
    assert "the same on any number of replicas" in text
    assert json.loads(json.dumps(contract.fingerprint())) == contract.fingerprint()
    other = records.describe(tmp_path, "train", 2, num_replicas=2, num_workers=2, seed=1)
    assert other.fingerprint() != contract.fingerprint()
    assert index.load(tmp_path, "train").digest() == contract.fingerprint()["index"]


def test_batches_that_do_not_divide_are_refused(tmp_path):
    record_files.write(tmp_path, [8])
    with pytest.raises(ValueError, match=r"6 % 4 = 2"):
        records.describe(tmp_path, "train", 6, num_replicas=4)
    with pytest.raises(ValueError, match="would have 8 // 16 = 0 steps"):
        records.describe(tmp_path, "train", 16)


def test_evaluation_covers_every_record_once(tmp_path):
    record_files.write(tmp_path, [7], split="validation")
    contract = records.describe(tmp_path, "validation", 4, num_replicas=2, num_workers=2)
    assert contract.steps_per_epoch == 2
    parts = [contract.owned(worker).tolist() for worker in range(2)]
    assert parts == [[0, 3, 4], [1, 2, 5, 6]]
    assert "2 steps of 2 replica(s) x 1 or 2, every example once" in "\n".join(contract.lines(1))


def test_one_read_does_not_touch_the_rest_of_the_file(tmp_path):
    from tfscale.data import reading

    record_files.write(tmp_path, [5])
    path = next(tmp_path.glob("*.tfrecord"))
    places = record_files.frames(path)
    wanted = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
    record_files.flip_byte(path, places[2] + 40)
    for number in (0, 1, 3, 4):
        assert reading.read(str(path), places[number]).numpy() == wanted[number]
    with pytest.raises(tf.errors.DataLossError):
        reading.read(str(path), places[2])
