"""The plan of gradient buckets as a table that TensorBoard shows."""

import math

import tensorflow as tf

_TIMES = ("ready", "start", "end")
_EXPLANATION = (
    "Times in milliseconds from when the first bucket is ready: when all gradients of a bucket "
    "are, when its exchange begins, and when its sums have come."
)


def bucket_table(fingerprint, predicted=(), measured=()):
    """Returns a table in Markdown with a line for each bucket.

    Args:
        fingerprint: list of ``[path, shape, dtype, bucket]`` of each tensor.
        predicted: rows of `Hierarchical2DAllReduce.predicted_timeline`, or empty.
        measured: rows of `Hierarchical2DAllReduce.timeline`, or empty; those of another plan are
            left out.

    Example:
        >>> print(bucket_table([["a/kernel", [2], "float32", 0], ["b/kernel", [3], "float32", 0]]))
        | bucket | tensors | bytes | first | last |
        |---|---|---|---|---|
        | 0 | 2 | 20 | b/kernel | a/kernel |
    """
    buckets = {}
    for path, shape, dtype, bucket in fingerprint:
        # What is sent alone comes last.
        buckets.setdefault((bucket < 0, bucket), []).append((path, shape, dtype))
    numbered = sorted(buckets.items())
    sizes = [_bytes(tensors) for _, tensors in numbered]
    head = ["bucket", "tensors", "bytes", "first", "last"]
    # Filled from the last tensor backwards.
    rows = [
        ["alone" if alone else number, len(tensors), size, tensors[-1][0], tensors[0][0]]
        for ((alone, number), tensors), size in zip(numbered, sizes, strict=True)
    ]
    in_buckets = [size for ((alone, _), _), size in zip(numbered, sizes, strict=True) if not alone]
    for name, times in (("predicted", predicted), ("measured", measured)):
        times = _of_plan(times, in_buckets)
        if times:
            head += [f"{name} {key}" for key in _TIMES]
            first = min(row["ready"] for row in times)
            texts = [[f"{1e3 * (row[key] - first):.1f}" for key in _TIMES] for row in times]
            texts += [[""] * len(_TIMES)] * (len(rows) - len(times))
            rows = [row + text for row, text in zip(rows, texts, strict=True)]
    lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    if len(head) > 5:
        lines = [_EXPLANATION, "", *lines]
    return "\n".join(lines)


def _of_plan(times, sizes):
    """The rows of the plan with buckets of these sizes, which is the last one if it is there."""
    rows = times[len(times) - len(sizes) :]
    return rows if [row["bytes"] for row in rows] == sizes else []


def _bytes(tensors):
    if any(shape is None for _, shape, _ in tensors):
        return "?"
    return sum(tf.as_dtype(dtype).size * math.prod(shape) for _, shape, dtype in tensors)
