"""Batch norm over groups of replicas in float64 NumPy, and one training step to compare with it."""

import numpy as np
import tensorflow as tf

from tfscale.layers.sync_batch_norm import GroupedSyncBatchNormalization

EPSILON = 1e-3


def mirrored(replicas):
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def oracle(xs, dys, gamma, beta, size, axis=-1, epsilon=EPSILON, masks=None):
    """Outputs, gradients and statistics of every replica in float64, group by group."""
    results = []
    for first in range(0, len(xs), size):
        members = range(first, first + size)

        def flat(values, members=members):
            parts = [np.moveaxis(np.float64(values[i]), axis, -1) for i in members]
            return np.concatenate([p.reshape(-1, p.shape[-1]) for p in parts])

        x, dy = flat(xs), flat(dys)
        counts = np.ones(len(x), bool)
        if masks is not None:
            counts = np.concatenate([np.asarray(masks[i]).ravel() for i in members])
        n = counts.sum()
        mean = x[counts].mean(axis=0) if n else np.zeros(x.shape[1])
        variance = x[counts].var(axis=0) if n else np.zeros(x.shape[1])
        rstd = 1 / np.sqrt(variance + epsilon)
        h = (x - mean) * rstd
        shift = (dy.sum(axis=0) + h * (dy * h).sum(axis=0)) / max(n, 1)
        y, dx = h * gamma + beta, gamma * rstd * (dy - counts[:, None] * shift)
        start = 0
        for i in members:
            shape = np.moveaxis(xs[i], axis, -1).shape
            rows = slice(start, start + int(np.prod(shape[:-1])))
            start = rows.stop
            back = lambda v, shape=shape: np.moveaxis(v.reshape(shape), -1, axis)  # noqa: E731
            results.append(
                dict(
                    y=back(y[rows]),
                    dx=back(dx[rows]),
                    dgamma=(dy * h)[rows].sum(axis=0),
                    dbeta=dy[rows].sum(axis=0),
                    mean=mean,
                    variance=variance,
                    count=n,
                )
            )
    return results


def train_step(strategy, layer, xs, dys, masks=None, dynamic=True, in_function=True):
    """One forward and backward pass; what every replica got, as the oracle has it."""

    def values(arrays):
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(arrays[context.replica_id_in_sync_group])
        )

    def replica_fn(x, dy, mask):
        if dynamic:  # as from a dataset whose last batch is smaller
            x = tf.compat.v1.placeholder_with_default(x, [None, *x.shape[1:]])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True, mask=mask)
        sources = {"dx": x, "dgamma": layer.gamma, "dbeta": layer.beta}
        sources = {k: v for k, v in sources.items() if v is not None}
        return {"y": y, **tape.gradient(y, sources, output_gradients=tf.cast(dy, y.dtype))}

    def step(*args):
        return strategy.run(replica_fn, args=args)

    step = tf.function(step) if in_function else step
    dynamic = dynamic and in_function
    results = step(values(xs), values(dys), None if masks is None else values(masks))
    results |= {"mean": layer.moving_mean, "variance": layer.moving_variance}
    local = {k: strategy.experimental_local_results(v) for k, v in results.items()}
    return [{k: v[i].numpy() for k, v in local.items()} for i in range(len(local["y"]))]


def build(strategy, size, shape, momentum=0.0, gamma=None, beta=None, **kwargs):
    with strategy.scope():
        layer = GroupedSyncBatchNormalization(size, momentum=momentum, epsilon=EPSILON, **kwargs)
        layer.build([None, *shape[1:]])
        if gamma is not None:
            layer.gamma.assign(gamma)
            layer.beta.assign(beta)
    return layer


def check(results, expected, rtol=2e-6, atol=2e-6, scale=1.0):
    for replica, (result, right) in enumerate(zip(results, expected, strict=True)):
        for name, value in result.items():
            np.testing.assert_allclose(
                np.float64(value),
                right[name],
                rtol=rtol,
                atol=atol * scale,
                err_msg=f"{name} on replica {replica}",
            )


def random_batches(sizes, shape, seed=0, loc=0.0, spread=1.0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    xs = [(rng.normal(size=(n, *shape)) * spread + loc + 0.3 * i) for i, n in enumerate(sizes)]
    dys = [rng.normal(size=x.shape).astype(np.float32) for x in xs]
    return [x.astype(dtype) for x in xs], dys
