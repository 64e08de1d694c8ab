"""The same pictures in the forms that the pipelines read: records, files, and windows to cut.

    CACHE/DIGEST/records/     only where DIR holds class folders: tfscale.data.prepare made them
    CACHE/DIGEST/files/       the JPEGs, byte for byte as in the records: LABEL/NUMBER.jpg
    CACHE/DIGEST/list.json    [[path in files/, label, height, width], ...]
    CACHE/DIGEST/windows.txt  for each picture the windows that our sampler draws, for the bound

Made once for each data set: a folder that is there is complete.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

WINDOWS = 8  # for each picture, so that the mean area of those of 1,000 is known to 1 %
# One file would leave pipelines that read several at a time nothing to do so.
SHARDS = 8
_VERSION = 1  # of what is kept


@dataclasses.dataclass(frozen=True)
class Photos:
    """One data set.

    Attributes:
        records: `str`, folder with the split "train".
        paths: `list` of `str`, its record files.
        files: `str`, folder of the JPEGs.
        listing: `str`, path of ``list.json``.
        windows: `str`, path of ``windows.txt``.
        count: `int`, number of pictures.
        mean_bytes, mean_pixels: `float`, of a picture.
        mean_area: `float`, share of a picture's area in the windows.
    """

    records: str
    paths: list[str]
    files: str
    listing: str
    windows: str
    count: int
    mean_bytes: float
    mean_pixels: float
    mean_area: float


def default_cache():
    return os.path.join(tempfile.gettempdir(), "tfscale-input-benchmark")


def find(data_dir, cache_dir=None, say=print):
    """Returns the `Photos` of a folder, made under `cache_dir` if they are not there.

    Args:
        data_dir: `str`, a folder of records with the split "train", or of class folders of JPEGs.
        cache_dir: `str`; None for one under the temporary folder.
        say: function of one `str`.

    Raises:
        FileNotFoundError: if the folder is not there or holds neither.
        ValueError: if a picture is no JPEG, or the records are damaged.
    """
    source = Path(data_dir)
    if not source.is_dir():
        raise FileNotFoundError(
            f"--data_dir={data_dir} is no folder; wanted records (made by python -m "
            "tfscale.data.prepare) or class folders of JPEGs"
        )
    has_records = any(source.glob("train-*")) or any(source.glob("train.*"))
    if not has_records and not any(entry.is_dir() for entry in source.iterdir()):
        raise FileNotFoundError(
            f"--data_dir={data_dir} holds neither records of the split 'train' (train-*) nor class "
            "folders of JPEGs"
        )
    parent = Path(cache_dir or default_cache())
    folder = parent / _digest(source, has_records)
    if not folder.is_dir():
        say(f"preparing the pictures of {source} in {folder} ...")
        parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix="partial-", dir=parent))
        try:
            _make(source, has_records, partial)
            partial.chmod(0o755)
            partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    facts = json.loads((folder / "facts.json").read_text())
    records = Path(source if has_records else folder / "records")
    return Photos(
        records=str(records.resolve()),
        paths=[str(records.resolve() / name) for name in facts.pop("shards")],
        files=str(folder / "files"),
        listing=str(folder / "list.json"),
        windows=str(folder / "windows.txt"),
        **facts,
    )


def _digest(source, has_records):
    """Changes with any file's name, size or time; needs no TensorFlow."""
    digest = hashlib.sha256(f"{_VERSION} {source.resolve()} {WINDOWS}".encode())
    wanted = source.glob("train*") if has_records else source.rglob("*")
    for path in sorted(wanted):
        # An index beside the records may be written by the first run that has none.
        if path.is_file() and path.suffix != ".json":
            stat = path.stat()
            digest.update(f"{path.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:16]


def _make(source, has_records, folder):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # not a word about GPUs
    import tensorflow as tf

    from tfscale.data import prepare, records

    if not has_records:
        prepare.prepare(
            str(source), str(folder / "records"), validation_fraction=0, num_shards=SHARDS
        )
    index = records.find(str(source if has_records else folder / "records"), "train")
    listing, size = [], 0
    for number, example in enumerate(tf.data.TFRecordDataset(index.paths).as_numpy_iterator()):
        fields = tf.train.Example.FromString(example).features.feature
        encoded = fields["image/encoded"].bytes_list.value[0]
        label = fields["image/class/label"].int64_list.value[0]
        if not encoded.startswith(b"\xff\xd8\xff"):
            raise ValueError(f"record {number} of {index.paths} is no JPEG; the peers need JPEGs")
        height, width = map(int, tf.io.extract_jpeg_shape(encoded)[:2])
        name = f"{label:05d}/{number:07d}.jpg"
        path = folder / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded)
        listing.append([name, label, height, width])
        size += len(encoded)
    (folder / "list.json").write_text(json.dumps(listing))
    facts = {
        "shards": [os.path.basename(path) for path in index.paths],
        "count": len(listing),
        "mean_bytes": size / len(listing),
        "mean_pixels": sum(height * width for *_, height, width in listing) / len(listing),
        "mean_area": _write_windows(folder / "windows.txt", listing),
    }
    (folder / "facts.json").write_text(json.dumps(facts))


def _write_windows(path, listing):
    """Writes what `tfscale.data` would cut and mirror; returns the mean share of the area."""
    import numpy as np

    from tfscale.data import crops

    shapes = np.array([entry[2:] for entry in listing], np.int64)
    keys = np.arange(len(listing) * WINDOWS).reshape(WINDOWS, -1)
    windows = np.stack([crops.sample_crop(shapes, row).numpy() for row in keys], 1)
    flips = np.stack([crops.flips(row).numpy() for row in keys], 1)
    with open(path, "w") as file:
        for (name, *_), cuts, mirrored in zip(listing, windows, flips, strict=True):
            numbers = np.concatenate([cuts, mirrored[:, None]], 1).reshape(-1)
            print(name, WINDOWS, *numbers, file=file)
    return float(np.mean(windows[..., 2] * windows[..., 3] / shapes.prod(1)[:, None]))
