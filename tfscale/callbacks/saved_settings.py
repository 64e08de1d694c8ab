"""Whether a resumed run's optimizer is set as that of the run that was saved."""

import logging
import weakref

import numpy as np
import tensorflow as tf

from tfscale._keras import training_state

_logger = logging.getLogger("tfscale")
_RATE = "learning_rate"
_OF_THE_MACHINE = ("name", "jit_compile")  # change nothing that is trained
# As programs set them: a callback may have changed the rate when a later `fit` begins.
_at_first = weakref.WeakKeyDictionary()


class OptimizerSettings:
    """What a program sets its optimizer to; a checkpoint may hold other values.

    A learning rate that is a number lies in the checkpoint, for a callback may have lowered it
    since. It goes on as it was saved, unless the program itself has another number than when the
    run was saved: whoever changes a program means it. All else, schedules included, is the
    program's in any case.

    Args:
        optimizer: that of a compiled Keras model; None for a model without.

    Attributes:
        values: `dict` of the settings by name, those of a schedule included
            (``"learning_rate.config.decay_steps"``), as JSON can hold them, at the optimizer's
            first `fit` with checkpoints. Empty where they are not known.
    """

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self.values = {}
        if optimizer is not None:
            self.values = _at_first.setdefault(optimizer, settings_of(optimizer))

    def check(self, saved, where):
        """Raises ValueError if one learning rate is a number and the other a schedule.

        Args:
            saved: `values` of the run that was saved; None or empty where they are not known.
            where: path of the checkpoint.
        """
        if saved and self.values and (_RATE in saved) != (_RATE in self.values):
            had, has = ("a number", "a schedule") if _RATE in saved else ("a schedule", "a number")
            raise ValueError(
                f"{where} was saved with a learning rate that is {had}, and this program's is "
                f"{has}: the optimizer's variables differ. Give {had} (other values are taken), or "
                "use another checkpoint directory"
            )

    def restore(self, read, saved):
        """Calls `read()`, which restores the optimizer; says and puts in force what is changed.

        Args:
            read: function without arguments.
            saved: `values` of the run that was saved; None or empty where they are not known.
        """
        before = self._rate()
        read()
        changed = self._changed(saved)
        if changed:
            _logger.warning(
                "the optimizer is set otherwise than in the run that was saved; from here on %s",
                ", ".join(f"{k}={_shown(new)} (was {_shown(old)})" for k, old, new in changed),
            )
            for name, _, value in changed:
                training_state.put_in_force(self._optimizer, name, value)
        after = self._rate()
        if before != after:
            _logger.warning(
                "the learning rate goes on as it was saved, at %g (it is %g in this program)",
                after,
                before,
            )

    def _changed(self, saved):
        """Name, saved value and the program's of what differs; None for what one does not have."""
        if not saved or not self.values:
            return []
        pairs = [
            (name, saved.get(name), self.values.get(name)) for name in {**self.values, **saved}
        ]
        return [(name, old, new) for name, old, new in pairs if old != new]

    def _rate(self):
        if _RATE not in self.values:
            return None
        return float(tf.convert_to_tensor(self._optimizer.learning_rate))


def settings_of(optimizer):
    """The numbers, names and switches of an optimizer and its schedule, as a flat `dict`."""
    try:
        config = optimizer.get_config()
    except (NotImplementedError, TypeError, ValueError):
        return {}  # A schedule of the user's own need not tell.
    found = {}
    while "inner_optimizer" in config:  # that of a loss scale
        inner = config.pop("inner_optimizer")
        found |= _leaves("", config)
        config = inner["config"]
    return found | _leaves("", config)


def _leaves(path, config):
    found = {}
    for name, value in config.items():
        if isinstance(value, dict):
            found |= _leaves(f"{path}{name}.", value)
        elif isinstance(value, (list, tuple)):
            found[path + name] = ", ".join(map(str, value))
        elif isinstance(value, (bool, int, str)) and name not in _OF_THE_MACHINE:
            found[path + name] = value
        elif isinstance(value, (float, np.number)):
            found[path + name] = float(f"{value:.7g}")  # 0.1 is another number as a float32
    return found


def _shown(value):
    return f"{value:.7g}" if isinstance(value, float) else str(value)
