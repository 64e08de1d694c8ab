"""Which Keras is in force: tf_keras, chosen the way TensorFlow itself chooses.

``TF_USE_LEGACY_KERAS`` decides what ``tf.keras`` is when it is first used. We set it to "1"
where it is not set, so that ``tf.keras`` and ours are one and the same.
"""

import importlib
import logging
import os
import sys

VARIABLE = "TF_USE_LEGACY_KERAS"
_LEGACY = ("1", "true", "True")  # the values that TensorFlow understands; all others mean Keras 3


def require_legacy_keras(environ=os.environ):
    """Sets ``TF_USE_LEGACY_KERAS`` where it is unset; refuses a request for Keras 3.

    Raises:
        ImportError: if the variable asks for Keras 3.
    """
    value = environ.get(VARIABLE, "").strip()
    if not value:
        environ[VARIABLE] = "1"
    elif value not in _LEGACY:
        raise ImportError(
            f"{VARIABLE}={value!r} asks for Keras 3, which tfscale does not support yet: its fit "
            "fails under MultiWorkerMirroredStrategy (keras-team/keras#20585). "
            f"Unset {VARIABLE}, or set it to 1, before TensorFlow is imported; tfscale then uses "
            "tf_keras."
        )


def resolved_to_keras_3():
    """Whether ``tf.keras`` was already used in this process and turned out to be Keras 3."""
    # The lazy loader puts the module in its own place once it has been used.
    used = vars(sys.modules.get("tensorflow", object)).get("keras")
    return str(vars(used).get("__name__", "")).startswith("keras.") if used else False


def _load():
    require_legacy_keras()
    if resolved_to_keras_3():
        logging.getLogger("tfscale").warning(
            "tf.keras is Keras 3 in this process, because it was used before tfscale was "
            "imported; tfscale uses tf_keras, and models of the two do not mix. Write "
            "`from tfscale import keras` instead of `tf.keras`, or set %s=1 before TensorFlow "
            "is imported.",
            VARIABLE,
        )
    try:
        return importlib.import_module("tf_keras")
    except ImportError as error:
        raise ImportError(
            "tfscale needs tf_keras, of the same minor version as TensorFlow: "
            "`pip install tf-keras`"
        ) from error


keras = _load()


def check_model(model):
    """Raises where `model` is not a model of the Keras in force.

    Args:
        model: what the user handed in.

    Raises:
        TypeError: names the class, the Keras that it comes from and the remedy.
    """
    if isinstance(model, keras.Model):
        return
    kind = type(model)
    name = f"{kind.__module__}.{kind.__qualname__}"
    roots = {base.__module__.partition(".")[0] for base in kind.__mro__}
    if "keras" in roots:
        raise TypeError(
            f"{name} is a model of Keras 3; tfscale works with tf_keras, and the two do not mix. "
            "Build it with `from tfscale import keras`; a bare `import keras` is always Keras 3."
        )
    raise TypeError(f"expected a Keras model (tf_keras.Model), got {name}")
