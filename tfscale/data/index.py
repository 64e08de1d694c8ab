"""The index of a split: which files, where each record lies in them, which labels occur."""

import collections
import dataclasses
import hashlib
import json
import logging
import os
import re
import uuid

import numpy as np
import tensorflow as tf

FORMAT = "tfscale-records"
VERSION = 2
_STORED = "name", "bytes", "lengths", "heights", "widths"
FRAME = 16  # a TFRecord frames its payload by 8 + 4 bytes before and 4 after

logger = logging.getLogger("tfscale")


@dataclasses.dataclass(frozen=True)
class Shard:
    """One TFRecord file.

    Args:
        name: `str`, in the folder.
        bytes: `int`, its size.
        lengths: `tuple` of `int`, the payload bytes of each record.
        heights, widths: `tuple` of `int`, pixels of each picture; 0 where it cannot be told.
        gaps: `tuple` of (number, bytes): how much is lost before the record of that number.
            Only of a damaged file without an index; not stored.
    """

    name: str
    bytes: int
    lengths: tuple[int, ...]
    heights: tuple[int, ...]
    widths: tuple[int, ...]
    gaps: tuple[tuple[int, int], ...] = ()

    def __post_init__(self):
        if not len(self.lengths) == len(self.heights) == len(self.widths):
            raise ValueError(
                f"{self.name}: {len(self.lengths)} lengths, {len(self.heights)} heights and "
                f"{len(self.widths)} widths"
            )

    @property
    def offsets(self):
        """Byte at which each record's frame begins."""
        sizes = np.asarray(self.lengths, np.int64) + FRAME
        offsets = np.cumsum(sizes) - sizes
        for number, lost in self.gaps:
            offsets[number:] += lost
        return offsets


@dataclasses.dataclass(frozen=True)
class RecordIndex:
    """Everything about a split that can be known without decoding a picture.

    Records are numbered through the files in their order. Offsets are not stored: they are the
    running sum of the framed lengths.

    Args:
        directory: `str`, the folder of the files.
        split: `str`, such as "train".
        shards: `tuple` of `Shard`.
        label_counts: `dict` of label to number of records.
        class_names: `tuple` of `str`, by label; empty if unknown.
        options: `dict`: how `prepare` made the records.
    """

    directory: str
    split: str
    shards: tuple[Shard, ...]
    label_counts: dict[int, int]
    class_names: tuple[str, ...] = ()
    options: dict = dataclasses.field(default_factory=dict)

    @property
    def num_records(self):
        return sum(len(shard.lengths) for shard in self.shards)

    @property
    def paths(self):
        return [os.path.join(self.directory, shard.name) for shard in self.shards]

    def locations(self):
        """Returns `(files, offsets, lengths)`: for each record its file's number and its place."""
        counts = [len(shard.lengths) for shard in self.shards]
        files = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        offsets = np.concatenate([shard.offsets for shard in self.shards])
        lengths = np.concatenate([np.asarray(s.lengths, np.int64) for s in self.shards])
        return files, offsets, lengths

    def sizes(self):
        """Returns `(heights, widths)` of the pictures, int64 arrays; 0 where it cannot be told."""
        return tuple(
            np.concatenate([np.asarray(getattr(s, side), np.int64) for s in self.shards])
            for side in ("heights", "widths")
        )

    def locate(self, record):
        """Returns `(path, number in the file, offset, length)` of a record."""
        for path, shard in zip(self.paths, self.shards, strict=True):
            if record < len(shard.lengths):
                return path, int(record), int(shard.offsets[record]), shard.lengths[record]
            record -= len(shard.lengths)
        raise IndexError("no such record")

    def digest(self):
        """Returns a hex digest of names, sizes and record lengths: equal data, equal digest."""
        digest = hashlib.sha256()
        for shard in self.shards:
            digest.update(f"{shard.name}\0{shard.bytes}\0".encode())
            digest.update(np.asarray(shard.lengths, "<i8").tobytes())
        return digest.hexdigest()[:16]

    def problems(self):
        """Returns what is wrong with the files, one line each, by their sizes alone."""
        found = []
        for path, shard in zip(self.paths, self.shards, strict=True):
            if not tf.io.gfile.exists(path):
                found.append(f"{path} is missing ({len(shard.lengths)} records)")
                continue
            size = tf.io.gfile.stat(path).length
            if size == shard.bytes:
                continue
            kept = int(np.sum(shard.offsets + np.asarray(shard.lengths) + FRAME <= size))
            text = f"{path} has {size} bytes, the index says {shard.bytes}"
            if size < shard.bytes:
                lost = len(shard.lengths) - kept
                text += f": cut in record {kept}, {lost} of {len(shard.lengths)} records lost"
            found.append(text + gzip_hint(path))
        names = {shard.name for shard in self.shards}
        for path in record_files(self.directory, self.split):
            if os.path.basename(path) not in names:
                found.append(f"{path} is not in the index")
        return found

    def save(self):
        """Writes the index beside the files, in one piece or not at all."""
        path = index_path(self.directory, self.split)
        content = {
            "format": FORMAT,
            "version": VERSION,
            "split": self.split,
            "num_records": self.num_records,
            "class_names": self.class_names,
            "label_counts": {str(k): v for k, v in sorted(self.label_counts.items())},
            "options": self.options,
            "shards": [{key: getattr(shard, key) for key in _STORED} for shard in self.shards],
        }
        content["checksum"] = checksum(content)
        write_atomically(path, json.dumps(content, ensure_ascii=False, separators=(",", ":")))
        return path


def load(directory, split):
    """Reads the index of `split` in `directory`; None if there is none.

    Raises:
        ValueError: if the file is no index, or of a version that this code does not know.
    """
    path = index_path(directory, split)
    if not tf.io.gfile.exists(path):
        return None
    with tf.io.gfile.GFile(path) as file:
        try:
            content = json.loads(file.read())
        except ValueError as error:
            raise ValueError(f"{path} is not JSON ({error}); delete it to index again") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is not an index of records; delete it to index again")
    if content.get("version") != VERSION:
        raise ValueError(
            f"{path} has version {content.get('version')}, this tfscale reads version {VERSION}; "
            "delete it to index again"
        )
    if content.get("checksum") != checksum(content):
        raise ValueError(
            f"{path} was changed since it was written (its checksum differs); delete it to index "
            "again"
        )
    try:
        found = RecordIndex(
            directory=str(directory),
            split=split,
            shards=tuple(
                Shard(*shard_of[:2], *(tuple(map(int, each)) for each in shard_of[2:]))
                for shard_of in ([shard[key] for key in _STORED] for shard in content["shards"])
            ),
            label_counts=collections.Counter(
                {int(label): count for label, count in content["label_counts"].items()}
            ),
            class_names=tuple(content["class_names"]),
            options=dict(content["options"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} is damaged ({reason}); delete it to index again") from None
    if not found.num_records:
        raise ValueError(f"{path} lists no records; delete it to index again")
    return found


def checksum(content):
    """Returns the digest of an index: a changed height would pass for a smaller picture."""
    rest = {key: value for key, value in content.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def index_path(directory, split):
    return os.path.join(str(directory), f"{split}.index.json")


def record_files(directory, split):
    """Returns the record files of a split: ``SPLIT-*`` and ``SPLIT.tfrecord*``, sorted."""
    found = tf.io.gfile.glob(os.path.join(str(directory), f"{split}-*"))
    found += tf.io.gfile.glob(os.path.join(str(directory), f"{split}.tfrecord*"))
    others = (".json", ".partial", ".txt", ".md")
    return sorted({path for path in found if not path.endswith(others)})


def gaps(paths):
    """Returns which files of sets named ``NAME-00000-of-00004`` are missing, one line a set.

    Example:
        >>> gaps(["train-00000-of-00003", "train-00002-of-00003"])
        ['the names say that there are 3 files, but 1 is missing: train-00001-of-00003']
    """
    sets = collections.defaultdict(dict)
    for path in paths:
        named = re.fullmatch(r"(.*-)(\d+)(-of-)(\d+)(\D*)", os.path.basename(path))
        if named:
            before, number, of, count, after = named.groups()
            sets[before, of + count + after, int(count)][int(number)] = len(number)
    found = []
    for (before, after, count), there in sorted(sets.items()):
        missing = [number for number in range(count) if number not in there]
        if missing:
            width = max(there.values())
            names = [f"{before}{number:0{width}d}{after}" for number in missing[:8]]
            found.append(
                f"the names say that there are {count} files, but {len(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} missing: {', '.join(names)}"
                + (" ..." if len(missing) > 8 else "")
            )
    return found


def gzip_hint(path):
    """Returns a remark if the file is gzip-compressed, which rules out reading one record."""
    with tf.io.gfile.GFile(path, "rb") as file:
        if file.read(2) != b"\x1f\x8b":
            return ""
    return (
        ": it is gzip-compressed (starts with 1f 8b), in which single records cannot be read; "
        "write it with compression_type='' or decompress it: gunzip -S '' FILE"
    )


def write_atomically(path, text):
    """Writes `text` under another name and renames it, so that no reader sees half a file."""
    partial = f"{path}.{uuid.uuid4().hex[:8]}.partial"
    try:
        with tf.io.gfile.GFile(partial, "w") as file:
            file.write(text)
        tf.io.gfile.rename(partial, path, overwrite=True)
    except BaseException:
        if tf.io.gfile.exists(partial):
            tf.io.gfile.remove(partial)
        raise
