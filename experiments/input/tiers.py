"""The cache tiers that are measured, by their names on the command line."""

import os

from tfscale import data

TIERS = {
    "none": "every record is read and decoded every time",
    "memory": "encoded records in memory",
    "disk": "encoded records on the local disk",
    "decoded": "decoded pictures in memory",
    "decoded_disk": "decoded pictures on the local disk",
    "memory_half": "a memory budget of half of the records; the rest is read through",
    "memory_disk": "the same budget; the rest is kept on the local disk",
}
ON_DISK = ("disk", "decoded_disk", "memory_disk")


def parse(text, flag):
    """Returns the `list` of names in a list with commas; "" is none.

    Raises:
        ValueError: names the tier that there is not, or is there twice.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in TIERS:
            raise ValueError(f"--{flag}={text}: {name!r} is no tier; wanted {', '.join(TIERS)}")
        if names.count(name) > 1:
            raise ValueError(f"--{flag}={text}: {name!r} is there twice")
    return names


def help_text():
    return "\n".join(f"    {name:13s} {text}" for name, text in TIERS.items())


def cache(name, budget, image_size, folder):
    """Returns the `tfscale.data.Cache` of a tier, None for "none".

    Args:
        name: `str`.
        budget: `int`, bytes of memory of the tiers that hold a part.
        image_size: `int`, pixels; decoded pictures are kept with room for a centre crop.
        folder: `str`, of what lies on disk.
    """
    short_side = round(image_size / 0.875)
    return {
        "none": None,
        "memory": data.Cache(memory="auto"),
        "disk": data.Cache(disk="auto", folder=folder),
        "decoded": data.Cache(memory="auto", decoded=short_side),
        "decoded_disk": data.Cache(disk="auto", decoded=short_side, folder=folder),
        "memory_half": data.Cache(memory=budget),
        "memory_disk": data.Cache(memory=budget, disk="auto", folder=folder),
    }[name]


def check(args):
    """Raises ValueError if a folder that the command was given is none, or no tier is left."""
    for flag in ("data_dir", "cache_dir"):
        path = getattr(args, flag)
        if path is not None and not os.path.isdir(path):
            raise ValueError(f"--{flag}={path} is no folder; wanted one on this machine")
    if not (args.tiers or getattr(args, "local_tiers", None)):
        raise ValueError(f"no tier to measure; wanted some of {', '.join(TIERS)}")


def read_once(index):
    """Reads the files from their disk, so that all that follows finds them in the page cache."""
    for path in index.paths:
        with open(path, "rb") as file:
            while file.read(1 << 24):
                pass
