"""Training and evaluation datasets: order, augmentation, bad records, remainders."""

import gc
import logging
import re

import numpy as np
import pytest
import tensorflow as tf

from tests import record_files
from tests.record_files import context, take
from tfscale.data import clock, crops, images, index, order, records, repair, rows


@pytest.fixture
def folder(tmp_path):
    return record_files.write(tmp_path, [7, 5])


def train(folder, batch=4, size=16, *args, **options):
    options.setdefault("include_record_ids", True)
    return images.train_dataset(folder, batch, size, *args, **options)


def test_elements_and_an_epoch(folder):
    dataset = train(folder, include_record_ids=False)
    assert dataset.element_spec == (
        tf.TensorSpec([4, 16, 16, 3], tf.uint8),
        tf.TensorSpec([4], tf.int32),
    )
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    batches = take(train(folder, 4, (16, 20)), 6)
    assert batches[0][0].shape == (4, 16, 20, 3)
    for epoch in (batches[:3], batches[3:]):
        ids = np.concatenate([ids for _, _, ids in epoch])
        assert sorted(ids) == list(range(12))
        np.testing.assert_array_equal(np.concatenate([label for _, label, _ in epoch]), ids % 4)
    by_id = [{i: x for image, _, ids in epoch for i, x in zip(ids, image, strict=True)}
             for epoch in (batches[:3], batches[3:])]  # fmt: skip
    assert all((by_id[0][i] != by_id[1][i]).any() for i in range(12))  # another crop
    assert [i for b in batches[:3] for i in b[2]] != [i for b in batches[3:] for i in b[2]]


@pytest.mark.slow
def test_same_batches_on_any_number_of_workers_and_replicas(tmp_path):
    folder = record_files.write(tmp_path, [9, 8])
    whole = take(train(folder, 4, seed=3), 5)
    for workers, replicas in ((1, 2), (2, 2), (2, 4)):
        local = replicas // workers
        parts = [
            take(train(folder, 4, 16, context(worker, workers, replicas), seed=3), 5 * local)
            for worker in range(workers)
        ]
        for step in range(5):
            rows = [e for part in parts for e in part[step * local : (step + 1) * local]]
            assert all(len(row[0]) == 4 // replicas for row in rows)
            for one, many in zip(whole[step], zip(*rows, strict=True), strict=True):
                np.testing.assert_array_equal(np.concatenate(many), one)


@pytest.mark.slow
def test_starts_anywhere_and_repeats_to_the_bit(folder):
    whole = take(train(folder, seed=9), 8)
    for again in (take(train(folder, seed=9), 8), take(train(folder, seed=9, initial_step=5), 3)):
        for one, other in zip(whole[-len(again) :], again, strict=True):
            for a, b in zip(one, other, strict=True):
                np.testing.assert_array_equal(a, b)
    assert (take(train(folder, seed=10), 1)[0][2] != whole[0][2]).any()


@pytest.mark.slow
def test_fewer_files_than_workers_is_sharded_by_record(tmp_path, caplog):
    caplog.set_level(logging.INFO, "tfscale")
    record_files.write(tmp_path, [3])
    parts = [
        np.concatenate([ids for _, _, ids in take(train(tmp_path, 2, 8, context(w, 2)), 3)])
        for w in range(2)
    ]
    assert sorted(np.concatenate(parts)) == [0, 0, 1, 1, 2, 2]  # two epochs
    assert "worker 1 of 2 reads 1 of 3 records" in caplog.text


def test_exactly_one_layer_of_sharding(tmp_path):
    record_files.write(tmp_path, [12])
    dataset = train(tmp_path, 4)
    off = tf.data.experimental.AutoShardPolicy.OFF
    assert dataset.options().experimental_distribute.auto_shard_policy == off
    parts = [{i for _, _, ids in take(train(tmp_path, 4, 8, context(w, 2)), 3) for i in ids}
             for w in range(2)]  # fmt: skip
    assert [len(part) for part in parts] == [6, 6] and not parts[0] & parts[1]


def test_under_a_strategy_replicas_get_consecutive_rows(folder):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = strategy.distribute_datasets_from_function(lambda c: train(folder, 4, 16, c, seed=3))
    iterator, whole = iter(dataset), take(train(folder, 4, seed=3), 3)
    for wanted in whole:
        ids = strategy.experimental_local_results(next(iterator)[2])
        np.testing.assert_array_equal(np.concatenate([x.numpy() for x in ids]), wanted[2])


def test_dropped_remainder(tmp_path):
    record_files.write(tmp_path, [7])
    ids = [ids for _, _, ids in take(train(tmp_path, 3, remainder="drop"), 4)]
    for epoch in (ids[:2], ids[2:]):
        assert len(set(np.concatenate(epoch))) == 6


def jpeg_bytes(number):
    return record_files.encode(record_files.picture(number, 96, 128), subsampling=0)


BAD = {1: b"", 4: jpeg_bytes(4)[:-400], 6: jpeg_bytes(6)[:100], 9: bytes(range(256))}
REASONS = {1: "zero bytes", 4: "truncated JPEG", 6: "truncated JPEG", 9: "not a JPEG, PNG"}


@pytest.mark.parametrize("number", BAD)
def test_bad_picture_is_named(tmp_path, number):
    record_files.write(tmp_path, [3, 9], encoded={number: BAD[number]})
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        take(train(tmp_path), 3)
    text = str(error.value)
    file, place = ("train-00000-of-00002", number) if number < 3 else ("train-00001", number - 3)
    assert re.search(rf"record {place} of \S*{file}.*\(\d+ bytes.*'{number}.jpg'", text)
    assert f"{len(BAD[number])} bytes: {REASONS[number]}" in text and "on_error='skip'" in text


def test_bad_pictures_are_replaced_counted_and_named(folder, tmp_path, caplog):
    (tmp_path / "bad").mkdir()
    record_files.write(tmp_path / "bad", [12], encoded=BAD)
    batches = take(train(tmp_path / "bad", on_error="skip", seed=2), 9)
    good = take(train(folder, seed=2), 9)
    for number, reason in REASONS.items():
        assert caplog.text.count(f"'{number}.jpg'") == 1 and reason in caplog.text
    for (image, label, ids), (wanted, _, right) in zip(batches, good, strict=True):
        assert image.shape == wanted.shape and not set(ids) & set(BAD)
        np.testing.assert_array_equal(label, ids % 4)
        same = ~np.isin(right, list(BAD))
        np.testing.assert_array_equal(ids[same], right[same])
        np.testing.assert_array_equal(image[same], wanted[same])
    assert all(REASONS[n] in repair.skipped_records()["train", n] for n in REASONS)


def test_only_bad_records_end_with_a_message_not_in_a_search(tmp_path):
    record_files.write(tmp_path, [8], encoded=dict.fromkeys(range(8), b""))
    with pytest.raises(tf.errors.InvalidArgumentError, match="records in a row are bad"):
        take(train(tmp_path, on_error="skip"), 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="zero bytes"):
        take(train(tmp_path), 1)


def test_more_bad_records_than_allowed(tmp_path):
    record_files.write(tmp_path, [40], encoded=dict.fromkeys(range(0, 40, 3), b""))
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than the 10 allowed"):
        take(train(tmp_path, on_error="skip"), 10)
    assert len(take(train(tmp_path, on_error="skip", max_bad_share=0.5), 10)) == 10


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("damage", ["cut", "payload", "length"])
def test_damaged_files(tmp_path, caplog, damage, on_error):
    record_files.write(tmp_path, [10, 2])
    path = tmp_path / "train-00000-of-00002.tfrecord"
    places = record_files.frames(path)
    records.find(tmp_path)
    lost = [8, 9] if damage == "cut" else [5]
    if damage == "cut":
        path.write_bytes(path.read_bytes()[: places[8] + 100])
    else:
        record_files.flip_byte(path, places[5] + (100 if damage == "payload" else 1))
    if on_error == "raise":
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)) as error:
            take(train(tmp_path), 3)
        assert path.name in str(error.value) and f"record {lost[0]}" in str(error.value)
        return
    ids = {i for _, _, ids in take(train(tmp_path, on_error="skip"), 6) for i in ids}
    assert ids == set(range(12)) - set(lost)
    for number in lost:
        assert f"record {number} of {path}" in caplog.text


def test_webp_and_other_formats_named_jpg(tmp_path):
    others = {
        2: record_files.encode(record_files.picture(2), "WEBP", lossless=True),
        5: record_files.encode(record_files.picture(5), "PNG"),
        7: record_files.encode(record_files.picture(7)[..., 0]),
    }
    record_files.write(tmp_path, [8], encoded=others)
    (image, _, ids), *_ = take(train(tmp_path, 8, (48, 64), area_range=(1, 1), flip=False,
                                     aspect_range=(4 / 3, 4 / 3)), 1)  # fmt: skip
    assert image.shape == (8, 48, 64, 3)
    for number in (2, 5):
        np.testing.assert_array_equal(image[list(ids).index(number)], record_files.picture(number))


@pytest.mark.parametrize("wrong", [3, 2**32 + 1])
def test_labels_outside_the_classes_are_named(tmp_path, wrong):
    record_files.write(tmp_path, [8], labels=[0, 1, 2, 0, 1, wrong, 2, 1])
    found = rf"label {wrong} \(1 records\) is outside \[0, 3\) for 3 class"
    with pytest.raises(ValueError, match=found):
        train(tmp_path, num_classes=3)
    # An index may be wrong: the pipeline looks at every label itself.
    found = index.load(tmp_path, "train")
    found.label_counts.pop(wrong)
    found.save()
    wanted = f"label {wrong} is outside .* 3 classes"
    with pytest.raises(tf.errors.InvalidArgumentError, match=wanted):
        take(train(tmp_path, num_classes=3), 2)
    ids = {i for _, _, ids in take(train(tmp_path, num_classes=3, on_error="skip"), 6) for i in ids}
    assert ids == set(range(8)) - {5}


def test_label_offset(tmp_path):
    record_files.write(tmp_path, [8], labels=[1 + i % 4 for i in range(8)])
    (_, label, ids), *_ = take(train(tmp_path, 8, label_offset=1, num_classes=4), 1)
    np.testing.assert_array_equal(label, ids % 4)


def test_record_without_the_fields_says_which_it_has(tmp_path):
    features = {"image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"x"]))}
    example = tf.train.Example(features=tf.train.Features(feature=features))
    with tf.io.TFRecordWriter(str(tmp_path / "train-0")) as writer:
        for _ in range(4):
            writer.write(example.SerializeToString())
    with pytest.raises(tf.errors.InvalidArgumentError, match="no field 'image/encoded'; it has im"):
        take(train(tmp_path, num_classes=4), 1)


def test_the_limit_of_bad_records_is_a_share_of_each_workers_own(tmp_path):
    index_of = index.RecordIndex(
        str(tmp_path),
        "train",
        (index.Shard("x", 0, (1,) * 4000, (1,) * 4000, (1,) * 4000),),
        {0: 1},
    )
    limits = []
    for workers in (1, 2, 4):
        contract = records.DataContract(
            index_of, order.Order(4000, 8, 8), 8, 4, workers, num_classes=1
        )
        held = rows.Rows(contract, 0, (8, 8), window_of=None, flip_of=None)
        limits.append(repair.Repair(held, None, "skip", 0.1).limit)
    assert limits == [400, 200, 100]


@pytest.mark.parametrize("remainder", ["carry", "drop"])
def test_rows_of_several_steps_are_those_of_each(tmp_path, remainder):
    record_files.write(tmp_path, [23, 12])
    contract = records.describe(
        str(tmp_path), "train", 6, num_replicas=3, num_workers=3, training=True, seed=5,
        remainder=remainder,
    )  # fmt: skip
    for worker in range(3):
        mine = rows.Rows(contract, worker, (8, 8), crops.sample_crop, crops.flips)
        steps = tf.range(3, 14, dtype=tf.int64)
        one_by_one = [mine.table(step).numpy() for step in steps]
        np.testing.assert_array_equal(mine.table(steps), one_by_one)


@pytest.mark.slow
def test_evaluation_is_exact_on_any_number_of_replicas(tmp_path):
    record_files.write(tmp_path, [7, 3], split="validation")
    whole = take(images.eval_dataset(tmp_path, 4, 16, include_record_ids=True), -1)
    assert [ids.tolist() for _, _, ids in whole] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    again = take(images.eval_dataset(tmp_path, 4, 16), -1)
    for one, other in zip(whole, again, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
    for workers, replicas in ((1, 2), (2, 4), (1, 4)):
        local = replicas // workers
        parts = [
            take(images.eval_dataset(tmp_path, 4, 16, context(w, workers, replicas),
                                     include_record_ids=True), -1) for w in range(workers)
        ]  # fmt: skip
        assert {len(part) for part in parts} == {3 * local}
        for step in range(3):
            rows = [e for part in parts for e in part[step * local : (step + 1) * local]]
            np.testing.assert_array_equal(np.concatenate([row[0] for row in rows]), whole[step][0])
        counts = [len(e[2]) for part in parts for e in part]
        assert sum(counts) == 10 and max(counts) - min(counts) <= 1
        assert min(counts) == {2: 1, 4: 0}[replicas]  # 10 examples do not fill 12 batches


def test_evaluation_padded_for_static_shapes(tmp_path):
    record_files.write(tmp_path, [50], split="validation")
    dataset = images.eval_dataset(tmp_path, 16, 8, pad_remainder=True)
    assert [spec.shape.as_list() for spec in dataset.element_spec] == [[16, 8, 8, 3], [16], [16]]
    batches = take(dataset, -1)
    assert len(batches) == 4 == int(dataset.cardinality())
    assert sum(weight.sum() for _, _, weight in batches) == 50
    assert [weight.sum() for _, _, weight in batches] == [12, 13, 12, 13]
    assert not batches[-1][0][13:].any() and batches[-1][2].tolist() == [1.0] * 13 + [0.0] * 3


def test_evaluation_leaves_bad_pictures_out(tmp_path):
    record_files.write(tmp_path, [6], split="validation", encoded={2: b"", 5: BAD[9]})
    with pytest.raises(tf.errors.InvalidArgumentError, match="record 2 of .*zero bytes"):
        take(images.eval_dataset(tmp_path, 4, 8), -1)
    options = {"on_error": "skip", "include_record_ids": True}
    batches = take(images.eval_dataset(tmp_path, 4, 8, **options), -1)
    assert [ids.tolist() for _, _, ids in batches] == [[0, 1], [3, 4]]
    batches = take(images.eval_dataset(tmp_path, 4, 8, pad_remainder=True, on_error="skip"), -1)
    assert [weight.tolist() for _, _, weight in batches] == [[1, 1, 0, 0], [1, 1, 0, 0]]


@pytest.mark.parametrize("batch", [1, 4])
def test_evaluation_whose_last_record_is_bad(tmp_path, batch):
    record_files.write(tmp_path, [8], split="validation", encoded={7: b""})
    with pytest.raises(tf.errors.InvalidArgumentError, match="record 7 of .*zero bytes"):
        take(images.eval_dataset(tmp_path, batch, 8), -1)
    options = {"on_error": "skip", "include_record_ids": True}
    found = take(images.eval_dataset(tmp_path, batch, 8, **options), -1)
    assert len(found) == 8 // batch
    assert [i for _, _, ids in found for i in ids] == list(range(7))


def test_arguments_are_checked(folder):
    for options, message in (
        ({"on_error": "ignore"}, "'ignore'"),
        ({"cache": "ram"}, "cache='ram'"),
        ({"remainder": "pad"}, "'pad'"),
    ):
        with pytest.raises(ValueError, match=message):
            train(folder, **options)
    with pytest.raises(ValueError, match="image_size=0"):
        train(folder, 4, 0)


def test_each_argument_is_checked_before_any_file_is_read():
    both = {
        "global_batch_size": [(True, "no integer"), (8.0, "no integer"), ("8", "no integer"),
                              (0, "not a positive multiple")],
        "image_size": [("16", "no integer"), (16.5, "no integer"), (True, "no integer"),
                       (-1, "at least 1"), ((16,), "neither an integer nor"), (None, "no integer")],
        "input_context": [("x", "no tf.distribute.InputContext")],
        "num_classes": [(0, "at least 1"), (2.0, "no integer")],
        "label_offset": [(0.5, "no integer")],
        "max_bad_share": [(2, r"outside \[0, 1\]"), (-0.1, r"outside"), ("1", "no number")],
        "threads": [(0, r"in \[1, 1024\]"), (1.5, "no integer"), ("all", 'wanted "auto" or')],
        "on_error": [("ignore", "none of 'raise', 'skip'")],
        "cache": [("ram", "none of 'memory', 'disk', 'decoded'")],
    }  # fmt: skip
    only = {
        images.train_dataset: {
            "area_range": [((0.5, 0.1), "0.5 > 0.1; wanted"), (0.5, "no pair"), ("ab", "no pair"),
                           ((0, 1), r"\(0, 1\]"), ((0.5, 1.5), r"\(0, 1\]")],
            "aspect_range": [((2, 1), "2.0 > 1.0; wanted"), ((0, 1), r"\(0, inf\)"),
                             ((1, float("inf")), "outside")],
            "initial_step": [(-1, r"in \[0, "), (1.5, "no integer")],
            "seed": [(1.5, "no integer"), (2**63, r"in \[-9223372036854775808, ")],
        },
        images.eval_dataset: {
            "crop_fraction": [(0, r"\(0, 1\]"), (2, "outside"), (-1, "outside"),
                              (float("nan"), "outside"), (None, "no number")],
        },
    }  # fmt: skip
    for function, own in only.items():
        for name, cases in {**both, **own}.items():
            for value, message in cases:
                options = {"global_batch_size": 4, "image_size": 16, name: value}
                with pytest.raises((TypeError, ValueError), match=message) as error:
                    function("/absent", **options)
                said = f"{name}={value!r}"
                if isinstance(value, tuple) and said not in str(error.value):
                    said = f"{name}["  # one of the pair
                assert said in str(error.value)


def test_threads_are_bounded_on_request(folder):
    dataset = train(folder, threads=1)
    assert dataset.options().threading.private_threadpool_size == 1
    assert len(take(dataset, 2)) == 2


def test_iterator_outlives_its_dataset_and_stops_at_once(folder):
    iterator = iter(train(folder, cache="memory"))
    gc.collect()
    first = [next(iterator)[2].numpy() for _ in range(4)]
    assert sorted(np.concatenate(first[:3])) == list(range(12))
    del iterator
    gc.collect()


def test_clock_counts_what_the_consumer_waits():
    import time

    def slow(x):
        time.sleep(0.05)
        return x

    before = clock.waited_seconds()
    dataset = tf.data.Dataset.range(4).map(lambda x: tf.numpy_function(slow, [x], tf.int64))
    assert [int(x) for x in clock.timed(dataset)] == [0, 1, 2, 3]
    assert 0.2 <= clock.waited_seconds() - before < 2
    assert clock.timed(dataset).cardinality() == 4
    assert clock.timed(dataset.repeat()).cardinality() == tf.data.INFINITE_CARDINALITY
