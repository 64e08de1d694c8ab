"""Advice in words: which method, which fusion, which compression."""

import re

# A gain below this is within what the model can be wrong by.
_WORTH = 0.10
# Steps within this factor are called equal, and the default or else the simplest method is named.
_SAME = 1.02
_DEFAULT = "2d"
_CAVEATS = {
    "bfloat16": "It rounds every gradient to 8 bits of mantissa and keeps nothing back; that "
    "rarely matters, but compare a short run with float32 once.",
    "float16": "It rounds every gradient to 11 bits of mantissa and keeps nothing back; that "
    "rarely matters, but compare a short run with float32 once.",
    "int8": "It is lossy: keep its error feedback on, and compare the accuracy of a run with "
    "float32 on your own task before you rely on it.",
    "topk": "It is lossy and changes training: plain top-k with error feedback can end at a lower "
    "accuracy. Raise the sparsity gradually (`top_k_warmup`), use momentum correction, or compress "
    "in one phase of training only (`CompressionSchedule`), and compare the final accuracy with "
    "float32 on your own task.",
}


def advise(rows, cluster):
    """Returns sentences about a list of `Outcome`, for people.

    They never recommend a lossy compression without what it may cost, nor any compression where
    the exchange is hidden anyway.
    """
    if cluster.workers == 1:
        return ["One worker: nothing crosses a network. No method or compression matters."]
    # A tree is drawn for comparison; neither TensorFlow nor tfscale runs it.
    exact = [row for row in rows if row.compression is None and row.method != "tree"]
    lossy = [row for row in rows if row.compression is not None]
    lines = []
    best = _default_or_simplest_of_the_fastest(exact)
    if best is not None:
        lines.append(_about_exact(best, exact))
        fusion = _about_fusion(exact)
        if fusion:
            lines.append(fusion)
        grid = _about_grid(exact)
        if grid:
            lines.append(grid)
    lines += _about_compression(best, lossy)
    return lines


def _default_or_simplest_of_the_fastest(rows):
    """Of the rows that are about the fastest tfscale's default, else the first asked for."""
    fastest = min((row.step_seconds for row in rows), default=None)
    equal = [row for row in rows if row.step_seconds <= fastest * _SAME]
    return next((row for row in equal if row.method == _DEFAULT), equal[0] if equal else None)


def _about_exact(best, exact):
    text = (
        f"Without loss of precision {best.method} is the best choice: "
        f"{best.samples_per_second:,.0f} samples/s, {best.efficiency:.1%} of perfect scaling"
    )
    stock = next((row for row in exact if row.method == "stock"), None)
    if stock is not None and stock is not best:
        text += (
            f", {stock.step_seconds / best.step_seconds:.2f} times as fast as TensorFlow's default"
        )
    text += "."
    fastest = min(exact, key=lambda row: row.step_seconds)
    gain = best.step_seconds / fastest.step_seconds - 1
    if gain >= 0.0005:
        what = "tfscale's default" if best.method == _DEFAULT else "the simpler choice"
        text += (
            f" {fastest.method} is {gain:.1%} faster, which is within the model's error; "
            f"{best.method} is {what}."
        )
    return text


def _about_fusion(exact):
    fixed = next((row for row in exact if row.method == "2d"), None)
    adaptive = next((row for row in exact if row.method == "2d:bucket=adaptive"), None)
    if fixed is None or adaptive is None:
        return None
    gain = fixed.step_seconds / adaptive.step_seconds - 1
    if gain > _SAME - 1:
        return (
            f'Fusion: bucket_bytes="adaptive" ({adaptive.buckets} buckets) gains {gain:.0%} over '
            f"4 MiB ({fixed.buckets})."
        )
    return "Fusion: the default of 4 MiB is as good as adaptive buckets here."


def _about_grid(exact):
    grids = [row for row in exact if ":grid=" in row.method]
    rings = [row for row in exact if row.method.startswith("2d") and row not in grids]
    if not grids or not rings:
        return None
    grid = min(grids, key=lambda row: row.step_seconds)
    ring = min(rings, key=lambda row: row.step_seconds)
    gain = ring.step_seconds / grid.step_seconds - 1
    shape = re.search(r"grid=(\d+)x(\d+)", grid.method)
    if gain > _SAME - 1:
        return (
            f"Grid: worker_grid=({shape[1]}, {shape[2]}) gains {gain:.0%}: with so many workers "
            "the steps of one ring cost more than an extra round."
        )
    return "Grid: one ring of workers is as good as a grid of them here."


def _about_compression(best, lossy):
    if not lossy:
        return []
    if best is not None and best.efficiency > 1 - _WORTH / 2:
        return [
            "Compression: not needed. The backward pass hides almost all of the exchange, so it "
            "would cost accuracy for nothing."
        ]
    lines, reference = [], best
    for row in sorted(lossy, key=lambda row: _risk(row.compression)):
        if reference is not None and row.step_seconds * (1 + _WORTH) > reference.step_seconds:
            continue
        against = ""
        if reference is not None:
            gain = reference.step_seconds / row.step_seconds
            against = f", {gain:.2f} times as fast as {reference.method}"
        lines.append(
            f"Compression: {row.method} would reach {row.samples_per_second:,.0f} samples/s "
            f"({row.efficiency:.1%}){against}. {_CAVEATS[row.compression]}"
        )
        reference = row
    if not lines:
        lines.append(
            f"Compression: none of {', '.join(row.method for row in lossy)} is more than "
            f"{_WORTH:.0%} faster, which is within the model's error. Stay with float32."
        )
    return lines


def _risk(compression):
    return list(_CAVEATS).index(compression)
