"""Records kept near: encoded bytes or decoded pictures, in memory and on a local disk.

For data on a slow path. It is filled while the first epoch trains, and what does not fit is read
through. What is kept is what comes before the order and the random crop, found by the record's
number: neither an order nor an augmentation is ever frozen.
"""

import dataclasses
import functools
import logging
import os
import pathlib
import shutil

import numpy as np
import tensorflow as tf

from tfscale import cores
from tfscale.data import (
    arguments,
    cache_budget,
    cache_key,
    cache_pictures,
    cache_tiers,
    jpeg,
    reading,
)

logger = logging.getLogger("tfscale")


@dataclasses.dataclass(frozen=True)
class Cache:
    """What a worker keeps of its records. Memory is looked in first, then the disk.

    Args:
        memory, disk: budget of a tier on each worker: None (no such tier, the default), "auto",
            `int` bytes, or text such as "8GiB". "auto" is an equal part for each worker of this
            host (environment variable TFSCALE_LOCAL_WORKERS) of half of the free memory, or of
            90 % of the free disk. The disk's covers what earlier runs left.
        decoded: `int`, short side in pixels: keep the pictures, decoded and reduced to it, with
            their labels: three bytes a pixel, and nothing left to decode. None, the default:
            keep the bytes of the files.
        folder: `str`, on a local disk. None: ``$TMPDIR/tfscale-cache-UID``, or in /var/tmp. It
            outlives the run; to delete it is safe at any time.

    Raises:
        TypeError, ValueError: if a budget or `decoded` is not one of these, or all tiers are off.

    Example:
        >>> Cache(memory="8GiB", disk="auto", folder="/ssd/cache").memory
        '8GiB'

    Source: Yang and Cong, "Accelerating data loading in deep neural network training", 2019 (each
    worker keeps a part of a remote data set).
    """

    memory: int | str | None = None
    disk: int | str | None = None
    decoded: int | None = None
    folder: str | os.PathLike | None = None

    def __post_init__(self):
        for tier in ("memory", "disk"):
            cache_budget.parse(f"Cache({tier}=...): {tier}", getattr(self, tier))
        if self.memory is None and self.disk is None:
            raise ValueError(f"{self}: no tier is on; pass memory= or disk=, or cache=None")
        if self.decoded is not None:
            arguments.integer("decoded", self.decoded, 1)
        if self.folder is not None:
            if self.disk is None:
                raise ValueError(f"folder={self.folder!r} is for the disk tier; pass disk= as well")
            if not os.fspath(self.folder):
                raise ValueError("folder='' is empty; leave it out for the default one")
            if "://" in os.fspath(self.folder):
                raise ValueError(f"folder={self.folder!r} is not on a local disk")


def resolve(cache, image_size):
    """Returns the `Cache` that an argument `cache` stands for, or None.

    Args:
        cache: None, `Cache`, or "memory", "disk" (both "auto", encoded) or "decoded" (in memory,
            with the short side that evaluation wants: ``max(image_size) / 0.875``).
        image_size: (height, width) of the pictures wanted.

    Raises:
        TypeError, ValueError: if it is something else.

    Example:
        >>> resolve("decoded", (224, 224))
        Cache(memory='auto', disk=None, decoded=256, folder=None)
    """
    if cache is None or isinstance(cache, Cache):
        return cache
    if not isinstance(cache, str):
        raise TypeError(f"cache={cache!r} is neither None, a name, nor tfscale.data.Cache(...)")
    arguments.choice("cache", cache, ("memory", "disk", "decoded"))
    if cache == "decoded":
        return Cache(memory="auto", decoded=round(max(image_size) / 0.875))
    return Cache(**{cache: "auto"})


class Store:
    """Where a worker's records come from: what is kept of them, or their files.

    Args:
        tiers: `cache_tiers` in the order in which they are looked in.
        short_side: `int`, of the pictures that are kept, or None for encoded bytes.
    """

    def __init__(self, tiers=(), short_side=None):
        self._tiers, self._short_side = tuple(tiers), short_side

    @property
    def decoded(self):
        """Whether pictures are kept, so that `picture` or `packed` must be used."""
        return self._short_side is not None

    @property
    def keeps(self):
        """Whether anything is kept at all."""
        return bool(self._tiers)

    def _keep(self, record, make):
        for tier in reversed(self._tiers):
            make = functools.partial(tier.keep, record, make)
        return make()

    @tf.autograph.experimental.do_not_convert
    def example(self, record, path, offset):
        """Returns the serialised example of a record, a string scalar tensor.

        Args:
            record: int64 scalar tensor, its number in the split.
            path, offset: string and int64 scalar tensors, its place in its source.

        Raises:
            tf.errors.OpError: see `reading.read`.
        """
        if self.decoded:
            return reading.read(path, offset)
        return self._keep(record, lambda: reading.read(path, offset))

    @tf.autograph.experimental.do_not_convert
    def picture(self, record, path, offset):
        """Returns `(image, label)`: uint8 [height, width, 3], whole, with the short side that is
        kept or less, and int64, as in the file.

        Args, Raises: see `packed`.
        """
        return cache_pictures.unpack(self.packed(record, path, offset))

    @tf.autograph.experimental.do_not_convert
    def packed(self, record, path, offset):
        """Returns the picture and label of a record as one string, see `cache_pictures.pack`.

        Args:
            record, path, offset: see `example`.

        Raises:
            tf.errors.OpError: if the record or the picture is damaged.
        """

        def make():
            encoded, label = reading.parse(reading.read(path, offset))
            return cache_pictures.pack(jpeg.shrink(jpeg.decode(encoded), self._short_side), label)

        return self._keep(record, make)


def create(cache, image_size, contract, worker):
    """Opens the cache of a worker, and says in the log what it keeps.

    Args:
        cache: see `resolve`.
        image_size: (height, width) of the pictures wanted.
        contract: `contract.DataContract`.
        worker: `int`.

    Returns:
        `Store`.

    Raises:
        TypeError, ValueError: see `resolve`.
    """
    cache = resolve(cache, image_size)
    if cache is None:
        return Store()
    index, records = contract.index, np.asarray(contract.owned(worker))
    if cache.decoded is None:
        sizes = index.locations()[2][records]
    else:
        sizes = cache_pictures.sizes(*index.sizes(), cache.decoded)[records]
    tiers, remembered, said = [], np.zeros(len(records), bool), []
    if cache.memory is not None:
        budget = _memory_budget(cache.memory, sizes)
        remembered = cache_budget.fitting(sizes + cache_tiers.MEMORY_OVERHEAD, budget)
        tiers.append(
            cache_tiers.MemoryTier(index.num_records, records[remembered], sizes[remembered])
        )
        said.append(f"memory ({cache_budget.text(budget)}) has room for {_share(remembered)}")
        if not remembered.all():
            said[-1] += ", the rest is read through"
    if cache.disk is not None:
        tier, line = _open_disk(cache, index, records, sizes, remembered)
        tiers += [tier] if tier else []
        said.append(line)
    form = "encoded" if cache.decoded is None else f"decoded, short side {cache.decoded}"
    logger.info(
        "cache [%s]: %d records of worker %d, %s, %s: %s",
        index.split, len(records), worker, form, cache_budget.text(sizes.sum()), "; ".join(said),
    )  # fmt: skip
    return Store(tiers, cache.decoded)


def _share(chosen):
    return f"{np.mean(chosen):.0%}" if len(chosen) else "all"


def _memory_budget(asked, sizes):
    """Returns the bytes of memory to use, never more than can be had."""
    budget, free = cache_budget.parse("memory", asked), cache_budget.free_memory()
    if free is None:
        if budget == "auto":
            raise ValueError(
                "memory='auto': this system does not say how much memory is free; pass a number"
            )
        return budget
    free = max(0, free - cache_tiers.MemoryTier.promised()) // cores.local_workers()
    if budget == "auto":
        return int(cache_budget.MEMORY_SHARE * free)
    most = int(cache_budget.MEMORY_LIMIT * free)
    wanted = min(budget, int(sizes.sum()) + len(sizes) * cache_tiers.MEMORY_OVERHEAD)
    if wanted > most:
        logger.warning(
            "cache: memory=%r asks for %s, but only %s is free for each worker of this host; the "
            "cache takes %s", asked, cache_budget.text(wanted), cache_budget.text(free),
            cache_budget.text(most),
        )  # fmt: skip
    return min(budget, most)


def _open_disk(cache, index, records, sizes, remembered):
    """Returns `(tier, line)`: the `DiskTier`, None if its folder cannot be used, and the news."""
    try:
        root = pathlib.Path(cache.folder).expanduser() if cache.folder else cache_key.default_root()
        folder = cache_key.folder_of(root, index, cache.decoded)
        cache_key.remove_stale(folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        if cache.folder:
            raise ValueError(
                f"the folder of the disk cache cannot be used: {error}; pass another one "
                "(Cache(folder=...), --cache_dir=...)"
            ) from None
        logger.warning(
            "cache: the disk tier is off, its folder cannot be used: %s. Pass another one "
            "(Cache(folder=...), --cache_dir=...)", error,
        )  # fmt: skip
        return None, "disk is off"
    tier = cache_tiers.open_tier(folder, index.num_records)
    budget = cache_budget.parse("disk", cache.disk)
    if budget == "auto":
        budget = int(cache_budget.DISK_SHARE * free / cores.local_workers()) + tier.bytes
    # What memory has no room for comes first; the rest serves the next run.
    order = np.argsort(remembered, kind="stable")
    kept = tier.admit(records[order], sizes[order], budget)
    return tier, (
        f"disk {folder} ({cache_budget.text(budget)}) has {_share(tier.has(records))} from "
        f"earlier runs, and room for {_share(kept)}"
        + ("" if kept.all() else ", the rest is read through")
    )
