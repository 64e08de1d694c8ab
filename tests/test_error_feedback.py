"""What compression holds back: kept by tensor, whatever buckets, devices and workers there are."""

import logging

import numpy as np
import pytest

from tfscale.callbacks.portable_paths import portable_identities, portable_paths, renamed
from tfscale.distribute.error_feedback import CompressionState
from tfscale.distribute.layout import lay_out

TENSORS = [("conv2d_3/kernel", 40), ("conv2d_4/kernel", 40), ("dense/bias", 7)]
DEVICES = [f"/device:CPU:{i}" for i in range(4)]


def fill(state, plan, devices, value_of):
    """Makes the vectors of one bucket that holds all tensors, and sets their elements."""
    layout = lay_out([size for _, size in TENSORS], devices)
    state.begin_plan(plan, TENSORS)
    for column, shard in enumerate(layout.shards):
        segments = tuple((s.tensor, s.start, s.size, s.offset) for s in shard)
        vector = state.vector("residual", plan, 0, column, segments, layout.length, DEVICES[column])
        if value_of is not None:
            value = np.zeros(layout.length, np.float32)
            for tensor, start, size, offset in segments:
                value[offset : offset + size] = value_of(tensor)[start : start + size]
            vector.assign(value)


def worker_value(worker):
    def value_of(tensor):
        return np.random.default_rng([worker, tensor]).standard_normal(TENSORS[tensor][1])

    return value_of


def exported(worker, devices=2):
    state = CompressionState()
    fill(state, "plan", devices, worker_value(worker))
    return state.export()


def test_export_is_by_tensor():
    owed = exported(worker=0)
    assert owed["tensors"] == [[path, size, 0] for path, size in TENSORS]
    for i, residual in enumerate(owed["residual"]):
        np.testing.assert_array_equal(residual, np.float32(worker_value(0)(i)))
    assert CompressionState().export() == {}


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
def test_other_devices_take_over_every_bit(devices):
    state = CompressionState()
    state.load([exported(worker=0)])
    fill(state, "another plan", devices, None)
    assert_equal(state.export(), exported(worker=0))
    state.release()
    assert_equal(state.export(), exported(worker=0))


@pytest.mark.parametrize("old", [1, 2, 3, 5])
@pytest.mark.parametrize("new", [1, 2, 3, 4])
def test_the_sum_over_workers_stays(old, new):
    saved = [exported(worker) for worker in range(old)]
    states = [CompressionState() for _ in range(new)]
    for index, state in enumerate(states):
        state.load(saved, index, new)
        fill(state, "plan", 1 + index % 2, None)
    loaded = [state.export() for state in states]
    if old == new:
        for mine, before in zip(loaded, saved, strict=True):
            assert_equal(mine, before)
    for i in range(len(TENSORS)):
        before = sum(np.float64(s["residual"][i]) for s in saved)
        after = sum(np.float64(s["residual"][i]) for s in loaded if s)
        np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-6)


def test_what_finds_no_tensor_is_named(caplog):
    state = CompressionState()
    state.load([{"tensors": [["old/kernel", 3, 0]], "residual": [np.ones(3, np.float32)]}])
    assert "old/kernel" in str(state.export())
    fill(state, "plan", 2, None)
    with caplog.at_level(logging.WARNING, logger="tfscale"):
        state.drop_leftovers()
    assert "gradients of 1 tensors that this model does not exchange (old/kernel" in caplog.text
    # Not those of another slot or those that were taken over.
    assert "velocities" not in caplog.text and "dense" not in caplog.text
    assert "old/kernel" not in str(state.export())


def test_a_velocity_that_nobody_keeps_is_dropped(caplog):
    saved = exported(worker=0)
    saved["velocity"] = [2 * values for values in saved["residual"]]
    state = CompressionState()
    state.load([saved])
    fill(state, "without momentum", 2, None)
    assert set(state.export()) == {"tensors", "residual", "velocity"}
    state.drop_leftovers()
    assert "velocities of 3 tensors, for which there is no momentum now (conv2d" in caplog.text
    assert_equal(state.export(), exported(worker=0))
    assert "velocity" not in state.export()
    # At a change of the compressor.
    state.load([saved])
    state.release()
    state.forget_velocities()
    assert_equal(state.export(), exported(worker=0))
    assert "velocity" not in state.export()


def assert_equal(left, right):
    assert left["tensors"] == right["tensors"]
    for a, b in zip(left["residual"], right["residual"], strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_variable_keeps_its_own_in_every_plan():
    """Frozen layers, other optimizers and variables of the same path: nothing goes to another."""
    state = CompressionState()

    def vector(plan, tensor):
        state.begin_plan(plan, [tensor])
        return state.vector("residual", plan, 0, 0, ((0, 0, 4, 0),), 4, DEVICES[0])

    tensors = [("block_1/kernel", 4, "a"), ("block_2/kernel", 4, "b"), ("block_1/kernel", 4, "c")]
    for number, tensor in enumerate(tensors):
        vector(number, tensor).assign([float(number + 1)] * 4)
    assert state.export()["tensors"] == [
        ["block_1/kernel", 4, 0],
        ["block_2/kernel", 4, 0],
        ["block_1/kernel", 4, 1],
    ]
    state.release()
    # In another order, and without the first one.
    for number in (2, 1):
        assert vector(f"again {number}", tensors[number]).numpy().tolist() == [number + 1.0] * 4
    state.drop_leftovers()
    # That of the frozen one is named and dropped; both others have theirs still.
    assert sorted(state.export()["tensors"]) == [["block_1/kernel", 4, 1], ["block_2/kernel", 4, 0]]


def test_paths_of_a_checkpoint_do_not_depend_on_the_process():
    early = ["dense/kernel", "dense_1/kernel", "out/kernel", "out/kernel", "b_1/c_3/k", "b_2/c_4/k"]
    late = ["dense_9/kernel", "dense_10/kernel", *early[2:4], "b_7/c_9/k", "b_8/c_10/k"]
    assert portable_paths(early) == portable_paths(late)
    assert portable_paths(late) == [
        "dense/kernel", "dense_1/kernel", "out/kernel", "out/kernel:1", "b/c/k", "b_1/c/k",
    ]  # fmt: skip
    # Whatever the order: within a layer it depends on what is frozen.
    assert portable_paths(["a_4/k", "a_3/k", "a_03/k"]) == ["a_1/k", "a/k", "a_03/k"]


def test_a_checkpoint_of_another_numbering_finds_its_variables():
    saved = CompressionState()
    old = [
        ("dense_3/kernel", 4, "p"),
        ("dense_4/kernel", 4, "q"),
        ("out/k", 4, "r"),
        ("out/k", 4, "s"),
    ]
    # Traced in another order than that of the model, and without one that is frozen.
    traced = [old[3], old[1], old[2]]
    saved.begin_plan("plan", traced)
    for i, tensor in enumerate(traced):
        saved.vector("residual", "plan", i, 0, ((i, 0, 4, 0),), 4, DEVICES[0]).assign(
            [float(ord(tensor[2]))] * 4
        )
    names = {identity: name for name, identity in portable_identities(saved, old).items()}
    exported = renamed(saved.export(), names)
    assert ["dense_1/kernel", 4] in exported["tensors"]

    new = [
        ("dense/kernel", 4, "P"),
        ("dense_1/kernel", 4, "Q"),
        ("out/k", 4, "R"),
        ("out/k", 4, "S"),
    ]
    state = CompressionState()
    own = portable_identities(CompressionState(), new)
    state.load([renamed(exported, own)], 0, 1, new)
    state.begin_plan("all", new[::-1])
    found = {
        tensor[2]: state.vector("residual", "all", i, 0, ((i, 0, 4, 0),), 4, DEVICES[0]).numpy()[0]
        for i, tensor in enumerate(new[::-1])
    }
    assert found == {"P": 0.0, "Q": ord("q"), "R": ord("r"), "S": ord("s")}
