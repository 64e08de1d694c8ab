"""From steps to batches of pictures: the part of the input that must never lose a row.

A stream of rows (position, record, ...) is turned to pictures in parallel. What fails is left
out, which leaves a gap in the positions; the batch in which the gap shows has it mended: named
and raised, or named and replaced. So a good record pays nothing for the care taken of bad ones.
Now and then a record is tried before it is sent on its way, so that where all are bad there is
an error and no endless silent search for a good one.
"""

import os

import tensorflow as tf

from tfscale.data import rows as rows_lib
from tfscale.data.repair import POISON

_DTYPES = (tf.uint8, tf.int32, tf.float32, tf.int64)
TRY_EVERY = 64  # steps


def usable_cores():
    """Returns the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


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
        num_steps: `int`, or None for no end. With it, one more row shows a gap at the very end.
        rows: `rows.Rows`.
        repair: `repair.Repair`, asked to try a record every 64 steps.
    """

    @tf.autograph.experimental.do_not_convert
    def table(step):
        good = tf.cond(
            tf.logical_or(step % TRY_EVERY == 0, step == first_step),
            lambda: tf.ensure_shape(tf.numpy_function(repair.probe, [step], tf.bool), []),
            lambda: True,
        )
        made = rows.table(step)
        return tf.cond(
            good, lambda: made, lambda: tf.fill(tf.shape(made), tf.cast(POISON, tf.int64))
        )

    steps = tf.data.Dataset.counter(first_step)
    if num_steps is None:
        return steps.map(table).prefetch(2)
    made = steps.take(num_steps).map(table).prefetch(2)
    end = tf.data.Dataset.from_tensors(rows.end(first_step + num_steps))
    spec = tf.TensorSpec([None, len(rows_lib.COLUMNS)], tf.int64)
    loose = [part.map(lambda table: tf.ensure_shape(table, spec.shape)) for part in (made, end)]
    return loose[0].concatenate(loose[1])


def whole_batches(vectors, first_position, repair, batch_size):
    """Returns batches of `batch_size` rows, of which none is missing.

    Args:
        vectors: `tf.data.Dataset` of (position, image, label, weight, record), vectors of one
            or more rows in ascending positions, in which those of bad records may be missing.
        first_position: `int`.
        repair: `repair.Repair`, mends the gaps.
        batch_size: `int`.

    Returns:
        `tf.data.Dataset` of (image, label, weight, record).
    """

    @tf.autograph.experimental.do_not_convert
    def close_gaps(first, vector):
        positions, *parts = vector

        def mended():
            found = tf.numpy_function(repair.batch, [first, *vector], _DTYPES)
            return [tf.ensure_shape(a, [None, *b.shape[1:]])
                    for a, b in zip(found, parts, strict=True)]  # fmt: skip

        full = tf.equal(positions[-1] - first + 1, tf.size(positions, tf.int64))
        whole = tf.logical_and(full, tf.reduce_all(parts[-1] != POISON))
        return positions[-1] + 1, tuple(tf.cond(whole, lambda: parts, mended))

    scanned = vectors.scan(tf.constant(first_position, tf.int64), close_gaps)
    return scanned.rebatch(batch_size, drop_remainder=True)
