"""Workers agree on how a training step runs, where they would otherwise wait for ever.

A step in two parts has twice the exchanges within the model of a whole one: workers whose steps
differ in that wait for each other without a word.
"""

import functools
import weakref

from tf_keras.src.engine import training

_agrees = weakref.WeakKeyDictionary()
_agreed = weakref.WeakKeyDictionary()


def install(strategy, agree):
    """Has the workers compare the steps of a strategy's models, before the first one is traced.

    Args:
        strategy: `tf.distribute.Strategy`.
        agree: function of the strategy, a name and a value, which raises on all workers unless
            the value is the same on all of them; it must not hold the strategy.
    """
    _agrees[strategy] = agree
    model = training.Model
    if not hasattr(model.make_train_function, "_tfscale_same_step"):
        model.make_train_function = _after_agreement(model.make_train_function)


def _after_agreement(stock):
    @functools.wraps(stock)
    def make_train_function(self, force=False):
        agree = _agrees.get(self.distribute_strategy)
        micro_batches = getattr(self.train_step, "micro_batches", 1)
        # Not before every trace: a worker may be late for a later one.
        if agree is not None and _agreed.get(self) != micro_batches:
            agree(self.distribute_strategy, "the training step", {"micro_batches": micro_batches})
            _agreed[self] = micro_batches
        return stock(self, force)

    make_train_function._tfscale_same_step = True
    return make_train_function
