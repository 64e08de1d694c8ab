"""From rows to pictures and labels, many at a time: by TensorFlow's ops, or by our own in C."""

import numpy as np
import tensorflow as tf

from tfscale import cores
from tfscale.data import cache_pictures, jpeg, native, reading
from tfscale.data import rows as rows_lib
from tfscale.data.rows import FILE, FLIP, KEY, LENGTH, OFFSET, POSITION, RECORD

LOOKED_AT = 32  # records, for whether the native ops can take them
CHUNK = 128  # rows that the native ops take at a time, at most


class Decoding:
    """Reads, decodes, resizes and augments the pictures of rows.

    Args:
        contract: `contract.DataContract`.
        store: `cache.Store`.
        image_size: (height, width), pixels; (None, None) where it is the rows' that differ.
        scaled: `bool`, see `jpeg.decode_and_crop`.
        augment: function of (image uint8 [height, width, 3], key int64) to such an image, or
            None.
        skips: `bool`, whether bad records are to be expected, and few to be left out with one.
    """

    def __init__(self, contract, store, image_size, scaled=False, augment=None, skips=True):
        self._contract, self._store, self._image_size = contract, store, image_size
        self._scaled, self._augment, self._skips = scaled, augment, skips
        with tf.device("CPU:0"):
            self._paths = tf.constant(contract.index.paths)
        self._fixed = None not in image_size
        self._native = self._fixed and native.available() and (store.decoded or self._holds_jpegs())
        remote = any("://" in path for path in contract.index.paths)
        self._local = not (store.keeps or store.decoded or remote)

    def load(self, row):
        """Returns `(image, label, weight)` of a row, or raises; of PADDING, zeros."""
        _, image, label = self._example(*self._parts(row))
        label, inside = self._of_classes(label)
        with tf.control_dependencies([tf.debugging.Assert(inside, ["label", label])]):
            return image, tf.identity(label), tf.cast(row[RECORD] >= 0, tf.float32)

    def pictures(self, tables, batch_size, calls):
        """Returns vectors of `batch_size` rows or fewer, those of bad records left out.

        Others may be left out with them, for the reader of the gap to make.

        Args:
            tables: `tf.data.Dataset` of tables of rows.
            batch_size: `int`.
            calls: `int`, records read at a time, or pictures decoded.

        Returns:
            `tf.data.Dataset` of (position, image, label, weight, record), vectors in ascending
            positions, none of them empty.
        """
        if not self._native:
            parts = tables.map(self._parts).unbatch()
            examples = parts.map(self._example, num_parallel_calls=calls, deterministic=True)
            if self._skips:
                vectors = examples.ignore_errors().batch(batch_size)
            else:
                # A whole batch is lost with a bad record, which then is found and ends the run.
                # With nothing between, tf.data copies the pictures by 10 % less CPU time.
                vectors = examples.batch(batch_size).ignore_errors()
            return vectors.map(self._labelled).filter(_some)
        chunk = min(batch_size, CHUNK)
        if self._local:
            chunks = tables.rebatch(chunk)
        else:
            parts = tables.map(self._parts).unbatch()
            read = parts.map(self._bytes, num_parallel_calls=calls, deterministic=True)
            chunks, calls = read.ignore_errors().batch(chunk), cores.usable_cores()
        vectors = chunks.map(self._chunk, num_parallel_calls=calls, deterministic=True)
        if self._augment is not None:
            vectors = vectors.ignore_errors()
        return vectors.filter(_some)

    @tf.autograph.experimental.do_not_convert
    def _parts(self, rows):
        """Returns rows and what is read of them: of many at a time, as each op costs much."""
        path = tf.gather(self._paths, rows[..., FILE])
        return rows, path, rows[..., OFFSET], rows_lib.window(rows), rows[..., FLIP] > 0

    @tf.autograph.experimental.do_not_convert
    def _example(self, row, *parts):
        """Returns `(row, image, label as in the record)`; of PADDING, zeros."""

        def nothing():
            image = tf.zeros(tf.concat([rows_lib.out_size(row), [3]], 0), tf.uint8)
            return self._shaped(image), tf.constant(self._contract.label_offset, tf.int64)

        return row, *tf.cond(row[RECORD] >= 0, lambda: self._picture(row, *parts), nothing)

    @tf.autograph.experimental.do_not_convert
    def _labelled(self, rows, image, label):
        """Returns (position, image, label, weight, record), without labels of no class."""
        label, inside = self._of_classes(label)
        weight = tf.cast(rows[:, RECORD] >= 0, tf.float32)
        return _only(inside, rows[:, POSITION], image, label, weight, rows[:, RECORD])

    @tf.autograph.experimental.do_not_convert
    def _bytes(self, row, path, offset, *_):
        """Returns `(row, serialised example or kept picture)`; of PADDING, ""."""
        fetch = self._store.packed if self._store.decoded else self._store.example
        return row, tf.cond(row[RECORD] >= 0, lambda: fetch(row[RECORD], path, offset), lambda: "")

    @tf.autograph.experimental.do_not_convert
    def _chunk(self, rows, payloads=None):
        """Returns (position, image, label, weight, record) of the rows that can be decoded."""
        there = rows[:, RECORD] >= 0
        if payloads is None:
            lengths = tf.where(there, rows[:, LENGTH], -1)
            payloads = native.read_records(self._paths, rows[:, FILE], rows[:, OFFSET], lengths)
        flip, size = rows[:, FLIP] > 0, self._image_size
        if self._store.decoded:
            windows = _scaled_windows(rows, tf.cast(cache_pictures.shapes(payloads), tf.int32))
            image, label, done = native.resize_pictures(payloads, windows, flip, size)
            done &= tf.reduce_all(rows_lib.source_size(rows) > 0, -1)
        else:
            windows = rows_lib.window(rows)
            image, label, done = native.decode_examples(payloads, windows, flip, size, self._scaled)
        label, inside = self._of_classes(tf.ensure_shape(label, [None]))
        done = ~there | (tf.ensure_shape(done, [None]) & inside)
        label = tf.where(there, label, 0)
        parts = rows[:, POSITION], image, label, tf.cast(there, tf.float32), rows[:, RECORD]
        *parts, keys = _only(done, *parts, rows[:, KEY])
        if self._augment is not None:
            spec = tf.TensorSpec([*self._image_size, 3], tf.uint8)
            parts[1] = tf.map_fn(
                lambda part: self._augmented(*part), (parts[1], keys), fn_output_signature=spec
            )
        return tuple(parts)

    def _picture(self, row, path, offset, window, flip):
        place = row[RECORD], path, offset
        if self._store.decoded:
            whole, label = self._store.picture(*place)
            with tf.control_dependencies([tf.debugging.assert_positive(rows_lib.source_size(row))]):
                window = _scaled_windows(row, tf.shape(whole)[:2])
            image = jpeg.crop(whole, window)
        else:
            encoded, label = reading.parse(self._store.example(*place))
            size = self._image_size if self._scaled else None
            image = jpeg.decode_and_crop(encoded, lambda shape: window, size)
        image = jpeg.resize(image, self._image_size if self._fixed else rows_lib.out_size(row))
        image = jpeg.flip(image, flip)
        if self._augment is not None:
            image = self._augmented(image, row[KEY])
        return self._shaped(image), tf.ensure_shape(label, [])

    def _augmented(self, image, key):
        result = self._augment(image, key)
        if not tf.is_tensor(result):
            raise TypeError(f"augment gave {result!r} for a picture; wanted a tensor")
        if result.dtype != tf.uint8 or not result.shape.is_compatible_with(image.shape):
            raise TypeError(
                f"augment gave {result.dtype.name} {result.shape} for a picture uint8 "
                f"{image.shape}; wanted the same type and shape"
            )
        return tf.ensure_shape(result, image.shape)

    def _shaped(self, image):
        return tf.ensure_shape(image, [*self._image_size, 3])

    def _of_classes(self, label):
        """Returns the class of a label in the record, and whether there is such a class."""
        label -= self._contract.label_offset
        inside = tf.logical_and(label >= 0, label < self._contract.num_classes)
        return tf.cast(label, tf.int32), inside

    def _holds_jpegs(self):
        """Looks at a few records all over the split: others would be decoded one by one."""
        index = self._contract.index
        for record in np.unique(np.linspace(0, index.num_records - 1, LOOKED_AT).astype(int)):
            path, _, offset, _ = index.locate(record)
            try:
                with tf.device("CPU:0"):
                    payload = reading.read(path, tf.constant(offset, tf.int64))
                    encoded, _ = reading.parse(payload)
                    if encoded.numpy().startswith(jpeg.JPEG_START):
                        other = int(tf.io.extract_jpeg_shape(encoded)[2]) not in (1, 3)
                    else:
                        other = reading.kind_of(encoded.numpy()) is not None
            except tf.errors.OpError:
                continue  # a bad record, which its reader will name
            if other:
                return False
        return True


def _some(position, *_):
    return tf.size(position) > 0


def _only(kept, *parts):
    """Returns the entries of vectors that are `kept`; without a copy where all are."""
    return tf.cond(
        tf.reduce_all(kept),
        lambda: parts,
        lambda: tuple(tf.boolean_mask(part, kept) for part in parts),
    )


def _scaled_windows(rows, shapes):
    """Returns the windows of rows in pictures that were reduced to `shapes`, int32 [..., 2]."""
    scale = tf.cast(shapes, tf.float64) / tf.cast(rows_lib.source_size(rows), tf.float64)
    windows = tf.cast(rows_lib.window(rows), tf.float64)
    begin = tf.cast(tf.floor(windows[..., :2] * scale), tf.int32)
    size = tf.cast(tf.round(windows[..., 2:] * scale), tf.int32)
    return tf.concat([begin, tf.clip_by_value(size, 1, shapes - begin)], -1)
