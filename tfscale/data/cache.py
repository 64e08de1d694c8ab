"""Records kept near: the whole example or the decoded picture in memory, or a local copy on disk.

What is kept is always what comes before the random crop, found by the record's number: neither
an order nor an augmentation is ever frozen.
"""

import tensorflow as tf

from tfscale.data import jpeg, local_copy, reading

KINDS = (None, "memory", "disk", "decoded")


def _table(value_dtype, default):
    with tf.device("CPU:0"):
        return tf.lookup.experimental.MutableHashTable(tf.int64, value_dtype, default)


class NoCache:
    """Reads and decodes every time."""

    def example(self, record, path, offset):
        """Returns the serialised example of a record."""
        return reading.read(path, offset)

    def cropped(self, record, path, offset, window_of):
        """Returns `(image, label)`: the window of the picture, and the label as in the file."""
        encoded, label, shape = reading.parse(self.example(record, path, offset))
        return jpeg.decode_and_crop(encoded, window_of, shape), label


class EncodedCache(NoCache):
    """Keeps the serialised examples in memory; each is read from its file once."""

    def __init__(self):
        self._examples = _table(tf.string, "")

    def example(self, record, path, offset):
        kept = self._examples.lookup(record)

        def read():
            serialized = reading.read(path, offset)
            with tf.control_dependencies([self._examples.insert(record, serialized)]):
                return tf.identity(serialized)

        return tf.cond(tf.strings.length(kept) > 0, lambda: kept, read)


class DecodedCache(NoCache):
    """Keeps decoded pictures in memory, their short side reduced to `short_side` pixels."""

    def __init__(self, short_side):
        self._short_side = short_side
        self._images = _table(tf.string, "")
        self._labels = _table(tf.int64, -1)

    def cropped(self, record, path, offset, window_of):
        kept = self._images.lookup(record)

        def known():
            image = tf.io.parse_tensor(kept, tf.uint8)
            return tf.ensure_shape(image, [None, None, 3]), self._labels.lookup(record)

        def new():
            encoded, label, _ = reading.parse(self.example(record, path, offset))
            image = jpeg.shrink(jpeg.decode(encoded), self._short_side)
            with tf.control_dependencies([self._labels.insert(record, label)]):
                done = self._images.insert(record, tf.io.serialize_tensor(image))
            with tf.control_dependencies([done]):
                return tf.identity(image), tf.identity(label)

        image, label = tf.cond(tf.strings.length(kept) > 0, known, new)
        return jpeg.crop(image, window_of(tf.shape(image)[:2])), label


def create(kind, image_size, contract, worker, cache_dir=None):
    """Returns `(cache, paths, files, offsets)`: the cache, and where to read each record.

    Args:
        kind: None, "memory" (encoded), "disk" (encoded, see `local_copy.copy`), or "decoded"
            (in memory).
        image_size: (height, width) of the pictures wanted.
        contract: `records.DataContract`.
        worker: `int`.
        cache_dir: `str`, folder of the copy on disk; None for one under the system's
            temporary folder.

    Raises:
        ValueError: if the kind is unknown, or the records are more than memory or disk can hold.
    """
    index = contract.index
    files, offsets, lengths = index.locations()
    paths = index.paths
    if kind == "disk":
        paths, files, offsets = local_copy.copy(contract, worker, cache_dir)
        return NoCache(), paths, files, offsets
    owned = contract.owned(worker)
    if kind == "memory":
        local_copy.check_space("memory", int(lengths[owned].sum()), _free_memory())
        return EncodedCache(), paths, files, offsets
    if kind == "decoded":
        short_side = round(max(image_size) / 0.875)
        # Most photographs are 4:3.
        bytes_ = len(owned) * short_side * round(short_side * 4 / 3) * 3
        local_copy.check_space("memory", bytes_, _free_memory())
        return DecodedCache(short_side), paths, files, offsets
    return NoCache(), paths, files, offsets


def _free_memory():
    """Returns the bytes of memory that can be had, or None where the system does not say."""
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":") for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
