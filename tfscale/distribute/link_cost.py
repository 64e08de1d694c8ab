"""What an exchange of a bucket costs on the links at hand, measured by doing it."""

import statistics
import time

import tensorflow as tf

from tfscale.distribute import agreement, fusion
from tfscale.distribute.bucket_memory import memory_of
from tfscale.distribute.error_feedback import CompressionState
from tfscale.distribute.merging import Link

# A few bytes for each device cost the latency only; a shaped link lets them pass unshaped, too.
_SMALL_BYTES = 4 << 10
# From here on buckets grow until the exchange takes so long that neither the burst that a shaped
# link lets pass nor the latency matters, ...
_FIRST_BYTES, _GROWTH = 256 << 10, 4
_LONG_ENOUGH_SECONDS = 0.2
# ... or until they are as large as buckets are.
_LARGEST_BYTES = 16 << 20
_REPEATS = 3


def measure_link(strategy, mesh, compressor, gradient_bytes, timeout_seconds=120):
    """Measures what an exchange costs; every worker calls it at the same time.

    Buckets are sent with as many in flight as there are streams, on all local devices and with
    the compression that gradients have: first of a few bytes, then of more and more, until one
    exchange takes 0.2 s, or a bucket has 16 MiB or holds all gradients.

    Args:
        strategy: `tf.distribute.Strategy`.
        mesh: `Mesh` of several workers.
        compressor: how the buckets travel.
        gradient_bytes: `int`, of all gradients that travel so.
        timeout_seconds: `float`, how long to wait for the other workers.

    Returns:
        `Link`, of the slowest worker and so the same on all of them.
    """

    def probe(size):
        exchange = _exchange(mesh, compressor, size // 4)
        exchange()
        times = []
        for _ in range(_REPEATS):
            start = time.perf_counter()
            exchange()
            times.append(time.perf_counter() - start)
        told = agreement.gather_values(
            strategy, "the cost of an exchange", statistics.median(times), timeout_seconds
        )
        return max(told)

    largest = min(gradient_bytes, _LARGEST_BYTES)
    return link_of(probe, len(mesh.streams), _SMALL_BYTES * len(mesh.devices), largest)


def link_of(probe, streams, small_bytes=_SMALL_BYTES, largest_bytes=_LARGEST_BYTES):
    """Returns the `Link` that explains how long exchanges take::

        probe(bytes) = latency + streams * bytes * seconds_per_byte      # one bucket a stream

    The latency is the time of the smallest bucket. What a byte costs follows from the two
    largest: what passes a shaped link for nothing is in both of them.

    Args:
        probe: function of the bytes of a bucket that returns seconds, for as many buckets at once
            as there are streams.
        streams: `int`.
        small_bytes: `int`, size of the smallest bucket.
        largest_bytes: `int`, no bucket is larger, but for the first two.

    Example:
        >>> link_of(lambda size: 0.004 + 2 * size * 1e-7, streams=2, small_bytes=0)
        Link(latency_seconds=0.004, seconds_per_byte=1e-07, streams=2)
    """
    size, seconds = small_bytes, probe(small_bytes)
    latency, following = seconds, _FIRST_BYTES
    while True:
        before, size = (size, seconds), following
        seconds = probe(size)
        following = size * _GROWTH
        if seconds >= _LONG_ENOUGH_SECONDS or following > largest_bytes:
            break
    more = seconds - before[1]
    if more <= 0:  # Too fast for the clock and the noise around it.
        more = seconds
    return Link(latency, more / (streams * (size - before[0])), streams)


def _exchange(mesh, compressor, elements):
    """A function that exchanges one bucket in every stream and waits for the result."""
    state = CompressionState()
    state.begin_plan("probe", [("probe", elements)])
    layout = fusion.layout_of([elements], mesh, compressor)
    # Made beforehand: random numbers take longer than a fast link. Each stream has a tensor of its
    # own, or TensorFlow would sum them inside the worker once for all.
    vectors = []
    for device in mesh.devices:
        with tf.device(device):
            vector = tf.random.normal([elements])
            vectors.append([tf.identity(vector) for _ in mesh.streams])

    @tf.function
    def exchange():
        ends = []
        for stream, values in enumerate(zip(*vectors, strict=True)):
            memory = memory_of(state, "probe", stream, [0], layout, mesh.devices, compressor)
            (result,) = fusion.reduce_bucket(
                [values], layout, mesh, False, compressor, stream, memory
            )
            ends += [value[0] for value in result]
        return tf.add_n(ends)

    return lambda: exchange().numpy()
