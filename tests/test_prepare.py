"""Image folders to records."""

import io
import logging
import os
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests import record_files
from tfscale.data import check, forms, images, index, jpeg, prepare, reading, sources


@pytest.fixture(autouse=True)
def show(caplog):
    caplog.set_level(logging.INFO, "tfscale")


def make(root, counts, nested=""):
    """A class-per-folder directory with `counts` JPEGs a class."""
    for label, (name, count) in enumerate(counts.items()):
        folder = root / name / nested
        folder.mkdir(parents=True)
        for number in range(count):
            (folder / f"{number}.jpg").write_bytes(
                record_files.encode(record_files.picture(10 * label + number))
            )
    return root


def examples(found):
    """The parsed examples of an index, in record order."""
    return [
        tf.train.Example.FromString(payload).features.feature
        for path in found.paths
        for payload in tf.data.TFRecordDataset(path).as_numpy_iterator()
    ]


def value(features, name):
    field = features[name]
    return (field.bytes_list.value or field.int64_list.value)[0]


def test_folders_to_records(tmp_path):
    source = make(tmp_path / "in", {"owl": 10, "ape": 6})
    written = prepare.prepare(source, tmp_path / "out", num_shards=3, validation_fraction=0.2)
    assert {split: found.num_records for split, found in written.items()} == {
        "train": 13, "validation": 3}  # fmt: skip
    found = written["train"]
    assert found.class_names == ("ape", "owl") and found.label_counts == {0: 5, 1: 8}
    assert [shard.name for shard in found.shards] == [
        f"train-{i:05d}-of-00003.tfrecord" for i in range(3)
    ]
    assert index.load(tmp_path / "out", "train") == found
    names = []
    for features in examples(found) + examples(written["validation"]):
        name = value(features, reading.FILENAME).decode()
        names.append(name)
        encoded = value(features, reading.ENCODED)
        assert encoded == (source / name).read_bytes()  # kept byte for byte
        folder = name.split("/")[0]
        assert value(features, reading.TEXT).decode() == folder
        assert value(features, reading.LABEL) == ["ape", "owl"].index(folder)
        assert (value(features, reading.HEIGHT), value(features, reading.WIDTH)) == (48, 64)
        assert value(features, reading.FORMAT) == b"JPEG"
    everything = sorted(p.relative_to(source).as_posix() for p in source.rglob("*.jpg"))
    assert sorted(names) == everything and names != sorted(names)
    assert not any(report.findings for report in check.check(tmp_path / "out", log=lambda _: None))
    batch = next(iter(images.train_dataset(tmp_path / "out", 8, 16)))
    assert batch[0].shape == (8, 16, 16, 3)


def test_same_source_same_bytes_and_done_is_done(tmp_path, caplog):
    source = make(tmp_path / "in", {"a": 5, "b": 5})
    for out in ("x", "y"):
        prepare.prepare(source, tmp_path / out, short_side=20)
    files = sorted(path.name for path in (tmp_path / "x").iterdir())
    assert len(files) == 4 and files == sorted(path.name for path in (tmp_path / "y").iterdir())
    for name in files:
        assert (tmp_path / "x" / name).read_bytes() == (tmp_path / "y" / name).read_bytes()
    before = {name: (tmp_path / "x" / name).stat().st_mtime_ns for name in files}
    caplog.clear()
    prepare.prepare(source, tmp_path / "x", short_side=20)
    assert "already there, 8 records" in caplog.text
    assert before == {name: (tmp_path / "x" / name).stat().st_mtime_ns for name in files}


def test_a_stopped_run_goes_on_and_a_half_written_shard_is_written_again(tmp_path, monkeypatch):
    source = make(tmp_path / "in", {"a": 8, "b": 8})
    wanted = prepare.prepare(source, tmp_path / "whole", num_shards=4, validation_fraction=0)
    serialise, calls = forms.Form.example, []

    def stopped(*arguments):
        calls.append(arguments)
        if len(calls) == 10:
            raise KeyboardInterrupt
        return serialise(*arguments)

    monkeypatch.setattr(forms.Form, "example", stopped)
    with pytest.raises(KeyboardInterrupt):
        prepare.prepare(source, tmp_path / "out", num_shards=4, validation_fraction=0)
    kept = sorted((tmp_path / "out").glob("*.tfrecord"))
    assert 1 <= len(kept) < 4 and list((tmp_path / "out").glob("*.partial"))
    assert index.load(tmp_path / "out", "train") is None
    times = [path.stat().st_mtime_ns for path in kept]
    monkeypatch.setattr(forms.Form, "example", serialise)
    found = prepare.prepare(source, tmp_path / "out", num_shards=4, validation_fraction=0)
    assert times == [path.stat().st_mtime_ns for path in kept]
    assert found["train"].digest() == wanted["train"].digest()
    for shard in found["train"].shards:
        one, other = tmp_path / "out" / shard.name, tmp_path / "whole" / shard.name
        assert one.read_bytes() == other.read_bytes()
    assert not list((tmp_path / "out").glob("*.partial")) + list((tmp_path / "out").glob(".*"))


def test_another_source_or_other_options_are_noticed(tmp_path):
    source = make(tmp_path / "in", {"a": 5, "b": 5})
    prepare.prepare(source, tmp_path / "out")
    with pytest.raises(ValueError, match="already holds records.*changed since: quality"):
        prepare.prepare(source, tmp_path / "out", quality=50)
    (source / "a" / "new.jpg").write_bytes(record_files.encode(record_files.picture(99)))
    with pytest.raises(ValueError, match="changed since: source"):
        prepare.prepare(source, tmp_path / "out")
    written = prepare.prepare(source, tmp_path / "out", overwrite=True)
    assert sum(found.num_records for found in written.values()) == 11
    record_files.write(tmp_path, [3], split="train")
    with pytest.raises(ValueError, match="no note of their source"):
        prepare.prepare(source, tmp_path)


def test_a_picture_replaced_by_one_of_the_same_size_is_noticed(tmp_path, caplog):
    source = make(tmp_path / "in", {"a": 3, "b": 3})
    first = prepare.prepare(source, tmp_path / "out", validation_fraction=0)["train"]
    copy = shutil.copytree(source, tmp_path / "copy", copy_function=shutil.copyfile)
    prepare.prepare(copy, tmp_path / "out", validation_fraction=0)
    assert "already there, 6 records" in caplog.text
    one, data = source / "a" / "1.jpg", record_files.encode(record_files.picture(77))
    size = max(len(data), one.stat().st_size) + 9
    for path, content in ((copy / "a" / "1.jpg", one.read_bytes()), (one, data)):
        path.write_bytes(content.ljust(size, b"\0"))
        os.utime(path, ns=(0, 0))
    prepare.prepare(copy, tmp_path / "out", validation_fraction=0, overwrite=True)
    with pytest.raises(ValueError, match="changed since: source"):
        prepare.prepare(source, tmp_path / "out", validation_fraction=0)
    found = prepare.prepare(source, tmp_path / "out", validation_fraction=0, overwrite=True)
    assert found["train"].options["source"] != first.options["source"]
    kept = {value(f, reading.FILENAME): value(f, reading.ENCODED) for f in examples(found["train"])}
    assert kept[b"a/1.jpg"].startswith(data)


def test_overwriting_deletes_nothing_but_records(tmp_path):
    source, out = make(tmp_path / "in", {"a": 2, "b": 2}), tmp_path / "out"
    prepare.prepare(source, out, validation_fraction=0, num_shards=2)
    others = ("train-holiday.zip", "train-notes.partial", "train-00000-of-00002")
    for name in others:
        (out / name).write_bytes(b"precious")
    with pytest.raises(ValueError, match="train-00000-of-00002, train-holiday.zip.*move such"):
        prepare.prepare(source, out, validation_fraction=0, overwrite=True)
    assert len(list(out.glob("*.tfrecord"))) == 2 and (out / "train.index.json").exists()
    for name in ("train-holiday.zip", "train-00000-of-00002"):
        (out / name).rename(tmp_path / name)
    found = prepare.prepare(source, out, validation_fraction=0, num_shards=1, overwrite=True)
    assert [path.name for path in out.glob("*.tfrecord")] == ["train-00000-of-00001.tfrecord"]
    assert found["train"].num_records == 4
    assert all((f if f.exists() else out / f.name).read_bytes() == b"precious"
               for f in (tmp_path / name for name in others))  # fmt: skip


def test_other_formats_become_jpegs_of_the_right_picture(tmp_path):
    folder = tmp_path / "in" / "all"
    folder.mkdir(parents=True)
    image = Image.fromarray(record_files.picture(5))
    image.save(folder / "a.png")
    image.convert("RGBA").save(folder / "b.png")
    image.save(folder / "c.webp", lossless=True)
    image.save(folder / "d.jpg", "WEBP", lossless=True)  # named wrongly
    image.save(folder / "e.bmp")
    image.convert("CMYK").save(folder / "f.jpg", quality=100, subsampling=0)
    image.convert("L").save(folder / "g.jpeg", quality=95)
    image.convert("L").save(folder / "h.png")
    found = prepare.prepare(tmp_path / "in", tmp_path / "out", validation_fraction=0)["train"]
    for features in examples(found):
        encoded, name = value(features, reading.ENCODED), value(features, reading.FILENAME).decode()
        stored = Image.open(io.BytesIO(encoded))
        assert stored.format == "JPEG" and stored.mode in ("RGB", "L"), name
        original = np.asarray(Image.open(tmp_path / "in" / name).convert("RGB")).astype(int)
        assert np.abs(np.asarray(stored.convert("RGB")) - original).max() <= 12, name
        kept = name.endswith("g.jpeg")
        assert (encoded == (tmp_path / "in" / name).read_bytes()) == kept


def test_resizing_reduces_the_short_side(tmp_path):
    source = make(tmp_path / "in", {"a": 2})
    (source / "a" / "small.jpg").write_bytes(record_files.encode(record_files.picture(1, 10, 12)))
    found = prepare.prepare(source, tmp_path / "out", short_side=24, validation_fraction=0)["train"]
    sizes = {value(f, reading.FILENAME): (value(f, reading.HEIGHT), value(f, reading.WIDTH))
             for f in examples(found)}  # fmt: skip
    assert sizes == {b"a/0.jpg": (24, 32), b"a/1.jpg": (24, 32), b"a/small.jpg": (10, 12)}


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 64])
def test_a_bitmap_has_the_exact_pixels(width):
    image = np.random.RandomState(width).randint(0, 256, [7, width, 3], dtype=np.uint8)
    encoded = forms.encode_bmp(image)
    assert len(encoded) == 54 + 7 * 4 * -(-3 * width // 4)
    np.testing.assert_array_equal(tf.io.decode_image(encoded).numpy(), image)
    np.testing.assert_array_equal(jpeg.decode(tf.constant(encoded)).numpy(), image)
    stored = Image.open(io.BytesIO(encoded))
    assert stored.format == "BMP"
    np.testing.assert_array_equal(np.asarray(stored), image)
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "BMP")
    assert encoded[:38] == buffer.getvalue()[:38]  # what follows is the resolution


def test_pictures_stored_decoded(tmp_path, caplog):
    source = make(tmp_path / "in", {"a": 3, "b": 3})
    (source / "a" / "grey.png").write_bytes(
        record_files.encode(Image.fromarray(record_files.picture(3)).convert("L"), "PNG")
    )
    options = {"validation_fraction": 0, "format": "bmp"}
    found = prepare.prepare(source, tmp_path / "out", short_side=24, **options)["train"]
    for features in examples(found):
        encoded = value(features, reading.ENCODED)
        assert value(features, reading.FORMAT) == b"BMP" and len(encoded) == 54 + 24 * 96
        path = source / value(features, reading.FILENAME).decode()
        wanted = jpeg.shrink(jpeg.decode(tf.constant(path.read_bytes())), 24)
        np.testing.assert_array_equal(tf.io.decode_bmp(encoded), wanted)
    report = check.check(tmp_path / "out", log=lambda _: None)[0]
    assert not report.findings and report.num_good == 7
    assert not [r for r in caplog.records if r.levelname == "WARNING"]
    # Not reduced, they take more than their files: said before they are written.
    prepare.prepare(source, tmp_path / "whole", **options)
    (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    text = r"train: 7 pictures, BMP; about (66\.\d) kB to write, the files have 9.\d kB"
    (estimate,) = re.fullmatch(text, warning).groups()
    assert abs(float(estimate) * 1e3 - 7 * (54 + 48 * 192 + 180)) < 500


def test_originals_are_kept_beside_the_reduced_form(tmp_path, capsys):
    source = make(tmp_path / "in", {"a": 4, "b": 4})
    (source / "a" / "odd.png").write_bytes(record_files.encode(record_files.picture(3), "PNG"))
    (source / "b" / "bad.jpg").write_bytes(b"no")
    arguments = [f"--source={source}", f"--output={tmp_path / 'out'}", "--keep_original"]
    arguments += ["--short_side=16", "--quality=90", "--on_error=skip", "--num_shards=2"]
    assert prepare.main(arguments) == 0
    shown = capsys.readouterr().out
    for split in ("train", "validation"):
        reduced = index.load(tmp_path / "out", split)
        original = index.load(tmp_path / "out" / "original", split)
        assert reduced.num_records == original.num_records
        assert reduced.label_counts == original.label_counts
        for one, other in zip(examples(reduced), examples(original), strict=True):
            name = value(other, reading.FILENAME).decode()
            assert value(one, reading.FILENAME).decode() == name
            assert value(other, reading.ENCODED) == (source / name).read_bytes()
            assert value(other, reading.FORMAT) == (b"PNG" if "odd" in name else b"JPEG")
            assert (value(one, reading.HEIGHT), value(other, reading.HEIGHT)) == (16, 48)
        count = reduced.num_records
        assert f"{split}: {count} records of 2 classes in" in shown
        assert f"original/{split}: {count} records of 2 classes in" in shown
    assert shown.count(" kB a record") == 4
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.tfrecord")}
    assert prepare.main(arguments) == 0
    assert before == {path: path.stat().st_mtime_ns for path in before}


@pytest.mark.parametrize("quality, sampling", [(90, (2, 2)), (95, (1, 1))])
def test_colour_at_half_resolution_below_quality_95(quality, sampling):
    image = Image.open(io.BytesIO(forms.encode_jpeg(record_files.picture(1), quality)))
    assert image.layer[0][1:3] == sampling


def test_help_teaches(capsys):
    with pytest.raises(SystemExit):
        prepare.main(["--help"])
    shown = capsys.readouterr().out
    assert "--short_side=256 --quality=90 is enough" in shown and "example:" in shown


def test_bad_pictures_raise_or_are_counted(tmp_path, caplog):
    source = make(tmp_path / "in", {"a": 4, "b": 4})
    whole = (source / "a" / "0.jpg").read_bytes()
    (source / "a" / "0.jpg").write_bytes(whole[: len(whole) // 2])
    (source / "b" / "1.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match=r"a/0.jpg \(\d+ bytes\): truncated JPEG|1.jpg .*zero byt"):
        prepare.prepare(source, tmp_path / "x", validation_fraction=0)
    found = prepare.prepare(source, tmp_path / "out", validation_fraction=0, on_error="skip")
    assert found["train"].num_records == 6 and "2 of 8 pictures skipped" in caplog.text
    assert "truncated JPEG" in caplog.text and "zero bytes" in caplog.text
    for path in source.rglob("*.jpg"):
        path.write_bytes(b"")
    with pytest.raises(ValueError, match="no record for split 'train': 8 pictures skipped"):
        prepare.prepare(source, tmp_path / "y", validation_fraction=0, on_error="skip")


def test_files_that_cannot_be_read(tmp_path, caplog):
    source = make(tmp_path / "in", {"a": 2, "b": 2})
    (source / "a" / "gone.jpg").symlink_to("nowhere.jpg")
    (source / "a" / "good.jpg").symlink_to("../b/0.jpg")
    os.mkfifo(source / "b" / "pipe.jpg")
    message = "gone.jpg is a link to 'nowhere.jpg', which does not exist. Mend it, or pass on_err"
    with pytest.raises(ValueError, match=message):
        prepare.prepare(source, tmp_path / "out", validation_fraction=0)
    found = prepare.prepare(source, tmp_path / "out", validation_fraction=0, on_error="skip")
    assert found["train"].num_records == 5 and "2 of 7 pictures skipped" in caplog.text
    assert "pipe.jpg is not a regular file" in caplog.text
    assert prepare.prepare(source, tmp_path / "out", validation_fraction=0, on_error="skip")


def test_links_back_are_not_followed(tmp_path, caplog):
    source = make(tmp_path / "in", {"a": 2, "b": 3})
    make(tmp_path / "elsewhere", {"more": 1})
    (source / "whole").symlink_to("../in")
    (source / "a" / "up").symlink_to("..")
    (source / "a" / "same").symlink_to(".")
    (source / "a" / "more").symlink_to("../../elsewhere/more")
    (tmp_path / "elsewhere" / "more" / "back").symlink_to("../../in/a")
    splits, class_names = sources.find(source, 0)
    assert class_names == ("a", "b")
    names = [picture.name for picture in splits["train"]]
    assert names == ["a/0.jpg", "a/1.jpg", "a/more/0.jpg", "b/0.jpg", "b/1.jpg", "b/2.jpg"]
    for link in ("in/whole", "a/up", "a/same", "a/more/back"):
        assert f"{link} is a link back to" in caplog.text


def test_odd_folders(tmp_path, caplog):
    source = make(tmp_path / "in", {"été": 3, "日本": 3}, nested="deep/er")
    (source / "empty").mkdir()
    (source / ".hidden").mkdir()
    (source / ".hidden" / "x.jpg").write_bytes(b"no")
    (source / "été" / ".DS_Store").write_bytes(b"no")
    (source / "été" / "notes.txt").write_text("no")
    (source / "loose.jpg").write_bytes(b"no")
    splits, class_names = sources.find(source, 0)
    assert class_names == ("empty", "été", "日本") and len(splits["train"]) == 6
    assert "empty holds no pictures" in caplog.text and "1 x .txt" in caplog.text
    assert "loose.jpg" in caplog.text and "in no class folder" in caplog.text
    found = prepare.prepare(source, tmp_path / "out", validation_fraction=0)["train"]
    assert index.load(tmp_path / "out", "train").class_names == class_names
    assert found.label_counts == {1: 3, 2: 3}
    (source / "empty" / "scan.tiff").write_bytes(b"no")
    with pytest.raises(ValueError, match="scan.tiff; convert them"):
        sources.find(source)
    assert "in formats" not in caplog.text
    sources.find(source, on_error="skip")
    assert "in formats that TensorFlow cannot read" in caplog.text


def test_names_that_are_no_line_of_text(tmp_path):
    for name in (b"two\nlines", b"tab\tbed", b"\xff"):
        make(tmp_path / "bad", {os.fsdecode(name): 1, "fine": 1})
        with pytest.raises(ValueError, match=r"class name '.*\\.*' is empty, or has a line break"):
            prepare.prepare(tmp_path / "bad", tmp_path / "out")
        shutil.rmtree(tmp_path / "bad")
    with pytest.raises(ValueError, match="class name '' is empty"):
        prepare.prepare_arrays([], tmp_path / "out", "train", ["a", ""])
    source = make(tmp_path / "in", {"a": 1, "b b\u3000": 1})
    odd = source / "a" / os.fsdecode(b"\xff\n.jpg")
    (source / "a" / "0.jpg").rename(odd)
    found = prepare.prepare(source, tmp_path / "out", validation_fraction=0)["train"]
    names = {value(features, reading.FILENAME) for features in examples(found)}
    assert names == {b"a/\xff\n.jpg", "b b\u3000/0.jpg".encode()}


def test_no_source_no_classes_no_pictures(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        sources.find(str(tmp_path / "absent"))
    with pytest.raises(ValueError, match="no class folders"):
        sources.find(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match="holds no pictures"):
        sources.find(tmp_path)
    with pytest.raises(ValueError, match=r"outside \[0, 1\)"):
        sources.find(make(tmp_path / "in", {"a": 1}), 1.0)


def test_source_with_its_own_validation_folder(tmp_path):
    make(tmp_path / "in" / "train", {"a": 3, "b": 3})
    make(tmp_path / "in" / "val", {"a": 2, "b": 1})
    written = prepare.prepare(tmp_path / "in", tmp_path / "out")
    counts = {split: found.num_records for split, found in written.items()}
    assert counts == {"train": 6, "validation": 3}
    (tmp_path / "in" / "val" / "c").mkdir()
    with pytest.raises(ValueError, match=r"different classes: \['c'\]"):
        sources.find(tmp_path / "in")


def test_held_out_pictures_are_of_every_class_and_depend_on_the_seed(tmp_path):
    source = make(tmp_path / "in", {"a": 20, "b": 2, "c": 1})
    splits, _ = sources.find(source, 0.25, seed=1)
    labels = [picture.label for picture in splits["validation"]]
    assert labels == [0] * 5 + [1]
    assert sources.find(source, 0.25, seed=1)[0] == splits
    assert sources.find(source, 0.25, seed=2)[0] != splits
    assert set(sources.find(source, 0)[0]) == {"train"}


def test_arrays_to_records(tmp_path):
    pictures = [(record_files.picture(i, 8, 8)[..., 0], i % 3) for i in range(9)]
    found = prepare.prepare_arrays(iter(pictures), tmp_path, "train", "xyz", num_shards=2)
    assert found.num_records == 9 and found.class_names == ("x", "y", "z")
    for features in examples(found):
        number = int(value(features, reading.FILENAME).decode()[:8])
        decoded = tf.io.decode_jpeg(value(features, reading.ENCODED)).numpy()[..., 0]
        assert np.abs(decoded.astype(int) - pictures[number][0]).max() < 12
        assert value(features, reading.LABEL) == pictures[number][1]
    for image, label, message in (
        (np.zeros([4, 4], np.float32), 0, "float32; wanted uint8"),
        (np.zeros([4, 4, 2], np.uint8), 0, r"\(4, 4, 2\)"),
        (np.zeros([4, 4, 3], np.uint8), 3, r"label 3 is outside \[0, 3\)"),
    ):
        with pytest.raises(ValueError, match=message):
            prepare.prepare_arrays([(image, label)], tmp_path / "x", "train", "xyz")


def test_command_line(tmp_path, capsys):
    source = make(tmp_path / "in", {"a": 3, "b": 3})
    arguments = [f"--source={source}", f"--output={tmp_path / 'out'}", "--short_side=16"]
    assert prepare.main([*arguments, "--validation_fraction=0.34"]) == 0
    shown = capsys.readouterr().out
    assert "train: 4 records of 2 classes in 1 shard(s)" in shown and "validation: 2" in shown
    assert prepare.main(["--source=/absent", f"--output={tmp_path}"]) == 1
    assert "prepare: no folder '/absent'" in capsys.readouterr().err


def test_numbers_out_of_range_are_refused_by_name(tmp_path, capsys):
    source = make(tmp_path / "in", {"a": 1, "b": 1})
    for argument, message in (
        ("--short_side=0", "short_side=0; wanted an integer of at least 1"),
        ("--short_side=-5", "short_side=-5"),
        ("--quality=0", "quality=0; wanted an integer in [1, 100]"),
        ("--quality=500", "quality=500"),
        ("--num_shards=0", "num_shards=0; wanted an integer of at least 1"),
        ("--num_shards=-2", "num_shards=-2"),
        ("--seed=-1", "seed=-1; wanted an integer in [0, 4294967295]"),
        ("--validation_fraction=1", "validation_fraction=1.0 is outside [0, 1)"),
        ("--validation_fraction=-0.1", "validation_fraction=-0.1"),
        ("--validation_fraction=nan", "validation_fraction=nan"),
    ):
        assert prepare.main([f"--source={source}", f"--output={tmp_path / 'out'}", argument]) == 1
        shown = capsys.readouterr().err
        assert shown.count("\n") == 1 and f"prepare: {message}" in shown
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="on_error='ignore' is none of 'raise', 'skip'"):
        prepare.prepare(source, tmp_path / "out", on_error="ignore")
    with pytest.raises(ValueError, match="quality=0"):
        prepare.prepare_arrays([], tmp_path / "out", "train", "ab", quality=0)


def test_a_full_disk_is_one_line_and_the_run_can_go_on(tmp_path, monkeypatch, capsys):
    source = make(tmp_path / "in", {"a": 4, "b": 4})
    arguments = [f"--source={source}", f"--output={tmp_path / 'out'}", "--num_shards=2",
                 "--validation_fraction=0"]  # fmt: skip
    real = tf.io.TFRecordWriter

    class Full(real):
        def write(self, record):
            if "00001-of" in self.path:
                raise tf.errors.ResourceExhaustedError(None, None, "No space left on device\nwhere")
            super().write(record)

        def __init__(self, path):
            super().__init__(path)
            self.path = path

    with monkeypatch.context() as patch:
        patch.setattr(tf.io, "TFRecordWriter", Full)
        assert prepare.main(arguments) == 1
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and "No space left on device (" in shown
    assert "train-00001-of-00002.tfrecord cannot be written" in shown
    assert not list((tmp_path / "out").glob("*.partial"))
    kept = (tmp_path / "out" / "train-00000-of-00002.tfrecord").stat().st_mtime_ns
    assert prepare.main(arguments) == 0
    assert kept == (tmp_path / "out" / "train-00000-of-00002.tfrecord").stat().st_mtime_ns


HALF_INDEX = f'{{"format": "tfscale-records", "version": {index.VERSION}}}'


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("train.index.json", HALF_INDEX, "was changed since it was written .*; delete it"),
        ("train.index.json", "[]", "not an index of records; delete it"),
        (".train.journal.json", "[]", "journal.json is damaged"),
        (".train.journal.json", '{"options"', "journal.json is damaged"),
        (".train.journal.json", '{"options": {}, "shards": {"a": 1}}', "journal.json is damaged"),
    ],
)
def test_a_damaged_index_or_journal_says_the_way_out(tmp_path, name, content, message):
    source, out = make(tmp_path / "in", {"a": 2, "b": 2}), tmp_path / "out"
    options = {"validation_fraction": 0}
    prepare.prepare(source, out, **options)
    (out / "train.index.json").unlink()
    (out / name).write_text(content)
    with pytest.raises(ValueError, match=f"{message}.*[Pp]ass overwrite"):
        prepare.prepare(source, out, **options)
    assert prepare.prepare(source, out, **options, overwrite=True)["train"].num_records == 4
    assert sorted(path.name for path in out.iterdir()) == [
        "train-00000-of-00001.tfrecord", "train.index.json"]  # fmt: skip
