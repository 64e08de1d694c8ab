"""Agreement between real processes: values, names used again, who is missing, what differs."""

import re

import pytest

from tests.multiprocess import failure_workers
from tfscale import testing


@pytest.mark.slow
def test_agreements_and_disagreements():
    reports = testing.run_in_processes(failure_workers.disagree, 2)
    for worker, report in enumerate(reports):
        for i, values in enumerate(report["values"]):
            assert values == [{"worker": w, "round": i} for w in range(2)]
        assert report["big"] == [5 << 20, (5 << 20) + 1]

        kind, text = report["differ"]
        assert kind == "ValueError"
        assert "do not agree on arguments: lr[1] is 0.2 on worker 0 (127.0.0.1:" in text
        assert "but 1.2 on worker 1 (127.0.0.1:" in text

        kind, text = report["settings"]
        assert kind == "ValueError" and "do not agree on how the strategy is made" in text
        assert '"streams": 2' in text and '"streams": 3' in text
        for what, item, left, right in (
            ("buckets", "all-reduce is", '"bucket_bytes": 1048576', '"bucket_bytes": 2097152'),
            ("compression", "all-reduce is", '"compression": "none"', '"compression": "int8'),
            ("heartbeat", "heartbeat_seconds is", "'5' on worker 0", "'6' on worker 1"),
            ("version", "tf_keras is", "'tf-keras 1.0' on worker 0", "'tf-keras 1.1' on worker 1"),
        ):
            kind, text = report[what]
            assert kind == "ValueError" and item in text, text
            assert left in text and right in text, text

        kind, text = report["swapped"]
        assert kind == "ValueError"
        assert "do not agree on gradients: [0] is 'first, shape [8], float32, bucket 0, " in text
        assert "but 'second, shape [8], float32, bucket 0, float32 on the wire' on worker" in text

        kind, text = report["swapped sparse"]
        assert "[0] is 'first, shape None, sparse, bucket -1, uncompressed on the wire' on" in text

        kind, text = report["dtype"]
        assert kind == "ValueError" and "[0] is 'first, shape [8], float32, bucket 0, " in text
        assert "but 'first, shape [8], float16, bucket 0, " in text

        kind, text = report["later compression"]
        assert kind == "ValueError"
        assert "[0] is 'weights, shape [8], float32, bucket 0, float32 on the wire'" in text
        assert "but 'weights, shape [8], float32, bucket 0, bfloat16 on the wire'" in text

        kind, text = report["missing"]
        assert kind == "ValueError"
        assert "[1] is 'second, shape [8], float32, bucket 0, float32 on the wire'" in text
        assert "but absent on worker 1" in text

        assert report["right"] == [[[2.0] * 8] * 2]
        if worker == 0:
            kind, text = report["alone"]
            assert kind == "TimeoutError"
            assert "no word on alone from worker 1 (127.0.0.1:" in text
            assert 2 <= report["alone seconds"] < 10


@pytest.mark.slow
def test_a_worker_that_fails_before_agreeing_is_named_within_seconds():
    with pytest.raises(RuntimeError) as caught:
        testing.run_in_processes(failure_workers.fail_before_the_first_step, 2)
    text = str(caught.value)
    assert "worker 1 exited with code 1" in text and "ValueError: no such directory" in text
    assert re.search(r"worker 1 \(127.0.0.1:\d+\) ended before agreeing on gradients", text)
