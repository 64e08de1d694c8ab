"""`export`: a SavedModel that takes JPEG bytes and needs nothing of tfscale to be loaded."""

import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfscale._keras import check_model, keras
from tfscale.data import crops, jpeg

_SAVED_MODEL = {
    "assets", "assets.extra", "fingerprint.pb", "keras_metadata.pb", "saved_model.pb", "variables",
}  # fmt: skip


def export(model, directory, image_size, class_names=None, crop_fraction=0.875, from_logits=False):
    """Writes a SavedModel that turns pictures into float32 class probabilities.

    | signature         | input                                      | output                     |
    |-------------------|--------------------------------------------|----------------------------|
    | `serving_default` | `image_bytes`: string [n], JPEG, PNG, GIF, | `probabilities`: float32   |
    |                   | BMP or WebP files                          | [n, classes];              |
    | `images`          | `images`: uint8 [n, height, width, 3], RGB | `class_name`: string [n],  |
    |                   | in [0, 255]                                | where `class_names` given  |

    Pictures are prepared as evaluation does it: the short side is resized, the centre cut, the
    pixels rounded to uint8 (`tfscale.data.eval_dataset`). n may be any number from 1. The model is
    rebuilt without its strategy and computes in float32 under whatever policy it was trained,
    so that the files name no device and run everywhere. Every worker has to call this function
    (batch-norm statistics are averaged over the replicas); worker 0 writes. The files are
    complete or absent: what was in `directory` stays until the new ones are. Only an earlier
    SavedModel is replaced, never another file or folder.

    Beside the model lie `assets/class_names.txt` (a name a line, in the order of the
    probabilities) and `assets.extra/export.json` (image size, crop, names).

    Args:
        model: a functional or Sequential Keras model, from uint8 images [n, height, width, 3]
            to [n, classes].
        directory: path of the SavedModel.
        image_size: int, or (height, width), in pixels.
        class_names: list of `str`, one for each class; or None.
        crop_fraction: share of the short side that the centre crop keeps, as in evaluation.
        from_logits: bool, whether the model gives logits; a softmax then follows.

    Returns:
        `Path` of the directory.

    Raises:
        ValueError: if the number of class names is not that of the outputs, if the outputs are
            no probabilities, for an argument out of range, or in `strategy.scope()`.
        FileExistsError: if `directory` is a file, or a folder with anything but a SavedModel.

    Example:
        tfscale.export.export(model, "runs/a/export", image_size=224, class_names=names)

        import tensorflow as tf                      # in another program
        served = tf.saved_model.load("runs/a/export").signatures["serving_default"]
        served(image_bytes=tf.constant([open("cat.jpg", "rb").read()]))["probabilities"]
    """
    check_model(model)
    if tf.distribute.has_strategy():
        raise ValueError("call export outside of strategy.scope(): it rebuilds the model")
    height_width = _height_width(image_size)
    if not 0 < crop_fraction <= 1:
        raise ValueError(f"crop_fraction={crop_fraction} is not above 0 and at most 1")
    directory = Path(directory)
    # On every worker: reading statistics that the replicas share is a collective.
    weights = model.get_weights()
    if not model.distribute_strategy.extended.should_checkpoint:
        return directory
    _check_replaceable(directory)
    plain = _rebuild(model)
    plain.set_weights(weights)
    probabilities = _checked(plain, height_width, class_names, from_logits)
    with _replacing(directory) as partial, tempfile.TemporaryDirectory() as assets:
        names = Path(assets) / "class_names.txt"
        names.write_text("".join(f"{name}\n" for name in class_names or ()))
        served = _Served(plain, probabilities, height_width, crop_fraction, class_names, names)
        tf.saved_model.save(served, str(partial), signatures=served.signatures())
        extra = partial / "assets.extra"
        extra.mkdir()
        description = {
            "image_size": height_width,
            "crop_fraction": crop_fraction,
            "resize": "bilinear",
            "class_names": class_names and list(class_names),
        }
        (extra / "export.json").write_text(json.dumps(description, indent=2) + "\n")
    return directory


def _height_width(image_size):
    sides = (image_size,) * 2 if isinstance(image_size, int) else image_size
    pair = isinstance(sides, tuple | list) and len(sides) == 2
    if not pair or not all(type(side) is int and side > 0 for side in sides):
        raise ValueError(f"image_size={image_size!r} is neither an integer nor (height, width)")
    return tuple(sides)


def _check_replaceable(directory):
    """Raises FileExistsError unless `directory` is absent, empty, or a SavedModel and no more."""
    if not os.path.lexists(directory):
        return
    if not directory.is_dir() or directory.is_symlink():
        raise FileExistsError(f"export to {directory}: there is a file or a link of that name")
    others = sorted({path.name for path in directory.iterdir()} - _SAVED_MODEL)
    if others:
        raise FileExistsError(
            f"export to {directory}: that folder holds {', '.join(others[:4])}"
            f"{' and more' if others[4:] else ''}, which the SavedModel would replace; name a "
            "folder of its own"
        )


class _Served(tf.Module):
    """What is saved: the model, the names, and a function for each signature."""

    def __init__(self, model, probabilities, image_size, crop_fraction, class_names, asset):
        super().__init__(name="tfscale_export")
        self.model = model
        self.class_names_file = tf.saved_model.Asset(str(asset)) if class_names else None
        self._probabilities = probabilities
        self._size = image_size
        self._crop_fraction = crop_fraction
        self._names = class_names

    def signatures(self):
        pictures = tf.TensorSpec([None], tf.string, name="image_bytes")
        pixels = tf.TensorSpec([None, *self._size, 3], tf.uint8, name="images")
        return {
            "serving_default": tf.function(self._from_bytes).get_concrete_function(pictures),
            "images": tf.function(self._from_images).get_concrete_function(pixels),
        }

    def _from_bytes(self, image_bytes):
        spec = tf.TensorSpec([*self._size, 3], tf.uint8)
        return self._from_images(
            tf.map_fn(self._prepare, image_bytes, fn_output_signature=spec, parallel_iterations=16)
        )

    def _prepare(self, encoded):
        image = jpeg.decode_and_crop(
            encoded, lambda shape: crops.centre_crop(shape, self._size, self._crop_fraction)
        )
        return jpeg.resize(image, self._size)

    def _from_images(self, images):
        outputs = {"probabilities": self._probabilities(images)}
        if self._names:
            best = tf.argmax(outputs["probabilities"], axis=-1)
            outputs["class_name"] = tf.gather(tf.constant(list(self._names)), best)
        return outputs


def _rebuild(model):
    """The same model without a strategy, with variables and arithmetic in float32."""

    def plain(layer):
        if isinstance(layer, keras.Model):
            return keras.models.clone_model(layer, clone_function=plain)
        return type(layer).from_config({**layer.get_config(), "dtype": "float32"})

    policy = keras.mixed_precision.global_policy()
    # For layers that a layer of the user's makes by itself.
    keras.mixed_precision.set_global_policy("float32")
    try:
        return keras.models.clone_model(model, clone_function=plain)
    except (ValueError, NotImplementedError) as error:
        raise ValueError(
            f"the model {model.name} cannot be rebuilt from its configuration ({error}); "
            "export takes functional and Sequential models, whose layers have get_config"
        ) from error
    finally:
        keras.mixed_precision.set_global_policy(policy)


def _checked(model, image_size, class_names, from_logits):
    """The model as a function from uint8 images to probabilities, tried on two grey pictures."""

    def probabilities(images):
        outputs = tf.cast(model(images, training=False), tf.float32)
        return tf.nn.softmax(outputs) if from_logits else outputs

    found = probabilities(tf.fill([2, *image_size, 3], tf.constant(128, tf.uint8))).numpy()
    if found.ndim != 2 or not np.allclose(found.sum(-1), 1, atol=1e-3) or found.min() < 0:
        raise ValueError(
            f"the outputs of {model.name} are no class probabilities: for a grey picture they have "
            f"shape {list(found.shape[1:])}, minimum {found.min():.4g} and sum "
            f"{found.sum() / len(found):.4g}. If they are logits, pass from_logits=True."
        )
    if class_names and len(class_names) != found.shape[-1]:
        raise ValueError(
            f"{len(class_names)} class_names for {found.shape[-1]} outputs of {model.name}"
        )
    return probabilities


@contextmanager
def _replacing(directory):
    """Gives a folder beside `directory` that takes its place if all goes well."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = directory.with_name(f".{directory.name}-partial-{os.getpid()}")
    old = directory.with_name(f".{directory.name}-old-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        yield partial
        if directory.exists():
            directory.rename(old)
        try:
            partial.rename(directory)
        except OSError:
            if old.exists():
                old.rename(directory)
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
