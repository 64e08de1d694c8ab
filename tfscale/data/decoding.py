"""From rows to pictures and labels, many at a time: by TensorFlow's ops, or by our own in C."""

import tensorflow as tf

from tfscale.data import jpeg, reading
from tfscale.data import rows as rows_lib
from tfscale.data.rows import FILE, FLIP, KEY, OFFSET, POSITION, RECORD

CHUNK = 128  # rows that the native ops take at a time, at most


class Decoding:
    """Reads, decodes, resizes and augments the pictures of rows.

    Args:
        contract: `contract.DataContract`.
        store: `cache.Store`.
        image_size: (height, width), pixels.
        scaled: `bool`, see `jpeg.decode_and_crop`.
        augment: function of (image uint8 [height, width, 3], key int64) to such an image, or
            None.
    """

    def __init__(self, contract, store, image_size, scaled=False, augment=None):
        self._contract, self._store, self._image_size = contract, store, image_size
        self._scaled, self._augment = scaled, augment
        with tf.device("CPU:0"):
            self._paths = tf.constant(contract.index.paths)

    def load(self, row):
        """Returns `(image, label, weight)` of a row; of PADDING, zeros."""

        def nothing():
            image = tf.zeros([*self._image_size, 3], tf.uint8)
            return image, tf.constant(0), tf.constant(0.0)

        return tf.cond(row[RECORD] >= 0, lambda: self._picture(row), nothing)

    def pictures(self, tables, batch_size, calls):
        """Returns vectors of `batch_size` rows or fewer, those of bad records left out.

        Args:
            tables: `tf.data.Dataset` of tables of rows.
            batch_size: `int`.
            calls: `int`, pictures decoded at a time.

        Returns:
            `tf.data.Dataset` of (position, image, label, weight, record), vectors.
        """

        @tf.autograph.experimental.do_not_convert
        def example(row):
            return row[POSITION], *self.load(row), row[RECORD]

        examples = tables.unbatch().map(example, num_parallel_calls=calls, deterministic=True)
        return examples.ignore_errors().batch(batch_size)

    def _example(self, row):
        return self._store.example(row[RECORD], self._paths[row[FILE]], row[OFFSET])

    def _picture(self, row):
        if self._store.decoded:
            whole, label = self._store.picture(row[RECORD], self._paths[row[FILE]], row[OFFSET])
            image = jpeg.crop(whole, _scaled_window(row, tf.shape(whole)[:2]))
        else:
            encoded, label = reading.parse(self._example(row))
            size = self._image_size if self._scaled else None
            image = jpeg.decode_and_crop(encoded, lambda shape: rows_lib.window(row), size)
        label = self._checked(label)
        image = jpeg.flip(jpeg.resize(image, self._image_size), row[FLIP] > 0)
        if self._augment is not None:
            image = self._augment(image, row[KEY])
        return tf.ensure_shape(image, [*self._image_size, 3]), label, tf.constant(1.0)

    def _checked(self, label):
        label = tf.ensure_shape(tf.cast(label - self._contract.label_offset, tf.int32), [])
        inside = tf.logical_and(label >= 0, label < self._contract.num_classes)
        with tf.control_dependencies([tf.debugging.Assert(inside, ["label", label])]):
            return tf.identity(label)


def _scaled_window(row, shape):
    """Returns a row's window in a picture that was reduced to `shape`, int32 [2]."""
    source, target = tf.cast(rows_lib.shape(row), tf.float64), tf.cast(shape, tf.float64)
    scale = target / source
    window = tf.cast(rows_lib.window(row), tf.float64)
    begin = tf.cast(tf.floor(window[:2] * scale), tf.int32)
    size = tf.cast(tf.round(window[2:] * scale), tf.int32)
    return tf.concat([begin, tf.clip_by_value(size, 1, shape - begin)], 0)
