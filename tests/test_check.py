"""The check of records finds every fault and nothing else."""

import pytest
import tensorflow as tf

from tests import record_files
from tfscale.data import check, records


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
    assert code == 1 and "4 bad record(s)" in text
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
    assert "5 bad record(s), 2 bad file(s)" in text


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
    assert "train: 6 records in 2 file(s): 0 bad record(s), 1 bad file(s)" in text
    # What was given up must not become the index.
    assert not list(tmp_path.glob("*.json"))


def test_records_without_any_label_want_a_number_of_classes(tmp_path, capsys):
    with tf.io.TFRecordWriter(str(tmp_path / "train.tfrecord")) as writer:
        writer.write(tf.train.Example().SerializeToString())
    assert check.main([str(tmp_path)]) == 2
    assert "no label known; pass num_classes" in capsys.readouterr().err
    code, text = run(tmp_path, capsys, "--num_classes=3")
    assert code == 1 and "no field 'image/encoded'" in text


def test_nothing_to_check(tmp_path, capsys):
    assert check.main([str(tmp_path)]) == 2
    assert "holds neither an index nor record files" in capsys.readouterr().err
