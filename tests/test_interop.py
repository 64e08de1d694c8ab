"""The pinned set works together: tf-models-official and tensorflow-addons beside tfscale."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

ADDONS = """
import numpy as np
from tfscale import keras
from tfscale.interop import import_addons
tfa = import_addons()
assert import_addons() is tfa
import keras as bare
assert bare.__version__.startswith("3."), bare.__version__
model = keras.Sequential([keras.layers.Dense(1, input_shape=(3,))])
model.compile(tfa.optimizers.Lookahead(tfa.optimizers.LAMB(0.05)), "mse")
x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
losses = model.fit(x, x.sum(1), epochs=8, verbose=0).history["loss"]
assert losses[-1] < losses[0], losses
print(tfa.__version__)
"""

OFFICIAL = """
import numpy as np
from tfscale import distribute, keras
from official.vision.modeling.backbones import resnet
strategy = distribute.create_strategy("mirrored", devices_per_worker=2)
with strategy.scope():
    specs = keras.layers.InputSpec(shape=[None, 32, 32, 3])
    backbone = resnet.ResNet(model_id=18, input_specs=specs)
    images = keras.Input([32, 32, 3])
    pooled = keras.layers.GlobalAveragePooling2D()(backbone(images)["5"])
    model = keras.Model(images, keras.layers.Dense(2)(pooled))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x = np.random.default_rng(0).normal(size=(8, 32, 32, 3)).astype("float32")
loss = model.fit(x, np.arange(8) % 2, batch_size=8, verbose=0).history["loss"][0]
assert np.isfinite(loss), loss
"""


@pytest.mark.slow
@pytest.mark.parametrize("package, code", [("tensorflow_addons", ADDONS), ("official", OFFICIAL)])
def test_trains_beside(package, code):
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed (extras [official] and [addons])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
