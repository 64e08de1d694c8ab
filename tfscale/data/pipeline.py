"""From steps to batches of pictures: the part of the input that must never lose a row.

A stream of rows (position, record, ...) is turned to pictures in parallel. What fails is left
out, which leaves a gap in the positions; the batch in which the gap shows has it mended: named
and raised, or named and replaced. So a good record pays nothing for the care taken of bad ones.
Now and then a record is tried before it is sent on its way, so that where all are bad there is
an error and no endless silent search for a good one.
"""

import tensorflow as tf

from tfscale.data import rows as rows_lib
from tfscale.data.repair import POISON

_DTYPES = (tf.uint8, tf.int32, tf.float32, tf.int64)
TRY_EVERY = 64  # steps
# Of steps with few rows, several are made in one call: it has some hundred ops.
ROWS_TOGETHER, STEPS_TOGETHER = 2048, 16


def options():
    """Returns the `tf.data.Options` that all datasets of the package have."""
    chosen = tf.data.Options()
    chosen.deterministic = True
    # The rows of this worker are chosen already: sharding again would lose data.
    chosen.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # To delete an iterator that is tuned can take a minute, in which the whole process stands
    # still: its tuning thread sometimes sleeps through being cancelled (seen in TensorFlow 2.20,
    # about 1 in 20). Fixed numbers were as fast.
    chosen.autotune.enabled = False
    return chosen


def tables(first_step, num_steps, rows, repair):
    """Returns a dataset with the table of each step, `rows.Rows.table`.

    Args:
        first_step: `int`.
        num_steps: `int`, or None for no end.
        rows: `rows.Rows`.
        repair: `repair.Repair`, asked to try a record every 64 steps.
    """

    # Of the record only, so that the row is passed on and not dropped as bad.
    poisoned = tf.one_hot(rows_lib.RECORD, len(rows_lib.COLUMNS), on_value=True, off_value=False)

    @tf.autograph.experimental.do_not_convert
    def some(steps):
        due = tf.logical_or(steps % TRY_EVERY == 0, steps == first_step)
        step = steps[tf.argmax(tf.cast(due, tf.int32))]
        good = tf.cond(
            tf.reduce_any(due),
            lambda: tf.ensure_shape(tf.numpy_function(repair.probe, [step], tf.bool), []),
            lambda: True,
        )
        bad = tf.logical_and(due, tf.logical_not(good))[:, tf.newaxis, tf.newaxis]
        made = rows.table(steps[0])[tf.newaxis] if evaluates else rows.table(steps)
        return tf.where(tf.logical_and(bad, poisoned), tf.constant(POISON, made.dtype), made)

    evaluates = rows.contract.order is None
    steps = tf.data.Dataset.counter(first_step)
    if num_steps is not None:
        steps = steps.take(num_steps)
    together = 1
    if not evaluates:
        together = min(max(1, ROWS_TOGETHER // rows.per_step), STEPS_TOGETHER)
    return steps.batch(together).map(some).unbatch().prefetch(2)


def whole_batches(vectors, first_position, repair, batch_size, last_position=None):
    """Returns batches of `batch_size` rows, of which none is missing.

    Args:
        vectors: `tf.data.Dataset` of (position, image, label, weight, record), vectors of one
            or more rows in ascending positions, in which those of bad records may be missing.
        first_position: `int`.
        repair: `repair.Repair`, mends the gaps.
        batch_size: `int`.
        last_position: `int`, the position after the last; None if there is no last.

    Returns:
        `tf.data.Dataset` of (image, label, weight, record).
    """
    return _closed(_ended(vectors, last_position), first_position, repair, batch_size)


def whole_rectangles(tables, pictures, repair, batch_size):
    """Returns batches of `batch_size` rows, of which none is missing, each of a size of its own.

    Args:
        tables: see `tables`, from the first step on.
        pictures: function of such a dataset to one of vectors, see `whole_batches`.
        repair, batch_size: see `whole_batches`.

    Returns:
        `tf.data.Dataset` of (image, label, weight, record).
    """

    @tf.autograph.experimental.do_not_convert
    def of_batch(table):
        # To its last row, so that no gap is left for the next batch, which has another size.
        vectors = pictures(tf.data.Dataset.from_tensors(table))
        return _ended(vectors, table[-1, rows_lib.POSITION] + 1)

    return _closed(tables.rebatch(batch_size).flat_map(of_batch), 0, repair, batch_size)


def _ended(vectors, last_position):
    """Returns vectors with the position after their last row in front; the last one is empty."""
    shapes = [[None, *part.shape[1:]] for part in vectors.element_spec]

    @tf.autograph.experimental.do_not_convert
    def loose(end, *parts):
        return tf.cast(end, tf.int64), *map(tf.ensure_shape, parts, shapes)

    ended = vectors.map(lambda position, *parts: loose(position[-1] + 1, position, *parts))
    if last_position is None:
        return ended
    nothing = [
        tf.zeros([side or 0 for side in shape], part.dtype)
        for shape, part in zip(shapes, vectors.element_spec, strict=True)
    ]
    last = tf.data.Dataset.from_tensors((last_position, *nothing)).map(loose)
    return ended.concatenate(last)


def _closed(ended, first_position, repair, batch_size):
    """Returns whole batches of vectors that say up to which position they go."""

    @tf.autograph.experimental.do_not_convert
    def close_gaps(first, vector):
        end, positions, *parts = vector

        def mended():
            found = tf.numpy_function(repair.batch, [first, *vector], _DTYPES)
            return [tf.ensure_shape(a, [None, *b.shape[1:]])
                    for a, b in zip(found, parts, strict=True)]  # fmt: skip

        full = tf.equal(end - first, tf.size(positions, tf.int64))
        whole = tf.logical_and(full, tf.reduce_all(parts[-1] != POISON))
        return end, tuple(tf.cond(whole, lambda: parts, mended))

    scanned = ended.scan(tf.constant(first_position, tf.int64), close_gaps)
    scanned = scanned.filter(lambda image, label, *_: tf.size(label) > 0)
    return scanned.rebatch(batch_size, drop_remainder=True)
