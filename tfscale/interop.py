"""tensorflow-addons under the tf_keras in force.

tensorflow-addons is at its end of life: its last release, 0.23 of November 2023, was built for
TensorFlow 2.15 and the Keras that TensorFlow then carried, and nobody mends it. On later releases
it looks up ``keras.src.engine``, which Keras 3 no longer has. tf_keras is that older Keras, so it
imports and trains once ``keras`` means tf_keras while it loads. What it has in Python (optimizers,
losses, metrics, most image ops) works; its compiled ops are those of TensorFlow 2.15.

tf-models-official works with tf_keras as it is: ``import official`` needs nothing from here.
"""

import importlib
import logging
import sys
import warnings

from tfscale._keras import keras
from tfscale._keras.choice import VARIABLE, resolved_to_keras_3

_logger = logging.getLogger("tfscale")
# Under which tensorflow-addons looks for Keras.
_NAMES = ("keras", "tensorflow.keras")


def import_addons():
    """Imports tensorflow-addons, with ``keras`` meaning tf_keras while it loads.

    Afterwards ``import keras`` gives whatever it gave before. The first call says in one line of
    the log that tensorflow-addons is at its end of life: use it for what you have already, and
    build nothing new on it.

    Its optimizers are Keras's legacy ones. Their lists of excluded variables are searched for in
    the name of each replica's own variable, such as ``"dense/bias/replica_1:0"``: write ``"bias"``,
    not ``"bias:0"``, or the replicas' weights drift apart. Its random image ops keep a state of
    their own; in ``train_dataset(augment=...)`` give the others what you draw from the key.

    Returns:
        The module ``tensorflow_addons``.

    Raises:
        ImportError: if tensorflow-addons is not installed, or if ``tf.keras`` is Keras 3 in this
            process already; the message says how to go on.

    Example:

    >>> tfa = import_addons()
    >>> optimizer = tfa.optimizers.LAMB(1e-3)

    Source: https://github.com/tensorflow/addons/issues/2807 (its end of life).
    """
    if "tensorflow_addons" in sys.modules:
        return sys.modules["tensorflow_addons"]
    if resolved_to_keras_3():
        raise ImportError(
            "tensorflow-addons needs tf_keras, but tf.keras is Keras 3 in this process, because it "
            f"was used before tfscale was imported: set {VARIABLE}=1 before TensorFlow is imported"
        )
    loaded = list(sys.modules.items())
    prefix = keras.__name__
    kept = {name: module for name, module in loaded if _in_one_of(name, _NAMES)}
    # Both names: "tensorflow.keras" leads to Keras 3 where TensorFlow was imported before tfscale.
    aliases = {
        other + name.removeprefix(prefix): module
        for name, module in loaded
        if _in_one_of(name, (prefix,))
        for other in _NAMES
    }
    _replace_modules(aliases)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # many lines, of which ours below is the sum
            addons = importlib.import_module("tensorflow_addons")
    except ModuleNotFoundError as error:
        if error.name != "tensorflow_addons":
            raise
        raise ImportError(
            "tensorflow-addons is not installed: pip install 'tfscale[addons]' (Python 3.11)"
        ) from error
    finally:
        _replace_modules(kept)
    _logger.warning(
        "tensorflow-addons %s is at its end of life (since May 2024, built for TensorFlow 2.15): "
        "it gets no mends, and its compiled ops may fail on this TensorFlow",
        addons.__version__,
    )
    return addons


def _in_one_of(name, packages):
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _replace_modules(modules):
    """Makes `modules` all that is loaded under `_NAMES`."""
    for name in [name for name in sys.modules if _in_one_of(name, _NAMES)]:
        del sys.modules[name]
    sys.modules.update(modules)
