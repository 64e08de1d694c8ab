"""NumPy oracles of the communication tests: what every replica holds, and what the sum must be."""

import ml_dtypes
import numpy as np

DTYPES = {"bfloat16": ml_dtypes.bfloat16}


def replica_value(shape, dtype, replica, salt=0):
    """What replica number `replica` holds; every worker can compute it for all of them."""
    generator = np.random.default_rng([replica, salt, *shape])
    if np.dtype(DTYPES.get(dtype, dtype)).kind in "iu":
        return generator.integers(0, 9, shape).astype(dtype)
    return generator.standard_normal(shape).astype(np.float32).astype(DTYPES.get(dtype, dtype))


def reduced(shape, dtype, replicas, mean, salt=0):
    """The sum or mean over replicas, in float64."""
    values = [np.float64(replica_value(shape, dtype, r, salt)) for r in range(replicas)]
    return np.mean(values, 0) if mean else np.sum(values, 0)


def magnitude(shape, dtype, replicas, mean, salt=0):
    """The sum or mean of the absolute values: what the error of a sum is relative to."""
    values = [np.abs(np.float64(replica_value(shape, dtype, r, salt))) for r in range(replicas)]
    return np.mean(values, 0) if mean else np.sum(values, 0)
