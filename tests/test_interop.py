"""tensorflow-addons beside tfscale, in a process that imported TensorFlow first, as people do."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tfscale import interop

ADDONS = """
import logging, sys
logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
import tensorflow as tf
import numpy as np
from tfscale import keras
from tfscale.interop import import_addons
before = {n: m for n, m in sys.modules.items() if n.startswith(("keras", "tensorflow.keras"))}
tfa = import_addons()
assert import_addons() is tfa
after = {n: m for n, m in sys.modules.items() if n.startswith(("keras", "tensorflow.keras"))}
assert before == after, before.keys() ^ after.keys()
import keras as bare
assert bare.__version__.startswith("3."), bare.__version__
model = keras.Sequential([keras.layers.Dense(1, input_shape=(3,))])
model.compile(tfa.optimizers.Lookahead(tfa.optimizers.LAMB(0.05)), "mse")
x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
losses = model.fit(x, x.sum(1), epochs=8, verbose=0).history["loss"]
assert losses[-1] < losses[0], losses
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("tensorflow_addons") is None, reason="the extra [addons]")
def test_addons_train_and_their_end_of_life_is_said_once():
    # Without what conftest sets, which would make TensorFlow itself lead to tf_keras.
    environment = {k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"}
    done = subprocess.run(
        [sys.executable, "-c", ADDONS], capture_output=True, text=True, timeout=240, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("end of life") == 1
    assert "End of Life" not in done.stderr


def test_keras_3_in_use_is_refused(monkeypatch):
    monkeypatch.delitem(sys.modules, "tensorflow_addons", raising=False)
    monkeypatch.setattr(interop, "resolved_to_keras_3", lambda: True)
    with pytest.raises(ImportError, match="set TF_USE_LEGACY_KERAS=1 before TensorFlow is"):
        interop.import_addons()
