"""What `prepare` starts from: a folder of pictures, one sub-folder a class."""

import collections
import dataclasses
import hashlib
import logging
import os
import pathlib
import unicodedata

import numpy as np

from tfscale.data import arguments

logger = logging.getLogger("tfscale")

READABLE = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp")
UNREADABLE = (".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".svg", ".psd", ".ppm", ".pgm")
SPLITS = {"train": "train", "training": "train", "validation": "validation", "val": "validation",
          "valid": "validation", "test": "test"}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Picture:
    """One picture of the source: its file, its name below the source, its label."""

    path: str
    name: str
    label: int

    def read(self):
        """Returns the bytes of the file; raises ValueError, naming it, if they cannot be had."""
        path = pathlib.Path(self.path)
        if path.is_symlink() and not path.exists():
            raise ValueError(f"{path} is a link to {os.readlink(path)!r}, which does not exist")
        if not path.is_file():  # to read a pipe might never end
            raise ValueError(f"{path} is not a regular file")
        try:
            return path.read_bytes()
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None

    def digest(self):
        """Returns `(SHA-256 of the bytes, their number)`; raises as `read` does.

        Not the file's time, which a copy changes; its size alone another picture may have too.
        """
        data = self.read()
        return hashlib.sha256(data).hexdigest(), len(data)


def find(source, validation_fraction=0.1, seed=0, on_error="raise"):
    """Lists the pictures of a class-per-folder directory, by split.

    Either ``source/CLASS/.../picture`` or ``source/train/CLASS/...`` with
    ``source/validation/CLASS/...`` (also val, valid; test). Hidden files are passed over; files
    that are no pictures are passed over and counted in the log.

    Args:
        source: `str`.
        validation_fraction: share of each class that is held out where the source has no
            folder for it, chosen by `seed`. At least one picture of a class with two.
        seed: `int`.
        on_error: "raise", or "skip": pass over pictures in formats that cannot be read.

    Returns:
        `(splits, class_names)`: `dict` of split to `list` of `Picture` sorted by name, and the
        classes in alphabetical order, whose positions are the labels.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if there are no classes, no pictures, or the splits' classes differ.
    """
    arguments.number("validation_fraction", validation_fraction, "[0, 1)")
    root = pathlib.Path(source)
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {source!r} (working directory {os.getcwd()})")
    folders = _folders(root)
    if not folders:
        raise ValueError(f"{root} has no class folders; wanted: {root}/CLASS/picture.jpg")
    named = {name: SPLITS.get(name.lower()) for name in folders}
    if not ("train" in named.values() and all(named.values())):
        class_names = tuple(folders)
        pictures = _pictures(root, class_names, on_error)
        return _hold_out(pictures, validation_fraction, seed), class_names
    class_names, splits = None, {}
    for folder, split in named.items():
        here = tuple(_folders(root / folder))
        if class_names is not None and here != class_names:
            differ = sorted(set(here) ^ set(class_names))
            raise ValueError(f"the splits of {root} have different classes: {differ[:8]}")
        if split in splits:
            raise ValueError(f"{root} has two folders for split {split!r}: {sorted(named)}")
        class_names = here
        splits[split] = _pictures(root / folder, class_names, on_error)
    if not class_names:
        raise ValueError(f"{root}/train has no class folders; wanted: {root}/train/CLASS/...")
    return splits, class_names


def check_class_names(names):
    """Raises ValueError for a name that would not be one line of text in logs and label files."""
    for name in names:
        if not name or any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in name):
            raise ValueError(
                f"class name {name!r} is empty, or has a line break, another control character or "
                "bytes that are not UTF-8 in it: rename it"
            )


def _folders(root):
    names = sorted(
        entry.name for entry in root.iterdir()
        if entry.is_dir() and not entry.name.startswith((".", "__MACOSX"))
        and not _leads_back(entry, [root])
    )  # fmt: skip
    check_class_names(names)
    return names


def _leads_back(folder, above):
    """Returns whether a folder is a link to one of those above it, or to one of theirs."""
    real = os.path.realpath(folder)
    back = any(os.path.commonpath([real, os.path.realpath(one)]) == real for one in above)
    if back:
        logger.warning("not followed: %s is a link back to %s, in which it lies", folder, real)
    return back


def _files(folder, above):
    """Yields the files below a folder, those behind links too."""
    folders = []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            folders.append(entry)
        else:
            yield entry
    for entry in folders:
        if not (entry.is_symlink() and _leads_back(entry, [*above, folder])):
            yield from _files(entry, [*above, folder])


def _pictures(root, class_names, on_error):
    pictures, others, refused = [], collections.Counter(), []
    loose = [e.name for e in root.iterdir() if e.is_file() and e.suffix.lower() in READABLE]
    if loose:
        logger.warning("%d picture(s) in %s are in no class folder: %s", len(loose), root, loose[0])
    for label, name in enumerate(class_names):
        before = len(pictures)
        for path in _files(root / name, [root]):
            suffix = path.suffix.lower()
            if suffix in READABLE:
                pictures.append(Picture(str(path), path.relative_to(root).as_posix(), label))
            elif suffix in UNREADABLE:
                refused.append(str(path))
            else:
                others[suffix or path.name] += 1
        if len(pictures) == before:
            logger.warning("class folder %s holds no pictures", root / name)
    if others:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in sorted(others.items()))
        logger.info("passed over, no pictures: %s", kinds)
    if refused:
        text = (
            f"{len(refused)} picture(s) in formats that TensorFlow cannot read, such as "
            f"{refused[0]}; convert them (for example: mogrify -format jpg)"
        )
        if on_error == "raise":
            raise ValueError(f"{text}, or pass on_error='skip'")
        logger.warning("passed over: %s", text)
    if not pictures:
        raise ValueError(f"{root} holds no pictures ({', '.join(READABLE)}) in its class folders")
    return sorted(pictures, key=lambda picture: picture.name)


def _hold_out(pictures, fraction, seed):
    """Splits by class, so that each keeps its share in both parts."""
    if fraction == 0:
        return {"train": pictures}
    by_class = collections.defaultdict(list)
    for picture in pictures:
        by_class[picture.label].append(picture)
    held = set()
    for label, members in by_class.items():
        count = min(len(members) - 1, max(1, round(fraction * len(members))))
        chosen = np.random.RandomState([seed, label]).permutation(len(members))[:count]
        held.update(members[i].name for i in chosen)
    splits = {
        "train": [picture for picture in pictures if picture.name not in held],
        "validation": [picture for picture in pictures if picture.name in held],
    }
    return {name: members for name, members in splits.items() if members}
