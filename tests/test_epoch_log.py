"""The file of a run's epochs: written by one callback, followed by another process."""

import io
import json
import math

import numpy as np
import pytest

from tfscale import keras
from tfscale.callbacks.epoch_file import EpochReader, append, keep_epochs
from tfscale.callbacks.epoch_log import EpochLog
from tfscale.callbacks.progress import Progress


def test_lines_are_read_once_and_whole(tmp_path):
    path = tmp_path / "run" / "epochs.jsonl"
    reader = EpochReader(path)
    assert reader.new() == []
    append(path, 1, 3, {"loss": 0.5, "val_loss": math.nan})
    ((epoch, epochs, metrics),) = reader.new()
    assert (epoch, epochs, metrics["loss"]) == (1, 3, 0.5) and math.isnan(metrics["val_loss"])
    assert json.loads(path.read_text()) == {
        "epoch": 1,
        "epochs": 3,
        "metrics": {"loss": 0.5, "val_loss": None},
    }
    append(path, 2, 3, {"loss": 0.25})
    line = path.read_bytes().splitlines(keepends=True)[1]
    with open(path, "ab") as file:
        file.write(line[:9])
        file.flush()
        assert reader.new() == [(2, 3, {"loss": 0.25})]
        file.write(line[9:])
    assert reader.new() == [(2, 3, {"loss": 0.25})]
    assert reader.new() == []


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"x": 1}', '{"epoch": 1, "metrics": 3}', "1", "\udcff"]
)
def test_what_is_no_epoch_is_named(tmp_path, line):
    path = tmp_path / "epochs.jsonl"
    path.write_bytes(f"{line}\n".encode(errors="surrogateescape"))
    for read in (EpochReader(path).new, lambda: keep_epochs(path, 1)):
        with pytest.raises(ValueError, match="epochs.jsonl has the line .* which is no epoch's"):
            read()


def test_a_resumed_run_keeps_the_epochs_before(tmp_path):
    path = tmp_path / "epochs.jsonl"
    keep_epochs(path, 3)
    assert not path.exists()
    for epoch in (1, 2, 3):
        append(path, epoch, 5, {"loss": epoch})
    with open(path, "a") as file:
        file.write('{"epoch": 4, "epochs": 5, "metrics": {"loss": 4}')  # killed while it wrote
    reader = EpochReader(path)
    assert [epoch for epoch, _, _ in reader.new()] == [1, 2, 3]
    keep_epochs(path, 2)
    assert [epoch for epoch, _, _ in EpochReader(path).new()] == [1, 2]
    # One that follows does not miss what took the place of what it has read.
    for epoch in (3, 4, 5):
        append(path, epoch, 5, {"loss": epoch})
    assert [epoch for epoch, _, _ in reader.new()] == [1, 2, 3, 4, 5]
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    assert [epoch for epoch, _, _ in reader.new()] == [1] and reader.new() == []


def test_the_callback_writes_what_fit_says(tmp_path):
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = y = np.ones((4, 2), np.float32)
    path = tmp_path / "epochs.jsonl"
    log = EpochLog(path)
    odd = {"name": "a", "nothing": None, "matrix": np.eye(2)}
    add = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(odd))
    progress = Progress(stream=io.StringIO())
    data = {"x": x, "y": y[:, :1], "validation_data": (x, y[:, :1]), "verbose": 0}
    history = model.fit(**data, epochs=2, callbacks=[add, log, progress]).history
    written = EpochReader(path).new()
    assert [(epoch, epochs) for epoch, epochs, _ in written] == [(1, 2), (2, 2)]
    assert all(set(metrics) == {"loss", "val_loss"} for *_, metrics in written)
    for name in ("loss", "val_loss"):
        assert [metrics[name] for _, _, metrics in written] == history[name]
    # Phases of one run, each with its own fit, and a first epoch that is done again.
    model.fit(**data, initial_epoch=1, epochs=3, callbacks=[EpochLog(path, epochs=7)])
    written = EpochReader(path).new()
    assert [(epoch, epochs) for epoch, epochs, _ in written] == [(1, 2), (2, 7), (3, 7)]
