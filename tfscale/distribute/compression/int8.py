"""`Int8`: eight bits on the wire, with a scale for each block; the rounding errors are kept."""

import tensorflow as tf

from tfscale.distribute.compression import protocol


class Int8(protocol.Uncompressed):
    """Int8 on the wire, float32 sums, and the errors of both roundings fed back.

    With N members, each of which sums one N-th of the vector (its part)::

        y = x + residual
        q = quantised(y)                           # sent by all-to-all, a part to each member
        s = sum over the members of decoded(q)     # float32, of the own part
        Q = quantised(s)                           # sent by all-gather
        total     = decoded(Q) of all parts
        residual' = y - decoded(q), and on the own part + (s - decoded(Q))

    A block of 256 values v is quantised as ``scale = max|v| / 127, round(v / scale)``; larger
    blocks would save at most 1.5 % of the bytes, and lose precision where magnitudes differ.
    Every subtraction above is exact, so ``sum over the members of (y - residual') = total``, up
    to the float32 rounding of s and of the one addition to the residual.

    A block whose values are all below 1.5e-36 is sent as zeros (its scale would be no normal
    number). A block with infinity or NaN arrives as infinity or NaN altogether.

    Args:
        error_feedback: `bool`, keep the errors for the next step. Defaults to True.

    Raises:
        ValueError: if `error_feedback` is no `bool`.

    Example:
        >>> Int8().bytes_per_element(workers=4)
        1.5234375

    References:
        Seide et al., 1-Bit Stochastic Gradient Descent, 2014, for error feedback; Dettmers,
        8-Bit Approximations for Parallelism, 2016 (https://arxiv.org/abs/1511.04561).
    """

    block = 256
    lossy = True

    def __init__(self, error_feedback=True):
        super().__init__()
        protocol.checked_error_feedback(error_feedback)
        self.slots = ("residual",) if error_feedback else ()
        self.name = f"int8 block {self.block}" + (
            "" if error_feedback else " without error feedback"
        )

    @property
    def dense(self):
        return protocol.Uncompressed()

    def bytes_per_element(self, workers):
        """Returns the bytes that one of N workers sends: ``2 (N - 1) / N * (1 + 4 / 256)``."""
        return (1 + 4 / self.block) * protocol.ring_share(workers)

    def all_reduce(self, x, group, state=()):
        y = x + state[0] if self.slots else x
        if group.size == 1:
            return self._alone(y)
        blocks = tf.reshape(y, [group.size, -1, self.block])
        words, sent = self.encode(blocks)
        part = tf.reduce_sum(self.decode(group.all_to_all(words)), 0, keepdims=True)
        words, part_sent = self.encode(part)
        gathered = group.exchange(words)
        total = tf.reshape(self.decode(gathered), [-1])
        finite = self.all_finite(127 * self._scales_of(gathered))
        if not self.slots:
            return protocol.Reduced(total, (), finite)
        residual = tf.tensor_scatter_nd_add(blocks - sent, [[group.rank]], part - part_sent)
        return protocol.Reduced(total, (tf.reshape(residual, [-1]),), finite)

    def encode(self, blocks):
        """Quantises blocks.

        Args:
            blocks: float32 ``[rows, b, block]``.

        Returns:
            ``(words, decoded)``: float32 ``[rows, b * (block / 4 + 1)]``, four values to a word
            and then the scales, and what `decode` makes of them.
        """
        rows, b, _ = blocks.shape
        largest = tf.maximum(tf.reduce_max(blocks, 2), -tf.reduce_min(blocks, 2))
        scale = largest * (1 / 127)
        inverse = tf.math.divide_no_nan(1.0, scale)
        rounded = tf.round(blocks * inverse[..., tf.newaxis])
        values = tf.reshape(tf.cast(rounded, tf.int8), [rows, b * self.block // 4, 4])
        # As words: the gather kernel takes no bytes.
        words = tf.concat([tf.bitcast(values, tf.float32), scale], 1)
        return words, rounded * scale[..., tf.newaxis]

    def decode(self, words):
        """Returns float32 ``[rows, b, block]`` of what `encode` made of it."""
        scale = self._scales_of(words)
        values = tf.bitcast(words[:, : -scale.shape[1]], tf.int8)
        values = tf.reshape(tf.cast(values, tf.float32), [*scale.shape, self.block])
        return values * scale[..., tf.newaxis]

    def _scales_of(self, words):
        return words[:, -(words.shape[1] // (self.block // 4 + 1)) :]

    def _alone(self, y):
        kept = (tf.zeros_like(y),) if self.slots else ()
        return protocol.Reduced(tf.identity(y), kept, self.all_finite(y))
