"""The C ops: the pixels and payloads of the TensorFlow path, whatever is wrong declined in silence.

They are optional, and without them these tests skip; tests/run.sh builds them.
"""

import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageFile

from tests import record_files
from tfscale.data import cache_pictures, jpeg, native, reading

SOURCES = Path(native.__file__).parent / "_native"
HARNESS = Path(__file__).parent / "native" / "fuzz.c"

built = pytest.mark.skipif(
    not native.LIBRARY.exists(),
    reason="the C ops are not built (python setup.py build_ext --inplace; needs libjpeg-turbo)",
)


def noisy(rng, height, width):
    """A picture with edges and noise, which no resize flatters."""
    image = record_files.picture(int(rng.integers(100)), height, width).astype(int)
    image += rng.integers(-40, 40, image.shape)
    image[:, width // 2 :] = 255 - image[:, width // 2 :]
    return np.clip(image, 0, 255).astype(np.uint8)


def random_window(rng, height, width):
    tall, wide = rng.integers(1, height + 1), rng.integers(1, width + 1)
    return [rng.integers(height - tall + 1), rng.integers(width - wide + 1), tall, wide]


def by_tensorflow(encoded, window, flip, size, ratio=1):
    """The picture as TensorFlow's ops give it."""
    window = tf.constant(window, tf.int32) // ratio
    image = tf.io.decode_and_crop_jpeg(encoded, window, 3, ratio=ratio, dct_method=jpeg.DCT)
    image = jpeg.resize(image, size).numpy()
    return image[:, ::-1] if flip else image


def decode(pictures, windows, flips=None, size=(20, 30), labels=None, **options):
    flips = [False] * len(pictures) if flips is None else flips
    examples = [
        record_files.serialised(number, encoded, labels and labels[number])
        for number, encoded in enumerate(pictures)
    ]
    windows = np.array(windows, np.int32).reshape(-1, 4)
    parts = native.decode_examples(examples, windows, flips, size, **options)
    return [part.numpy() for part in parts]


def assert_close(image, expected):
    assert np.abs(image.astype(int) - expected.astype(int)).max() <= 1


@built
def test_the_ops_are_there_unless_switched_off(monkeypatch):
    monkeypatch.delenv("TFSCALE_NATIVE", raising=False)
    assert native.available()
    monkeypatch.setenv("TFSCALE_NATIVE", "0")
    assert not native.available()


def test_without_the_library_they_are_not_there(monkeypatch):
    monkeypatch.setattr(native, "LIBRARY", Path("/nowhere/ops.so"))
    monkeypatch.setattr(native, "_ops", native._ops.__wrapped__)
    assert not native.available()


def test_a_library_that_does_not_load_is_named_once(monkeypatch, tmp_path, caplog):
    broken = tmp_path / "ops.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(native, "LIBRARY", broken)
    monkeypatch.setattr(native, "_ops", native._ops.__wrapped__)
    assert not native.available()
    assert "ops.so" in caplog.text


@built
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "grey"])
def test_random_windows_equal_tensorflow(subsampling, progressive, monkeypatch):
    monkeypatch.setattr(ImageFile, "MAXBLOCK", 1 << 20)  # else Pillow fails on noise
    rng = np.random.default_rng([len(subsampling), ord(subsampling[-1]), progressive])
    for height, width in [(1, 1), (7, 9), (48, 64), (101, 67), (333, 250)]:
        image = Image.fromarray(noisy(rng, height, width))
        options = {"progressive": progressive, "quality": int(rng.integers(40, 100))}
        if subsampling == "grey":
            image = image.convert("L")
        else:
            options["subsampling"] = subsampling
        encoded = record_files.encode(image, **options)
        windows = [random_window(rng, height, width) for _ in range(6)]
        windows += [[0, 0, height, width], [height - 1, width - 1, 1, 1]]
        flips = rng.random(len(windows)) < 0.5
        size = (int(rng.integers(1, 80)), int(rng.integers(1, 80)))
        images, _, done = decode([encoded] * len(windows), windows, flips, size)
        assert done.all()
        for image, window, flip in zip(images, windows, flips, strict=True):
            assert_close(image, by_tensorflow(encoded, window, flip, size))


@built
@pytest.mark.parametrize("width", range(1, 28))
def test_every_width_of_the_output(width):
    encoded = record_files.encode(noisy(np.random.default_rng(width), 30, 40))
    images, _, done = decode([encoded] * 2, [[3, 5, 20, 30]] * 2, [False, True], (5, width))
    assert done.all()
    assert_close(images[0], by_tensorflow(encoded, [3, 5, 20, 30], False, (5, width)))
    np.testing.assert_array_equal(images[1], images[0][:, ::-1])


@built
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:0"])
def test_scaled_decoding_equals_tensorflows_ratio(subsampling):
    rng = np.random.default_rng(5)
    encoded = record_files.encode(noisy(rng, 301, 403), subsampling=subsampling)
    size = (16, 20)
    windows = [[13, 21, 31, 300], [13, 21, 32, 40], [17, 3, 63, 200], [17, 3, 64, 81]]
    windows += [[9, 50, 128, 160], [0, 0, 301, 403], [302 - 129, 403 - 161, 128, 161]]
    ratios = [1, 2, 2, 4, 8, 8, 8]
    images, _, done = decode([encoded] * 7, windows, None, size, scaled=True)
    assert done.all()
    for image, window, ratio in zip(images, windows, ratios, strict=True):
        assert_close(image, by_tensorflow(encoded, window, False, size, ratio))


@built
def test_labels_are_those_of_the_records():
    encoded = record_files.encode(record_files.picture())
    labels = [0, 1, -1, 999, 2**62, -(2**63)]
    _, found, done = decode([encoded] * 6, [[0, 0, 48, 64]] * 6, labels=labels)
    assert done.all() and found.tolist() == labels


def bad_pictures():
    """name -> (bytes, window) that the op must leave to TensorFlow."""
    image = record_files.picture()
    good = record_files.encode(image)
    whole = [0, 0, 48, 64]
    middle = bytearray(good)
    middle[len(good) // 2 : len(good) // 2 + 40] = b"\xff\x00" * 20
    marker = good[: len(good) // 2] + b"\xff\xd9" + good[len(good) // 2 + 2 :]
    start = good.index(b"\xff\xc0")
    huge = bytearray(good)
    huge[start + 5 : start + 9] = (65500).to_bytes(2, "big") * 2
    wrong = good[: len(good) - 60] + good[-2:]
    cases = {
        "empty": (b"", whole),
        "two bytes": (b"\xff\xd8", whole),
        "markers only": (b"\xff\xd8\xff\xff\xd9", whole),
        "text": (b"no picture at all", whole),
        "PNG": (record_files.encode(image, "PNG"), whole),
        "GIF": (record_files.encode(image, "GIF"), whole),
        "CMYK": (record_files.encode(Image.fromarray(image).convert("CMYK")), whole),
        "cut": (good[: len(good) // 2], whole),
        "cut, end marker put on": (good[: len(good) // 2] + b"\xff\xd9", whole),
        "bytes left out at the end": (wrong, whole),
        "bytes behind the end": (good + b"\0\0", whole),
        "end marker in the middle": (marker, whole),
        "damaged": (bytes(middle), whole),
        "65500 x 65500": (bytes(huge), whole),
        "65500 x 65500, whole": (bytes(huge), [0, 0, 65500, 65500]),
    }
    for window in (
        [0, 0, 49, 64], [0, 0, 48, 65], [48, 0, 1, 1], [0, 64, 1, 1], [-1, 0, 4, 4], [0, -1, 4, 4],
        [0, 0, 0, 4], [0, 0, 4, 0], [0, 0, -4, 4], [2**31 - 1, 0, 2**31 - 1, 4],
        [0, 2**31 - 1, 4, 2**31 - 1], [1, 0, 2**31 - 1, 4],
    ):  # fmt: skip
        cases[f"window {window}"] = (good, window)
    return cases


@built
def test_what_is_no_sound_jpeg_is_not_done_and_harms_no_other():
    good = record_files.encode(record_files.picture(), subsampling="4:2:0")
    window = [5, 6, 30, 40]
    expected = by_tensorflow(good, window, False, (20, 30))
    cases = bad_pictures()
    pictures, windows = [], []
    for encoded, bad_window in cases.values():
        pictures += [good, encoded]
        windows += [window, bad_window]
    images, labels, done = decode(pictures, windows, labels=[3] * len(pictures))
    assert done[::2].all() and (labels[::2] == 3).all()
    for image in images[::2]:
        assert_close(image, expected)
    assert [name for name, is_done in zip(cases, done[1::2], strict=True) if is_done] == []
    assert not images[1::2].any() and not labels[1::2].any()


@built
def test_a_progressive_header_of_65500_by_65500_costs_no_memory():
    good = record_files.encode(record_files.picture(), progressive=True)
    start = good.index(b"\xff\xc2")
    huge = bytearray(good)
    huge[start + 5 : start + 9] = (65500).to_bytes(2, "big") * 2
    large = bytearray(good)  # under the limit of pixels, above that of coefficients
    large[start + 5 : start + 9] = (8000).to_bytes(2, "big") * 2
    _, _, done = decode([bytes(huge), bytes(large)], [[0, 0, 10, 10]] * 2)
    assert not done.any()


@built
def test_a_jpeg_that_defines_no_tables_does_not_take_those_of_the_one_before():
    good = record_files.encode(record_files.picture())
    bare = good
    for marker in (b"\xff\xdb", b"\xff\xc4"):
        while marker in bare:
            at = bare.index(marker)
            bare = bare[:at] + bare[at + 2 + int.from_bytes(bare[at + 2 : at + 4], "big") :]
    _, _, done = decode([good, bare], [[0, 0, 48, 64]] * 2)
    assert done.tolist() == [True, False]


def message(number, body):
    """A length-delimited protobuf field; bodies are under 128 bytes or are pictures."""
    size, out = len(body), b""
    while True:
        out += bytes([size & 127 | (128 if size > 127 else 0)])
        size >>= 7
        if not size:
            return bytes([number << 3 | 2]) + out + body


@built
def test_examples_in_any_form():
    encoded = record_files.encode(record_files.picture())

    def entry(name, feature):
        return message(1, name) + message(2, feature)

    picture = entry(b"image/encoded", message(1, message(1, encoded)))

    def label(body):
        return entry(b"image/class/label", message(3, body))

    packed, plain = message(1, b"\x85\x01"), b"\x08\x85\x01"

    def features(*entries):
        return message(1, b"".join(message(1, entry) for entry in entries))

    value_first = message(2, message(3, packed)) + message(1, b"image/class/label")
    stranger = entry(b"x", message(2, message(1, b"\0\0\x80\x3f")))
    good = {
        "packed": features(picture, label(packed)),
        "not packed": features(picture, label(plain)),
        "label first": features(label(plain), picture),
        "value before its key": features(picture, value_first),
        "another field": features(stranger, picture, label(packed)),
        "unknown fields": b"\x18\x01\x21" b"8bytes78" b"\x2d4by4" + features(picture, label(plain)),
        "in two messages": features(picture) + features(label(packed)),
    }  # fmt: skip
    whole = features(picture, label(packed))
    bad = {
        "empty": b"",
        "no picture": features(label(packed)),
        "no label": features(picture),
        "two pictures": features(picture, picture, label(packed)),
        "two labels": features(picture, label(packed), label(plain)),
        "a label of two values": features(picture, label(message(1, b"\x01\x02"))),
        "a label of no value": features(picture, label(b"")),
        "a label of bytes": features(picture, entry(b"image/class/label", message(1, packed))),
        "a picture of ints": features(entry(b"image/encoded", message(3, packed)), label(plain)),
        "an endless integer": features(picture, label(b"\x08" + b"\xff" * 11)),
        "a group": features(picture, label(packed)) + b"\x1b\x1c",
        "field 0": b"\x00\x00" + whole,
        "a length too long": whole + b"\x12\x7f",
        "a length of 2**64 - 1": whole + b"\x12" + b"\xff" * 9 + b"\x01",
        **{f"cut at {n}": whole[:n] for n in (1, 2, 3, 10, 40, len(whole) // 2, len(whole) - 1)},
    }  # fmt: skip
    everything = [*good.values(), *bad.values()]
    windows, flips = [[0, 0, 48, 64]] * len(everything), [False] * len(everything)
    images, labels, done = native.decode_examples(everything, windows, flips, (8, 8))
    assert dict(zip([*good, *bad], done.numpy().tolist(), strict=True)) == {
        **dict.fromkeys(good, True),
        **dict.fromkeys(bad, False),
    }
    assert labels.numpy().tolist() == [133] * len(good) + [0] * len(bad)
    for example in good.values():  # the same for TensorFlow
        assert reading.parse(tf.constant(example))[1] == 133


@built
def test_decode_raises_for_shapes_that_do_not_fit():
    example = record_files.serialised(0)
    for windows, flips, size in (
        ([[0, 0, 4, 4]] * 2, [False], (4, 4)),
        ([[0, 0, 4, 4]], [False] * 2, (4, 4)),
        ([[0, 0, 4]], [False], (4, 4)),
        ([[0, 0, 4, 4]], [False], (0, 4)),
        ([[0, 0, 4, 4]], [False], (4, 16385)),
        ([[0, 0, 4, 4]], [False], (4, 4, 4)),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError):
            native.decode_examples([example], windows, flips, size)


def kept(image, label=0):
    return cache_pictures.pack(tf.constant(image), tf.constant(label, tf.int64))


@built
def test_windows_of_kept_pictures_equal_tensorflow():
    rng = np.random.default_rng(11)
    for height, width in [(1, 1), (1, 9), (9, 1), (7, 9), (48, 64), (101, 67)]:
        picture = noisy(rng, max(height, 2), max(width, 2))[:height, :width]
        windows = [random_window(rng, height, width) for _ in range(6)]
        windows += [[0, 0, height, width], [height - 1, width - 1, 1, 1]]
        flips = rng.random(len(windows)) < 0.5
        size = (int(rng.integers(1, 80)), int(rng.integers(1, 80)))
        labels = [int(label) for label in rng.integers(-(2**63), 2**63 - 1, len(windows))]
        pictures = tf.stack([kept(picture, label) for label in labels])
        images, found, done = native.resize_pictures(
            pictures, np.array(windows, np.int32), flips, size
        )
        assert done.numpy().all() and found.numpy().tolist() == labels
        for image, window, flip in zip(images.numpy(), windows, flips, strict=True):
            expected = jpeg.resize(jpeg.crop(tf.constant(picture), window), size)
            assert_close(image, jpeg.flip(expected, tf.constant(flip)).numpy())


@built
def test_what_is_no_kept_picture_is_not_done_and_harms_no_other():
    good = kept(record_files.picture(), 3).numpy()

    def shaped(height, width):
        return good[:8] + np.array([height, width], "<i8").tobytes() + good[24:]

    whole = [0, 0, 48, 64]
    cases = {f"cut to {n}": (good[:n], whole) for n in (0, 1, 22, 63, 64, 79, 80, len(good) - 1)}
    cases["one byte more"] = good + b"\0", whole
    for shape in (
        [0, 64], [48, 0], [-48, -64], [48, 65], [49, 64], [47, 64], [2**62, 4], [2**63 - 1, 1],
        [-(2**63), -1], [48 + 2**32, 64], [3 * 2**30, 2**32], [2**61, 2**3],
    ):  # fmt: skip
        cases[f"shape {shape}"] = shaped(*shape), whole
    cases["empty picture"] = shaped(0, 0)[:64] + bytes(16), whole
    cases |= {name: (good, w) for name, (_, w) in bad_pictures().items() if w != whole}
    pictures, windows = zip(*(pair for case in cases.values() for pair in (case, (good, whole))),
                            strict=True)  # fmt: skip
    images, labels, done = (
        part.numpy()
        for part in native.resize_pictures(
            pictures, np.array(windows, np.int32), [False] * len(pictures), (20, 30)
        )
    )
    assert [name for name, is_done in zip(cases, done[::2], strict=True) if is_done] == []
    assert not images[::2].any() and not labels[::2].any()
    assert done[1::2].all() and (labels[1::2] == 3).all()
    for image in images[1::2]:
        assert_close(image, jpeg.resize(tf.constant(record_files.picture()), (20, 30)).numpy())


@built
def test_an_empty_batch():
    images, labels, done = native.decode_examples(
        tf.zeros([0], tf.string), tf.zeros([0, 4], tf.int32), tf.zeros([0], tf.bool), (4, 6)
    )
    assert images.shape == (0, 4, 6, 3) and labels.shape == (0,) and done.shape == (0,)
    assert native.read_records(["a"], [], [], []).shape == (0,)


@built
def test_in_a_dataset_with_static_shapes(tmp_path):
    record_files.write(tmp_path, [6])
    path = str(tmp_path / "train-00000-of-00001.tfrecord")
    frames = record_files.frames(Path(path))
    lengths = [len(reading.read(path, offset).numpy()) for offset in frames]

    def load(offsets, lengths):
        serialized = native.read_records([path], tf.zeros_like(offsets), offsets, lengths)
        windows = tf.tile([[4, 4, 40, 50]], [2, 1])
        return native.decode_examples(serialized, windows, [False, True], (16, 24))

    dataset = tf.data.Dataset.from_tensor_slices((np.int64(frames), np.int64(lengths)))
    dataset = dataset.batch(2, drop_remainder=True).map(load, num_parallel_calls=4)
    assert dataset.element_spec[0].shape == (2, 16, 24, 3)
    number = 0
    for images, labels, done in dataset:
        assert done.numpy().all()
        for image, label in zip(images.numpy(), labels.numpy(), strict=True):
            encoded, expected = reading.parse(reading.read(path, frames[number]))[:2]
            assert label == expected
            flip = bool(number % 2)
            assert_close(image, by_tensorflow(encoded, [4, 4, 40, 50], flip, (16, 24)))
            number += 1
    assert number == 6


@pytest.fixture
def files(tmp_path):
    """Two files of payloads of many sizes: (paths, rows of (file, offset, payload))."""
    rng = np.random.default_rng(3)
    sizes = [0, 1, 7, 8, 22, 23, 100, 3071, 3072, 3073, 70_001, 300_000]
    paths, rows = [], []
    for file in range(2):
        paths.append(str(tmp_path / f"{file}.tfrecord"))
        offset = 0
        with tf.io.TFRecordWriter(paths[-1]) as writer:
            for size in sizes[file:]:
                payload = rng.bytes(size)
                writer.write(payload)
                rows.append((file, offset, payload))
                offset += size + 16
    return paths, rows


def read(paths, rows):
    numbers, offsets, payloads = zip(*rows, strict=True)
    lengths = [len(payload) for payload in payloads]
    return native.read_records(paths, numbers, offsets, lengths).numpy().tolist()


@built
def test_records_equal_those_of_reading(files):
    paths, rows = files
    rows = rows[::-1] + rows[:5]
    assert read(paths, rows) == [payload for _, _, payload in rows]
    for (file, offset, _), payload in zip(rows, read(paths, rows), strict=True):
        assert reading.read(paths[file], offset).numpy() == payload


@built
@pytest.mark.parametrize("at", ["length", "crc of length", "payload", "crc of payload"])
def test_a_flipped_byte_empties_its_record_only(files, at):
    paths, rows = files
    file, offset, payload = rows[6]
    places = {"length": 0, "crc of length": 9, "payload": 12 + 50, "crc of payload": 12 + 103 - 1}
    record_files.flip_byte(Path(paths[file]), offset + places[at])
    expected = [payload for _, _, payload in rows]
    expected[6] = b""
    assert read(paths, rows) == expected


@built
def test_what_is_not_a_record_is_empty(files, tmp_path):
    paths, rows = files
    (tmp_path / "empty").touch()
    cut = tmp_path / "cut"
    cut.write_bytes(Path(paths[0]).read_bytes()[:-1])
    paths += [str(tmp_path / "missing"), str(tmp_path), str(tmp_path / "empty"), str(cut)]
    paths += ["/dev/zero", "", "x" * 5000, "a\0b"]
    last = max(offset for file, offset, _ in rows if file == 0)
    big = 2**63 - 1
    bad = [
        (0, 1, 7), (0, 0, 1), (0, -1, 1), (0, 0, -1), (0, big, 1), (0, 0, big), (0, big, big),
        (0, last, 300_001), (0, last + 300_016, 0), (-1, 0, 1), (len(paths), 0, 1), (big, 0, 1),
        (2, 0, 1), (3, 0, 1), (4, 0, 0), (5, last, 300_000), (6, 0, 1), (7, 0, 1), (8, 0, 1),
        (9, 0, 1),
    ]  # fmt: skip
    good = (1, rows[-1][1], 300_000)
    mixed = [row for one in bad for row in (one, good)]
    payloads = native.read_records(paths, *zip(*mixed, strict=True)).numpy()
    assert payloads[::2].tolist() == [b""] * len(bad)
    assert (payloads[1::2] == rows[-1][2]).all()
    with pytest.raises(tf.errors.InvalidArgumentError):
        native.read_records(paths, [0], [0, 0], [1, 1])


@built
def test_a_replaced_or_removed_file_is_noticed(tmp_path):
    path = tmp_path / "a.tfrecord"

    def write(payload):
        with tf.io.TFRecordWriter(str(tmp_path / "new")) as writer:
            writer.write(payload)
        (tmp_path / "new").rename(path)

    call = tf.function(lambda offset: native.read_records([str(path)], [0], [offset], [3])[0])
    start = tf.constant(0, tf.int64)
    write(b"old")
    assert call(start) == b"old"
    write(b"new")
    assert call(start) == b"new"
    path.unlink()
    assert call(start) == b""


@built
def test_more_files_than_are_kept_open_from_many_threads(tmp_path):
    count, results = 150, []
    paths = [str(tmp_path / f"{number}") for number in range(count)]
    for number, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as writer:
            writer.write(b"%05d" % number)
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    call = tf.function(
        lambda order: native.read_records(
            paths, order, tf.zeros_like(order), tf.fill(tf.shape(order), tf.constant(5, tf.int64))
        )
    )

    def work(seed):
        order = np.random.default_rng(seed).integers(0, count, 400)
        expected = [b"%05d" % number for number in order]
        results.append(call(tf.constant(order)).numpy().tolist() == expected)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [True] * 8
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_before + 64


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory):
    """The harness with the sanitizers, and files to begin from."""
    folder = tmp_path_factory.mktemp("fuzz")
    names = ("crc32c", "example", "jpeg_window", "kept_picture", "resize")
    sources = [SOURCES / f"{name}.c" for name in names]
    command = [
        "gcc",
        "-std=c11",
        "-D_GNU_SOURCE",
        "-g",
        "-O1",
        f"-I{SOURCES}",
        "-o",
        folder / "fuzz",
    ]
    command += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]  # fmt: skip
    subprocess.run([*command, HARNESS, *sources, "-ljpeg"], check=True, timeout=120)
    number = 0
    for height, width in ((48, 64), (33, 47), (8, 8), (1, 1)):
        image = Image.fromarray(record_files.picture(number, height, width))
        pictures = [image.convert("L"), image.convert("CMYK")]
        forms = [(picture, {}) for picture in pictures]
        forms += [
            (image, {"subsampling": subsampling, "progressive": progressive, **restarts})
            for subsampling in (0, 1, 2)
            for progressive in (False, True)
            for restarts in ({}, {"restart_marker_blocks": 2})
        ]
        for picture, options in forms:
            (folder / f"{number}.jpg").write_bytes(record_files.encode(picture, **options))
            number += 1
    for number in range(4):
        (folder / f"{number}.example").write_bytes(record_files.serialised(number))
        image = record_files.picture(number, 20 + number, 30)
        (folder / f"{number}.kept").write_bytes(kept(image, number).numpy())
    return folder


@built
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_damaged_input_under_the_sanitizers(fuzzer):
    seeds = sorted([*fuzzer.glob("*.jpg"), *fuzzer.glob("*.example"), *fuzzer.glob("*.kept")])
    run = subprocess.run(
        [fuzzer / "fuzz", "20000", "1", *seeds], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    counts = [int(word) for word in run.stdout.split() if word.isdigit()]
    assert len(counts) == 6
    for done, seen in zip(counts[::2], counts[1::2], strict=True):
        assert 0 < done < seen, run.stdout
