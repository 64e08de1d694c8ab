"""Two real workers read one set of records."""

import numpy as np
import pytest

from tests import record_files
from tests.multiprocess import data_runs
from tfscale import testing
from tfscale.data import images


@pytest.mark.slow
def test_workers_read_disjoint_rows_of_the_same_batches_and_stay_in_step(tmp_path):
    # 16 records in fewer files than workers; record 6 is one that only worker 1 reads.
    record_files.write(tmp_path, [16], encoded={6: b"not a picture"}, size=(0, 0))
    record_files.write(tmp_path, [11], split="validation")
    steps = 5  # 2.5 epochs
    workers = testing.run_in_processes(
        data_runs.read, workers=2, devices_per_worker=2, args=(str(tmp_path), str(tmp_path), steps)
    )
    assert [len(worker["train"]) for worker in workers] == [steps, steps]
    options = {"include_record_ids": True, "on_error": "skip"}
    whole = images.train_dataset(tmp_path, 8, 16, seed=5, **options).take(steps)
    for step, (image, _, ids) in enumerate(whole):
        parts = [worker["train"][step] for worker in workers]
        assert [counted for _, _, counted in parts] == [8.0, 8.0]
        assert [len(part) for _, parts_ids, _ in parts for part in parts_ids] == [2, 2, 2, 2]
        together = np.concatenate([part for _, part_ids, _ in parts for part in part_ids])
        np.testing.assert_array_equal(together, ids)
        sums = [int(pixels) for pixels_of, _, _ in parts for pixels in pixels_of]
        pixels = image.numpy().astype(int).reshape(4, -1).sum(1)
        assert sums == pixels.tolist()

    read = [{int(i) for _, part, _ in w["train"] for ids in part for i in ids} for w in workers]
    assert not read[0] & read[1] and read[0] | read[1] == set(range(16)) - {6}
    assert all(got <= set(worker["owned"]) for got, worker in zip(read, workers, strict=True))
    assert not workers[0]["skipped"]
    assert list(workers[1]["skipped"]) == [("train", 6)]
    assert "record 6 of" in workers[1]["skipped"]["train", 6]
    assert any("worker 1 of 2 reads 8 of 16 records" in line for line in workers[1]["lines"])

    seen = [i for w in workers for part, _ in w["evaluation"] for ids in part for i in ids]
    assert sorted(seen) == list(range(11))
    for worker in workers:
        assert [counted for _, counted in worker["evaluation"]] == [5.0, 6.0]
    assert [len(ids) for w in workers for ids in w["evaluation"][1][0]] == [1, 2, 1, 2]
