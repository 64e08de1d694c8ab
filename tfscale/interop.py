"""tensorflow-addons under the tf_keras in force.

tensorflow-addons 0.23 (end of life) was built for the Keras that TensorFlow carried until 2.15;
on later releases it looks up ``keras.src.engine``, which Keras 3 no longer has. tf_keras is that
older Keras, so it imports and trains once ``keras`` means tf_keras while it loads.
"""

import importlib
import sys
import warnings

from tfscale._keras import keras


def import_addons():
    """Imports tensorflow-addons, with ``keras`` meaning tf_keras while it loads.

    Afterwards ``import keras`` gives whatever it gave before.

    Returns:
        The module ``tensorflow_addons``.

    Raises:
        ImportError: if tensorflow-addons is not installed; the message says how to.

    Example:

    >>> tfa = import_addons()
    >>> optimizer = tfa.optimizers.LAMB(1e-3)
    """
    if "tensorflow_addons" in sys.modules:
        return sys.modules["tensorflow_addons"]
    kept = {n: m for n, m in sys.modules.items() if n == "keras" or n.startswith("keras.")}
    prefix = keras.__name__
    aliases = {
        "keras" + name.removeprefix(prefix): module
        for name, module in list(sys.modules.items())
        if name == prefix or name.startswith(prefix + ".")
    }
    for name in kept:
        del sys.modules[name]
    sys.modules.update(aliases)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its notices of end of life and of version ranges
            return importlib.import_module("tensorflow_addons")
    except ModuleNotFoundError as error:
        if error.name != "tensorflow_addons":
            raise
        raise ImportError(
            "tensorflow-addons is not installed: pip install 'tfscale[addons]' (Python 3.11)"
        ) from error
    finally:
        for name in [n for n in sys.modules if n == "keras" or n.startswith("keras.")]:
            del sys.modules[name]
        sys.modules.update(kept)
