"""Each compressor reaches the accuracy of the dense exchange, on two real workers.

Handwritten digits, 360 of them held out. `experiments/compression` is the same on Fashion-MNIST,
with three seeds and longer.
"""

import json

import pytest

from experiments.compression import run

ARMS = ("bfloat16", "float16", "int8", "topk-warmup-momentum")
# Two standard deviations of the difference of two counts of errors, 10 of 360 each.
NOISE = 0.025


@pytest.mark.slow
def test_every_compressor_reaches_the_accuracy_of_the_dense_exchange(tmp_path):
    pytest.importorskip("sklearn")
    path = tmp_path / "rows.json"
    flags = ["--dataset=digits", "--batch=16", "--epochs=8", "--seeds=1", "--devices_per_worker=1"]
    assert run.main([*flags, f"--arms=dense,{','.join(ARMS)}", f"--json={path}"]) == 0
    accuracy = {row["arm"]: row["accuracy"] for row in json.loads(path.read_text())}
    assert accuracy["dense"] > 0.95
    for arm in ARMS:
        assert accuracy[arm] > accuracy["dense"] - NOISE, accuracy
