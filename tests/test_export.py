"""Export: loaded in another process that has neither tfscale nor the strategy nor the policy."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfscale._keras import install, keras
from tfscale.data import crops, jpeg
from tfscale.export import export

NAMES = ["ant", "bee", "cat"]

# Runs isolated, where importing tfscale fails: reads pictures and prints what the models say.
LOADER = """
import json, pathlib, sys
sys.modules["tfscale"] = None
import tensorflow as tf
found = {}
pictures = [p.read_bytes() for p in sorted(pathlib.Path(sys.argv[1]).iterdir())]
for folder in sys.argv[2:]:
    model = tf.saved_model.load(folder)
    served = model.signatures["serving_default"]
    batch = served(image_bytes=tf.constant(pictures))
    alone = served(image_bytes=tf.constant(pictures[:1]))
    pixels = model.signatures["images"](images=tf.zeros([1, 16, 24, 3], tf.uint8))
    devices = {n.device for f in served.graph.as_graph_def().library.function for n in f.node_def}
    devices |= {n.device for n in served.graph.as_graph_def().node}
    found[folder] = {
        "dtype": batch["probabilities"].dtype.name,
        "batch": batch["probabilities"].numpy().tolist(),
        "names": [n.decode() for n in batch["class_name"].numpy()],
        "alone": alone["probabilities"].numpy().tolist(),
        "pixels": pixels["probabilities"].dtype.name,
        "devices": sorted(devices),
        "asset": pathlib.Path(model.class_names_file.asset_path.numpy().decode()).read_text(),
        "variables": sorted({v.dtype.name for v in model.model.variables}),
    }
assert sys.modules["tfscale"] is None
print(json.dumps(found))
"""


def net(softmax=True):
    inputs = keras.Input([16, 24, 3], dtype="uint8")
    x = keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    x = keras.layers.Conv2D(8, 3, strides=2)(x)
    x = keras.layers.BatchNormalization(synchronized=True)(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    activation = "softmax" if softmax else None
    return keras.Model(inputs, keras.layers.Dense(3, activation, dtype="float32")(x))


def pictures(count=6):
    rng = np.random.RandomState(0)
    coarse = rng.randint(0, 256, [count, 4, 5, 3]).astype("float32")
    images = tf.image.resize(coarse, [48, 60]).numpy().astype("uint8")
    return images, rng.randint(0, 3, count)


def train(policy, replicas):
    strategy = tf.distribute.MirroredStrategy(
        [f"/cpu:{i}" for i in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
    install(strategy)
    keras.mixed_precision.set_global_policy(policy)
    try:
        with strategy.scope():
            keras.utils.set_random_seed(0)
            model = net()
            model.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy")
    finally:
        keras.mixed_precision.set_global_policy("float32")
    images, labels = pictures()
    prepared = tf.image.resize(images, [16, 24]).numpy().astype("uint8")
    model.fit(prepared, labels, epochs=30, batch_size=6, verbose=0)
    return model


@pytest.mark.slow
def test_loaded_elsewhere_without_tfscale(tmp_path):
    images, _ = pictures()
    (tmp_path / "pictures").mkdir()
    for i, image in enumerate(images):
        encode = tf.io.encode_png if i % 2 else tf.io.encode_jpeg
        (tmp_path / "pictures" / f"{i}.jpg").write_bytes(encode(image).numpy())
    models = {p: train(p, 2) for p in ("float32", "mixed_bfloat16", "mixed_float16")}
    folders = [
        str(export(model, tmp_path / policy, (16, 24), NAMES)) for policy, model in models.items()
    ]
    run = subprocess.run(
        [sys.executable, "-I", "-c", LOADER, str(tmp_path / "pictures"), *folders],
        capture_output=True, text=True, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    encoded = [p.read_bytes() for p in sorted((tmp_path / "pictures").iterdir())]
    # What evaluation makes of the pictures.
    prepared = tf.stack(
        [
            jpeg.resize(jpeg.decode_and_crop(e, lambda s: crops.centre_crop(s, (16, 24))), (16, 24))
            for e in encoded
        ]
    )
    for folder, found in json.loads(run.stdout).items():
        model = models[folder.rpartition("/")[2]]
        expected = model.predict(prepared, verbose=0)
        assert found["dtype"] == found["pixels"] == "float32"
        assert found["variables"] == ["float32"]
        # bfloat16 has 8 significant bits, float16 11; the export computes in float32.
        tolerance = {"float32": 1e-6, "mixed_bfloat16": 3e-2, "mixed_float16": 4e-3}
        np.testing.assert_allclose(
            found["batch"], expected, atol=tolerance[folder.rpartition("/")[2]]
        )
        assert (np.argmax(found["batch"], -1) == expected.argmax(-1)).all()
        np.testing.assert_allclose(np.sum(found["batch"], -1), 1, rtol=1e-6)
        np.testing.assert_allclose(found["alone"][0], found["batch"][0], atol=1e-6)
        assert found["names"] == [NAMES[i] for i in expected.argmax(-1)]
        assert found["asset"].split() == NAMES
        assert found["devices"] == [""]


@pytest.mark.slow
def test_replaces_what_was_there_and_only_if_all_goes_well(tmp_path, monkeypatch):
    model = net()
    old = tmp_path / "model" / "variables" / "old"  # Within what an earlier export left.
    old.parent.mkdir(parents=True)
    old.write_text("old")

    def full(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(tf.saved_model, "save", full)
    with pytest.raises(OSError, match="disk full"):
        export(model, tmp_path / "model", (16, 24))
    assert old.exists()
    monkeypatch.undo()
    export(model, tmp_path / "model", (16, 24))
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert not old.exists()
    extra = json.loads((tmp_path / "model" / "assets.extra" / "export.json").read_text())
    assert extra == {
        "image_size": [16, 24], "crop_fraction": 0.875, "resize": "bilinear", "class_names": None
    }  # fmt: skip
    outputs = tf.saved_model.load(tmp_path / "model").signatures["images"].structured_outputs
    assert set(outputs) == {"probabilities"}


def test_logits(tmp_path):
    model = net(softmax=False)
    with pytest.raises(ValueError, match="no class probabilities.*from_logits=True"):
        export(model, tmp_path / "m", (16, 24))
    export(model, tmp_path / "m", (16, 24), from_logits=True)
    images, _ = pictures(2)
    images = images[:, :16, :24]
    served = tf.saved_model.load(tmp_path / "m").signatures["images"]
    found = served(images=tf.constant(images))["probabilities"]
    np.testing.assert_allclose(found, tf.nn.softmax(model(images)), atol=1e-6)


def test_what_cannot_be_exported(tmp_path):
    with pytest.raises(ValueError, match="2 class_names for 3 outputs"):
        export(net(), tmp_path / "m", (16, 24), ["a", "b"])

    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = net()

        def call(self, x):
            return self.inner(x)

    model = Subclassed()
    model(np.zeros([1, 16, 24, 3], "uint8"))
    with pytest.raises(ValueError, match="cannot be rebuilt"):
        export(model, tmp_path / "m", (16, 24))
    with (
        tf.distribute.OneDeviceStrategy("/cpu:0").scope(),
        pytest.raises(ValueError, match="outside of strategy.scope"),
    ):
        export(net(), tmp_path / "m", (16, 24))
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_are_no_picture(tmp_path):
    export(net(), tmp_path / "m", (16, 24), NAMES)
    served = tf.saved_model.load(tmp_path / "m").signatures["serving_default"]
    with pytest.raises(tf.errors.InvalidArgumentError):
        served(image_bytes=tf.constant([b"not a picture"]))


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_nothing_but_a_saved_model_is_ever_replaced(kind, tmp_path):
    target, precious = tmp_path / "target", tmp_path / "target"
    if kind == "file":
        target.write_text("precious")
    elif kind == "link":
        precious = tmp_path / "elsewhere"
        precious.write_text("precious")
        target.symlink_to(precious)
    else:
        precious = target / "notes.txt"
        target.mkdir()
        (target / "saved_model.pb").write_text("")
        precious.write_text("precious")
    with pytest.raises(FileExistsError, match="target"):
        export(net(), target, (16, 24))
    assert precious.read_text() == "precious"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"image_size": "16"}, "image_size='16'"),
        ({"image_size": (16,)}, r"image_size=\(16,\)"),
        ({"image_size": 0}, "image_size=0"),
        ({"image_size": 16.0}, "image_size=16.0"),
        ({"crop_fraction": 0}, "crop_fraction=0"),
        ({"crop_fraction": 2}, "crop_fraction=2"),
    ],
)
def test_arguments_out_of_range(options, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        export(net(), tmp_path / "model", **({"image_size": (16, 24)} | options))
    assert not list(tmp_path.iterdir())
