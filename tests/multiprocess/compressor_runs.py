"""What the workers of test_compressors.py run."""

import numpy as np
import tensorflow as tf

import tfscale
from tfscale.distribute import _tf_private, compression

STEPS = 3


def compressors():
    """The compressors under test, by name."""
    all_of_them = (
        compression.BFloat16("float32"),  # the narrow ring adds in another order than threads
        compression.Float16(),
        compression.Int8(),
        compression.TopK(0.02),
        compression.TopK(0.02, momentum=0.9, factor_masking=True),
        compression.TopK(1.0, momentum=0.9),
    )
    return {c.name: c for c in all_of_them}


def rows_of(step, workers):
    """Each worker's vector in a step; the last step's holds one NaN."""
    rng = np.random.default_rng(step)
    rows = rng.standard_normal((workers, workers * 24 * 1024)).astype(np.float32)
    if step == STEPS - 1:
        rows[0, 5000] = np.nan
    return list(rows)


def all_reduces(workers):
    """Returns ``{name: [(total, state, finite) of each step]}`` of this worker."""
    strategy = tfscale.distribute.create_strategy()
    rank = _tf_private.worker_index(strategy)
    device = _tf_private.local_devices(strategy)[0]
    group = _tf_private.collective_group(strategy, "compressors", workers, device, 0)
    assert group.rank == rank
    results = {}
    for name, compressor in compressors().items():
        step_function = tf.function(
            lambda x, state, c=compressor: c.all_reduce(x, group, state), reduce_retracing=False
        )
        x = rows_of(0, workers)[rank]
        state = tuple(tf.zeros_like(x) for _ in compressor.slots)
        results[name] = []
        for step in range(STEPS):
            with tf.device(device):
                reduced = step_function(tf.constant(rows_of(step, workers)[rank]), state)
            state = reduced.state
            results[name].append(tf.nest.map_structure(lambda t: t.numpy(), tuple(reduced)))
    return results
