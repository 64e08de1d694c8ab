"""The law of bad input, and whether it was kept: what is unharmed comes out, the rest is named.

Of damaged record files: a record whose bytes are as they were comes out once, with its pixels and
its label; every other one is named in `skipped_records` and by the check, with its file and its
byte; and where bad records are an error, the error names a file that is damaged. Without an index,
too, every record comes out that is still whole.
"""

import collections
import itertools
import pathlib
import shutil

import numpy as np
import tensorflow as tf

from tfscale.data import check, eval_dataset, prepare, resync, skipped_records, train_dataset
from tfscale.data import index as index_lib

SIZE = 16  # pixels of the pictures that come out
_trials = itertools.count(1)


def picture(number):
    """Returns a smooth uint8 picture; of another content and size for each number."""
    height, width = 16 + 5 * (number % 5), 18 + 7 * (number % 4)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (5 + c + number % 7) + number) + np.cos(y / (3 + c)) for c in range(3)]
    return (127.5 + 60 * np.stack(waves, -1)).astype(np.uint8)


class RecordLaw:
    """A set of small record files, and what comes out of them when they are whole.

    Args:
        folder: `pathlib.Path`, empty; each trial has a folder of its own below it.
        num_files, per_file: `int`.

    Example:
        ```python
        law = RecordLaw(pathlib.Path("scratch"))
        broken = law.violations([damage.apply(*whole) for whole in law.files])
        ```
    """

    def __init__(self, folder, num_files=16, per_file=4):
        self._folder = pathlib.Path(folder)
        count = num_files * per_file
        examples = [(picture(number), number % 4) for number in range(count)]
        self.index = prepare.prepare_arrays(
            examples, self._folder / "whole", "whole", "abcd", num_shards=num_files
        )
        shards = zip(self.index.paths, self.index.shards, strict=True)
        self.files = [
            (
                pathlib.Path(path).read_bytes(),
                [(int(o), n + index_lib.FRAME) for o, n in
                 zip(shard.offsets, shard.lengths, strict=True)],
            )
            for path, shard in shards
        ]  # fmt: skip
        self._frames = [
            data[offset : offset + size] for data, frames in self.files for offset, size in frames
        ]
        self._wanted = {
            kind: dict(self._read(kind, self._folder / "whole", "whole", "raise"))
            for kind in ("eval", "train")
        }

    def violations(self, contents, kinds=("eval", "train")):
        """Writes damaged files, reads them in every way, and returns what breaks the law.

        Args:
            contents: `list` of `bytes`, one for each of `files`.
            kinds: which datasets read them. Where most records are bad, leave "train" out: it
                may end with an error, as it finds no good record to put in a bad one's place.

        Returns:
            `list` of `str`; empty if the law was kept.
        """
        trial = next(_trials)
        folder = self._folder / f"trial{trial}"
        folder.mkdir()
        try:
            bad, broken = self._bad(contents), []
            for kind in kinds:
                # What was skipped is kept by the split's name, for the whole process.
                split = f"{kind}{trial}"
                self._write(folder, split, contents)
                broken += self._violations_of(kind, folder, split, bad)
            broken += self._violations_of_check(folder, split, bad)
            broken += self._violations_of_raise(folder, split, contents, bad)
            broken += self._violations_without_index(folder, split)
        finally:
            shutil.rmtree(folder)
        return broken

    def _write(self, folder, split, contents):
        named = []
        for number, (shard, content) in enumerate(zip(self.index.shards, contents, strict=True)):
            name = f"{split}-{number:05d}-of-{len(contents):05d}.tfrecord"
            (folder / name).write_bytes(content)
            named.append({**vars(shard), "name": name})
        shards = tuple(index_lib.Shard(**entry) for entry in named)
        whole = self.index
        index_lib.RecordIndex(
            str(folder), split, shards, whole.label_counts, whole.class_names, whole.options
        ).save()

    def _bad(self, contents):
        """Returns the records whose place holds no record that was ever written.

        Where two whole records changed places, no reader can know.
        """
        bad, record = {}, 0
        for number, (content, (_, frames)) in enumerate(zip(contents, self.files, strict=True)):
            for offset, _ in frames:
                there = content[offset:]
                if not there.startswith(self._frames[record]):
                    known = any(there.startswith(frame) for frame in self._frames)
                    bad[record] = (number, offset, known)
                record += 1
        return bad

    def _read(self, kind, folder, split, on_error):
        """Yields `(record, (label, pixels))` of one pass through a split."""
        options = {"split": split, "on_error": on_error, "include_record_ids": True}
        if on_error == "skip":
            options["max_bad_share"] = 1.0
        if kind == "eval":
            batches = eval_dataset(str(folder), 16, SIZE, **options)
        else:
            batches = train_dataset(str(folder), 16, SIZE, seed=1, **options)
            batches = batches.take(len(self._frames) // 16)
        for images, labels, records in batches:
            rows = zip(records.numpy(), labels.numpy(), images.numpy(), strict=True)
            for record, label, image in rows:
                yield int(record), (int(label), image.astype(np.int16))

    def _violations_of(self, kind, folder, split, bad):
        try:
            rows = list(self._read(kind, folder, split, "skip"))
        except Exception as error:  # noqa: BLE001 - any error at all breaks the law
            return [f"{kind}: {type(error).__name__}: {str(error)[:300]}"]
        broken, seen = [], collections.Counter(record for record, _ in rows)
        named = {record: text for (one, record), text in skipped_records().items() if one == split}
        for record in range(len(self._frames)):
            if record not in bad:
                if record in named:
                    broken.append(f"{kind}: record {record} is unharmed, but: {named[record]}")
                if not seen[record] or (kind == "eval" and seen[record] > 1):
                    broken.append(f"{kind}: unharmed record {record} came {seen[record]} times")
                continue
            number, offset, known = bad[record]
            if known:
                continue
            if seen[record]:
                broken.append(f"{kind}: record {record} is damaged and came out")
            place = f"-{number:05d}-of-", f"at byte {offset}"
            if not all(part in named.get(record, "") for part in place):
                broken.append(f"{kind}: record {record} is damaged, named: {named.get(record)}")
        for record, row in rows:
            if record not in bad and not _equal(row, self._wanted[kind][record]):
                broken.append(f"{kind}: record {record} has another label or other pixels")
        return broken

    def _violations_of_check(self, folder, split, bad):
        try:
            (report,) = check.check(str(folder), split, log=lambda text: None)
        except Exception as error:  # noqa: BLE001
            return [f"check: {type(error).__name__}: {str(error)[:300]}"]
        found = {(f.file, f.offset) for f in report.findings}
        missing = [
            (number, offset)
            for number, offset, known in bad.values()
            if not known and (self._path(folder, split, number), offset) not in found
        ]
        good = set(range(len(self._frames))) - set(bad)
        places = {(self._path(folder, split, n), o) for n, o in self._places(good)}
        broken = [f"check: not found: record at byte {o} of file {n}" for n, o in missing]
        return broken + [f"check: {place} is unharmed" for place in sorted(places & found)]

    def _places(self, records):
        place = [(n, offset) for n, (_, frames) in enumerate(self.files) for offset, _ in frames]
        return [place[record] for record in records]

    def _path(self, folder, split, number):
        return str(folder / f"{split}-{number:05d}-of-{len(self.files):05d}.tfrecord")

    def _violations_of_raise(self, folder, split, contents, bad):
        pairs = zip(contents, self.files, strict=True)
        damaged = [number for number, (content, (data, _)) in enumerate(pairs) if content != data]
        try:
            list(self._read("eval", folder, split, "raise"))
        except (ValueError, tf.errors.OpError) as error:
            if any(self._path(folder, split, number) in str(error) for number in damaged):
                return []
            return [f"raise: names none of the damaged files: {str(error)[:300]}"]
        except Exception as error:  # noqa: BLE001
            return [f"raise: {type(error).__name__}: {str(error)[:300]}"]
        known = all(known for _, _, known in bad.values())
        return [] if known else ["raise: no error, though records are bad"]

    def _violations_without_index(self, folder, split):
        """Where no index says what was there: whole records come out, in order, and no others."""
        broken, wanted = [], []
        for number in range(len(self.files)):
            path = self._path(folder, split, number)
            data, at, good, damaged = pathlib.Path(path).read_bytes(), 0, set(), []
            for offset, size, fault in resync.walk(path):
                if offset != at or size < 1:
                    broken.append(f"walk: file {number}: from byte {at} to {offset}, size {size}")
                at = offset + size
                if not fault:
                    good.add(offset)
                    frame = data[offset:at]
                    if frame in self._frames:
                        wanted.append(self._wanted["eval"][self._frames.index(frame)])
                    else:
                        damaged.append(range(offset, at))  # which its reader finds out and names
            if at != len(data):
                broken.append(f"walk: file {number}: ends at byte {at} of {len(data)}")
            for frame in self._frames:
                place = data.find(frame)
                while place >= 0:
                    if place not in good and not any(place in inside for inside in damaged):
                        broken.append(f"walk: file {number}: the whole record at {place} is lost")
                    place = data.find(frame, place + 1)
        pathlib.Path(index_lib.index_path(folder, split)).unlink()
        rows = [row for _, row in self._read("eval", folder, split, "skip")]
        if len(rows) != len(wanted):
            return [*broken, f"no index: {len(rows)} records; {len(wanted)} are whole"]
        for number, (row, other) in enumerate(zip(rows, wanted, strict=True)):
            if not _equal(row, other):
                broken.append(f"no index: record {number} has another label or other pixels")
        return broken


def _equal(row, wanted):
    """Whether label and pixels are equal.

    One grey level may differ: TensorFlow's ops read what stands in for a bad record, and our own
    the others.
    """
    return row[0] == wanted[0] and np.abs(row[1] - wanted[1]).max() <= 1
