"""What Keras's own callbacks remember, in a checkpoint: best value, patience, best weights."""

import numpy as np

from tfscale._keras import keras
from tfscale.callbacks.checkpoint_files import NPZ_ERRORS

# Those that remember something from epoch to epoch, and what of it JSON can hold.
KINDS = tuple(
    getattr(keras.callbacks, name)
    for name in ("EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint")
)
_REMEMBERED = ("best", "wait", "best_epoch", "stopped_epoch", "cooldown_counter")
# EarlyStopping(restore_best_weights=True) keeps weights too, which it puts back at the end.
_FILE = "best_weights.npz"


def describe(callbacks):
    """Returns what each callback remembers as a `dict` that JSON can hold."""
    return [_numbers(callback) for callback in callbacks]


def write(folder, callbacks):
    """Writes the best weights of the callbacks that keep some into the `Path` of a folder."""
    arrays = {
        f"{number}-{place}": weights
        for number, callback in enumerate(callbacks)
        for place, weights in enumerate(vars(callback).get("best_weights") or ())
    }
    if arrays:
        np.savez(folder / _FILE, **arrays)


def read(folder, described, way_out):
    """Returns the attributes of each callback as they were saved, best weights included.

    Args:
        folder: `Path` of a checkpoint.
        described: what `describe` returned when it was saved.
        way_out: `str` for the error, what to do.

    Raises:
        ValueError: if the file of the weights cannot be read.
    """
    memories = [dict(memory) for memory in described]
    path = folder / _FILE
    if not path.exists():
        return memories
    try:
        with np.load(path) as file:
            for name in sorted(file.files, key=lambda name: int(name.partition("-")[2])):
                number = int(name.partition("-")[0])
                memories[number].setdefault("best_weights", []).append(file[name])
    except NPZ_ERRORS as error:
        raise ValueError(f"{path} cannot be read ({error}). {way_out}") from error
    return memories


def _numbers(callback):
    found = {name: vars(callback).get(name) for name in _REMEMBERED}
    return {name: float(v) if name == "best" else v for name, v in found.items() if v is not None}
