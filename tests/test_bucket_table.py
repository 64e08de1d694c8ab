"""The table of buckets in TensorBoard."""

from tfscale.callbacks.bucket_table import bucket_table

FINGERPRINT = [
    ["a/kernel", [2, 3], "float32", 1],
    ["b/kernel", [4], "float16", 0],
    ["c/unknown", None, "float32", -1],
    ["d/kernel", [5], "float32", 1],
]
PREDICTED = [
    {"bucket": 0, "bytes": 8, "ready": 0.5, "start": 0.5, "end": 0.75},
    {"bucket": 1, "bytes": 44, "ready": 0.625, "start": 0.75, "end": 1.5},
]
MEASURED = [dict(row, ready=1e9 + row["ready"], start=1e9 + 1, end=1e9 + 2) for row in PREDICTED]


def test_buckets_alone():
    assert bucket_table(FINGERPRINT).splitlines() == [
        "| bucket | tensors | bytes | first | last |",
        "|---|---|---|---|---|",
        "| 0 | 1 | 8 | b/kernel | b/kernel |",
        "| 1 | 2 | 44 | d/kernel | a/kernel |",
        "| alone | 1 | ? | c/unknown | c/unknown |",
    ]


def test_predicted_and_measured_times():
    explanation, empty, *lines = bucket_table(FINGERPRINT, PREDICTED, MEASURED).splitlines()
    assert "milliseconds" in explanation and not empty
    assert lines[0].endswith(
        "| last | predicted ready | predicted start | predicted end "
        "| measured ready | measured start | measured end |"
    )
    assert lines[2].endswith("| 0.0 | 0.0 | 250.0 | 0.0 | 500.0 | 1500.0 |")
    assert lines[3].endswith("| 125.0 | 250.0 | 1000.0 | 125.0 | 500.0 | 1500.0 |")
    assert lines[4].endswith("| c/unknown |  |  |  |  |  |  |")
    assert {line.count("|") for line in lines} == {12}


def test_times_of_another_plan_are_left_out():
    other = [dict(PREDICTED[0], bytes=10)]
    # The timeline holds one plan after the other.
    assert bucket_table(FINGERPRINT, (), other + MEASURED) == bucket_table(
        FINGERPRINT, (), MEASURED
    )
    assert bucket_table(FINGERPRINT, (), MEASURED + other) == bucket_table(FINGERPRINT)
