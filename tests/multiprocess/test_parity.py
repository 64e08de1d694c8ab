"""The first law: the same global batch gives the same weights, however it is split.

1 x 1, 1 x 2, 2 x 1, 2 x 2 and 4 x 1 (workers x devices) in real processes; everything that
training leaves behind is compared with one device: weights, moving statistics, optimizer slots,
losses and metrics, after eight steps (and validation).
"""

import numpy as np
import pytest

from tests.multiprocess import parity_runs
from tfscale.testing import run_in_processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FLOAT32 = dict(rtol=1e-5, atol=1e-5)
# Eight bits of mantissa: one rounding of an activation is 2**-9 = 0.2 %, and a replica's partial
# gradient of a bfloat16 convolution is itself rounded to bfloat16 before the float32 sum, so
# splitting a batch changes each gradient by up to 2**-9 of its size, over 8 steps of rate 0.1.
BFLOAT16 = dict(rtol=2e-2, atol=4e-3)
# Eleven bits: the same reasoning gives 2**-12 a step.
FLOAT16 = dict(rtol=3e-3, atol=1e-3)
TOLERANCES = {"mixed_bfloat16": BFLOAT16, "mixed_float16": FLOAT16}
GRIDS = [(1, 2), (2, 1), (2, 2), (4, 1)]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    from tfscale.data.prepare import prepare_arrays

    folder = tmp_path_factory.mktemp("records")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, parity_runs.CLASSES, 37)
    pixels = rng.integers(0, 80, (37, 24, 20, 3)) + 80 * labels[:, None, None, None]
    names = [str(i) for i in range(parity_runs.CLASSES)]
    examples = zip(pixels.astype(np.uint8), labels, strict=True)
    prepare_arrays(examples, str(folder), "train", names)
    return str(folder)


@pytest.fixture(scope="module")
def one_device(records):
    return run_in_processes(parity_runs.all_runs, workers=1, args=(records,))[0]


@pytest.mark.parametrize("workers, devices", GRIDS)
def test_any_split_of_the_batch_gives_the_weights_of_one_device(
    workers, devices, records, one_device
):
    results = run_in_processes(
        parity_runs.all_runs, workers, devices_per_worker=devices, args=(records,), timeout=600
    )
    for worker, runs in enumerate(results):
        for run, expected in one_device.items():
            tolerance = TOLERANCES.get(run, FLOAT32)
            assert runs[run].keys() == expected.keys(), run
            for name, value in expected.items():
                np.testing.assert_allclose(
                    runs[run][name],
                    value,
                    **tolerance,
                    err_msg=f"{run}: {name} on worker {worker} of {workers} x {devices}",
                )
    for run in one_device:
        for name, value in results[0][run].items():
            for other in results[1:]:
                np.testing.assert_array_equal(other[run][name], value, err_msg=f"{run}: {name}")


def test_the_users_own_loop_gives_the_weights_of_fit(one_device):
    loop, fit = one_device["own loop"], one_device["sgd, one epoch"]
    for name, value in fit.items():
        if not name.startswith("metric/"):
            np.testing.assert_allclose(loop[name], value, rtol=1e-6, atol=1e-6, err_msg=name)
