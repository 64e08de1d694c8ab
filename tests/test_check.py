"""The check of records finds every fault and nothing else."""

import dataclasses
import json
import re
import statistics

import pytest
import tensorflow as tf

from tests import record_files
from tfscale.data import check, findings, index, progress, records


def run(folder, capsys, *arguments):
    code = check.main([str(folder), *arguments])
    return code, capsys.readouterr().out


def test_good_records_pass(tmp_path, capsys):
    record_files.write(tmp_path, [5, 3])
    record_files.write(tmp_path, [2], split="validation")
    code, text = run(tmp_path, capsys)
    assert code == 0 and "train: 8 records in 2 file(s): all good" in text
    assert "validation: 2 records" in text


def test_each_bad_record_is_named(tmp_path, capsys):
    cut = record_files.encode(record_files.picture(7))[:-300]
    labels = [0, 1, 2, 0, 1, 2, 9, 1, 2, 0]
    record_files.write(tmp_path, [4, 6], labels=labels, encoded={2: b"", 7: cut})
    records.find(tmp_path)
    path = tmp_path / "train-00001-of-00002.tfrecord"
    record_files.flip_byte(path, record_files.frames(path)[5] + 60)
    code, text = run(tmp_path, capsys, "--num_classes=3")
    assert code == 1 and "4 bad record(s), 0 other fault(s)" in text
    for number, reason in ((2, "zero bytes"), (2, "label 9 is outside"), (3, "truncated JPEG"),
                           (5, "CRC mismatch")):  # fmt: skip
        assert any(f"record {number} of" in line and reason in line for line in text.split("\n"))
    code, text = run(tmp_path, capsys, "--num_classes=10", "--no-decode")
    assert code == 1 and "2 bad record(s)" in text  # the truncated picture passes


def test_wrong_size_in_the_record_is_found(tmp_path, capsys):
    record_files.write(tmp_path, [3], size=(48, 65))
    code, text = run(tmp_path, capsys)
    assert code == 1 and text.count("says height x width 48 x 65, is 48 x 64") == 3


def test_cut_and_missing_files(tmp_path, capsys):
    record_files.write(tmp_path, [4, 4])
    records.find(tmp_path)
    first, second = sorted(tmp_path.glob("*.tfrecord"))
    first.write_bytes(first.read_bytes()[: record_files.frames(first)[3] + 30])
    second.unlink()
    code, text = run(tmp_path, capsys)
    assert code == 1 and "cut in record 3, 1 of 4 records lost" in text and "is missing" in text
    assert "5 bad record(s), 2 other fault(s)" in text


@pytest.mark.parametrize("damage", ["cut", "length"])
def test_damage_in_files_without_an_index(tmp_path, capsys, damage):
    record_files.write(tmp_path, [4, 4])
    path = sorted(tmp_path.glob("*.tfrecord"))[0]
    places = record_files.frames(path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[: places[2] + 30])
    else:
        record_files.flip_byte(path, places[2])
    code, text = run(tmp_path, capsys)
    assert code == 1 and f"record 2 of {path}" in text
    assert "0 bad record(s), 1 other fault(s)" in text
    # What was given up must not become the index.
    assert not list(tmp_path.glob("*.json"))


def test_records_without_any_label_want_a_number_of_classes(tmp_path, capsys):
    with tf.io.TFRecordWriter(str(tmp_path / "train.tfrecord")) as writer:
        writer.write(tf.train.Example().SerializeToString())
    assert check.main([str(tmp_path)]) == 2
    assert "no label known; pass num_classes" in capsys.readouterr().err
    code, text = run(tmp_path, capsys, "--num_classes=3")
    assert code == 1 and "no field 'image/encoded'" in text


def edit_index(folder, **changes):
    dataclasses.replace(index.load(folder, "train"), **changes).save()


def edit_shard(folder, number, change, *keys):
    """Replaces some of a shard's tuples by what `change` makes of them as lists."""
    shards = list(index.load(folder, "train").shards)
    changed = {key: list(getattr(shards[number], key)) for key in keys}
    for values in changed.values():
        change(values)
    changed = {key: tuple(values) for key, values in changed.items()}
    shards[number] = dataclasses.replace(shards[number], **changed)
    edit_index(folder, shards=tuple(shards))


def put(at, value):
    return lambda values: values.__setitem__(at, value)


EACH = "lengths", "heights", "widths"


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda f: edit_shard(f, 0, put(2, 47), "heights"),
         r"record 2 of .*: the index says height x width 47 x 64, is 48 x 64"),
        (lambda f: edit_shard(f, 1, put(0, 65), "widths"), "48 x 65, is 48 x 64"),
        (lambda f: edit_index(f, label_counts={0: 2, 1: 4, 2: 2, 3: 2}),
         "label 1: 4 in the index, 2 in the files; delete it"),
        (lambda f: edit_index(f, label_counts={0: 2, 1: 1, 2: 2, 3: 2}),
         "label 1: 1 in the index, 2 in the files"),
        (lambda f: edit_index(f, label_counts={0: 2, 1: 2, 2: 2, 3: 2, 7: 1}),
         "label 7: 1 in the index, 0 in the files"),
        (lambda f: edit_shard(f, 1, lambda values: values.pop(), *EACH),
         r"2 records of .*00001-of-00002.tfrecord take \d+ bytes, but it says that the file has"),
        (lambda f: edit_shard(f, 1, put(2, 11), "lengths"), "3 records of .* take"),
        (lambda f: edit_index(f, shards=index.load(f, "train").shards[:1]),
         "00001-of-00002.tfrecord is not in the index"),
    ],
)  # fmt: skip
def test_what_the_index_says_is_compared_with_what_is_there(tmp_path, capsys, change, message):
    record_files.write(tmp_path, [5, 3])
    records.find(tmp_path)
    change(tmp_path)
    before = (tmp_path / "train.index.json").read_bytes()
    code, text = run(tmp_path, capsys)
    assert code == 1 and re.search(message, text), text
    assert (tmp_path / "train.index.json").read_bytes() == before


def test_labels_of_bad_records_are_not_missed(tmp_path, capsys):
    record_files.write(tmp_path, [8])
    records.find(tmp_path)
    path = next(tmp_path.glob("*.tfrecord"))
    record_files.flip_byte(path, record_files.frames(path)[3] + 100)
    code, text = run(tmp_path, capsys)
    assert code == 1 and "1 bad record(s), 0 other fault(s)" in text


def test_classes_are_counted(tmp_path, capsys):
    record_files.write(tmp_path, [9])
    records.find(tmp_path)
    edit_index(tmp_path, class_names=("ape", "bat", "cat", "dog"))
    _, text = run(tmp_path, capsys)
    rows = [line.split() for line in text.split("\n")]
    assert rows[:5] == [["label", "count", "name"], ["0", "3", "ape"], ["1", "2", "bat"],
                        ["2", "2", "cat"], ["3", "2", "dog"]]  # fmt: skip


def test_many_classes_are_summed_up():
    counts = {label: 100 + label for label in range(50)}
    assert findings.class_lines(counts, (), 50) == [
        "  50 classes of 100 to 149 records, median 124.5"
    ]
    names = [f"class{label}" for label in range(50)]
    counts.update({7: 12, 8: 13, 30: 0})
    shown = findings.class_lines(counts, names, 50)
    median = statistics.median(counts.values())
    assert median == 123.5
    assert shown[0] == f"  50 classes of 0 to 149 records, median {median}"
    assert shown[1] == "  1 never occur, 1 are rarer than a tenth of that:"
    assert [line.split() for line in shown[3:]] == [["7", "12", "class7"], ["30", "0", "class30"]]


def test_findings_as_json(tmp_path, capsys):
    record_files.write(tmp_path, [4, 4])
    records.find(tmp_path)
    path = sorted(tmp_path.glob("*.tfrecord"))[1]
    at = record_files.frames(path)[2]
    size = record_files.frames(path)[3] - at
    record_files.flip_byte(path, at + 100)
    code, text = run(tmp_path, capsys, f"--json={tmp_path / 'found.json'}")
    (split,) = json.loads((tmp_path / "found.json").read_text())["splits"]
    (one,) = split["findings"]
    assert one.pop("text") in text
    assert one == {"split": "train", "file": str(path), "number": 2, "offset": at, "size": size}
    assert split["good_records"] == 7 and [c["records"] for c in split["classes"]] == [2, 2, 1, 2]


def test_progress_says_how_long_still(monkeypatch):
    clock, said = [0.0], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    tell = progress.Progress(said.append, "train", 10_000, "records")
    for second in range(21):
        clock[0] = float(second)
        tell(second * 20)
    assert (
        len(said) == 4 and said[0] == "train: 100 of 10000 records, 20.0 a second, 8 min 15 s left"
    )
    tell = progress.Progress(said.append, "train", 10**7, "records")
    tell(9_000_000)  # by an earlier run
    clock[0] += 10
    tell(9_002_000)
    assert said[-1] == "train: 9002000 of 10000000 records, 200 a second, 1 h 23 min left"


def test_nothing_to_check(tmp_path, capsys):
    assert check.main([str(tmp_path)]) == 2
    assert "holds neither an index nor record files" in capsys.readouterr().err
