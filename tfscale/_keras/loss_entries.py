"""What a Keras loss computes before it reduces it: its entries, and which of them are masked.

A loss averages over its unmasked entries. The mask is the output's, the loss's own (that of
`ignore_class`), or both, and is joined inside of the loss: `losses_utils.apply_valid_mask` is the
one place where it is seen, together with the entries.
"""

import functools
import logging
import threading
import weakref

from tf_keras.src.utils import losses_utils

_logger = logging.getLogger("tfscale")
_warned_of = weakref.WeakSet()
# Replicas are traced in threads of their own.
_local = threading.local()


def observed(loss, y_true, y_pred, sample_weight=None):
    """Calls a loss, and looks at what it computes.

    Args:
        loss: Keras `Loss`.
        y_true, y_pred, sample_weight: as the loss takes them.

    Returns:
        the loss's value; its entries before the reduction, None where a loss with a `__call__` of
        its own does not show them; and their mask, None if there is none.
    """
    if not hasattr(losses_utils.apply_valid_mask, "_tfscale_seen"):
        losses_utils.apply_valid_mask = _seen(losses_utils.apply_valid_mask)
    _local.seen = [(None, losses_utils.get_mask(y_pred))]
    try:
        value = loss(y_true, y_pred, sample_weight=sample_weight)
        # The last ones, for a loss may call others.
        return value, *_local.seen[-1]
    finally:
        _local.seen = None


def warn_of_one_number(loss, entries, is_mean):
    """Says once, if the entries of a loss are one number for a batch, what becomes of it.

    No error: the mean over the examples looks like this too, and is right.

    Args:
        loss: Keras `Loss`.
        entries: see `observed`.
        is_mean: `bool`, whether it is taken for the mean over the examples, or for the sum.
    """
    # A number of Python's has no shape.
    is_one = getattr(getattr(entries, "shape", None), "rank", 0) == 0
    if entries is None or not is_one or loss in _warned_of:
        return
    _warned_of.add(loss)
    _logger.warning(
        "the loss %r gives one number for a batch and none for each example. That of a replica or "
        "micro-batch is taken for the %s over its examples: if it is anything else, training is "
        "not that of one device. Let the loss return a tensor [batch] or [batch, ...], which Keras "
        "%s by itself (for Keras's own losses: outputs [batch, 1] in place of [batch])",
        loss.name,
        *(("mean", "averages") if is_mean else ("sum", "adds up")),
    )


def _seen(stock):
    @functools.wraps(stock)
    def apply_valid_mask(losses, sw, mask, reduction):
        seen = getattr(_local, "seen", None)
        if seen is not None:
            seen.append((losses, mask))
        return stock(losses, sw, mask, reduction)

    apply_valid_mask._tfscale_seen = stock
    return apply_valid_mask
