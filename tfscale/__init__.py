"""tfscale: data-parallel training of Keras models on tf.distribute, from a laptop to a Pod.

Importing this package does not load TensorFlow; its subpackages do so when first used.
``from tfscale import keras`` gives the Keras in force (see `tfscale._keras`).
"""

from tfscale._lazy import attach

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "accumulation": None,
        "callbacks": None,
        "cluster": None,
        "config": None,
        "data": None,
        "distribute": None,
        "evaluation": None,
        "export": None,
        "interop": None,
        "keras": "tfscale._keras",
        "layers": None,
        "losses": None,
        "models": None,
        "optimizers": None,
        "precision": None,
        "preflight": None,
        "processes": None,
        "progressive": None,
        "testing": None,
        "topology": None,
        "tuning": None,
    },
)
