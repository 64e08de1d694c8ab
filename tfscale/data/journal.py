"""What a run of `prepare` finds in its output folder, and what a stopped one leaves there."""

import json
import logging
import pathlib
import re

from tfscale.data import index as index_lib

logger = logging.getLogger("tfscale")


class Journal:
    """Which shards are finished: what a stopped run leaves for the next.

    Args:
        folder: `pathlib.Path`, of the records.
        split: `str`.
        options: JSON-able `dict`: what the shards are a function of.
        overwrite: `bool`: a damaged journal is begun anew.

    Raises:
        ValueError: if the journal is damaged, unless overwriting.
    """

    def __init__(self, folder, split, options, overwrite):
        self.path, self.options, self.shards = folder / f".{split}.journal.json", options, {}
        self.other = None
        if not self.path.exists():
            return
        try:
            content = json.loads(self.path.read_text())
            before, shards = content["options"], content["shards"]
            for entry in shards.values():
                _ = [entry[key] for key in ("bytes", "skipped", "lengths", "heights", "widths")]
                entry["labels"].items()
            dict(before)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            text = (
                f"{self.path} is damaged ({type(error).__name__}: {error}), so that it is unknown "
                f"which files of split {split!r} are finished"
            )
            if not overwrite:
                raise ValueError(
                    f"{text}. Pass overwrite (--overwrite), or another output."
                ) from None
            logger.warning("%s: all are written again", text)
            return
        if before == options:
            self.shards = shards
        else:
            self.other = before

    def finished(self, name):
        """Returns the entry of a shard that is there as it was written, else None."""
        entry = self.shards.get(name)
        path = self.path.parent / name
        if entry is None or not path.exists() or path.stat().st_size != entry["bytes"]:
            return None
        return entry

    def add(self, name, entry):
        """Notes that a shard is finished."""
        self.shards[name] = entry
        content = {"options": self.options, "shards": self.shards}
        index_lib.write_atomically(str(self.path), json.dumps(content))


def load_index(folder, split, overwrite):
    """Returns the index that is there, or None; a damaged one counts as none when overwriting."""
    try:
        return index_lib.load(folder, split)
    except ValueError as error:
        if not overwrite:
            raise ValueError(f"{error}, or pass overwrite (--overwrite)") from None
        logger.warning("%s: replaced", error)
        return None


def clear(folder, split, journal, old, overwrite):
    """Refuses, or clears, what another run left in the output folder; never another's files.

    Args:
        folder, split, journal, overwrite: see `Journal`.
        old: `index.RecordIndex` of what is there, or None.

    Raises:
        ValueError: if there are files of another kind, or records of another run and not
            `overwrite`.
    """
    own = re.compile(rf"{re.escape(split)}-\d{{5,}}-of-\d{{5,}}\.tfrecord")
    for leftover in folder.glob("*.partial"):
        if own.fullmatch(leftover.name.removesuffix(".partial")):
            leftover.unlink()
    there = [pathlib.Path(path) for path in index_lib.record_files(folder, split)]
    strange = [path for path in there if journal.finished(path.name) is None]
    indexed = {shard.name for shard in old.shards} if old else set()
    foreign = [p.name for p in strange if not own.fullmatch(p.name) and p.name not in indexed]
    if foreign:
        raise ValueError(
            f"{folder} holds {', '.join(foreign[:3])}{' ...' if len(foreign) > 3 else ''}, which a "
            f"reader would take for records of split {split!r}, and which neither an index lists "
            f"nor prepare wrote (its files are {split}-00000-of-00001.tfrecord and so on): move "
            "such files away, or choose another output"
        )
    if strange and not overwrite:
        before = journal.other or (old.options if old else None)
        changed = "they have no note of their source"
        if before is not None:
            names = sorted(k for k in {*before, *journal.options}
                           if before.get(k) != journal.options.get(k))  # fmt: skip
            changed = "changed since: " + (", ".join(names) or "the files themselves")
        raise ValueError(
            f"{folder} already holds records of split {split!r} ({strange[0].name} and "
            f"{len(strange) - 1} more) of another run; {changed}. Pass overwrite (--overwrite), "
            "or another output."
        )
    for path in strange:
        path.unlink()
    pathlib.Path(index_lib.index_path(folder, split)).unlink(missing_ok=True)
