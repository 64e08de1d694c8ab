"""A picture of one training step: when gradients were ready and when their buckets travelled."""

from pathlib import Path


def plot(path, workers):
    """Draws the steps of all workers, one above the other.

    Args:
        path: picture file.
        workers: `list` with, for each worker, ``{"method": str, "step": [start, end], "layers":
            [[start, end], ...], "streams": int, "buckets": [{"bucket", "bytes", "ready", "start",
            "end"}]}``, in seconds since 1970, of the same step.
    """
    from matplotlib.figure import Figure

    origin = min(worker["step"][0] for worker in workers)
    count = max(len(worker["buckets"]) for worker in workers)
    height = 0.6 + len(workers) * (0.9 + 0.1 * count)
    figure = Figure(figsize=(11, height), layout="constrained")
    all_axes = figure.subplots(len(workers), 1, sharex=True, squeeze=False)[:, 0]
    for number, (axes, worker) in enumerate(zip(all_axes, workers, strict=True)):
        _draw(axes, worker, origin)
        axes.set_title(f"worker {number}: {describe(worker)}", fontsize=9)
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    all_axes[-1].set_xlabel("seconds of the step")
    figure.suptitle(f"{workers[0]['method']}: one training step, measured")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def describe(worker):
    """One line about a worker's step: how much of its exchange lies within the backward pass."""
    facts = overlap(worker)
    return (
        f"{facts['buckets']} buckets, up to {facts['in_flight']} in flight; backward "
        f"{facts['backward_seconds']:.2f} s, exchange {facts['exchange_seconds']:.2f} s, "
        f"{facts['overlapped_seconds']:.2f} s of it during backward"
    )


def overlap(worker):
    """Returns what the picture shows as numbers.

    Returns:
        `dict`: ``buckets``, their number; ``in_flight``, the most that travelled at one moment;
        ``backward_seconds``, from the first layer's beginning to the last one's end;
        ``exchange_seconds``, the time in which at least one bucket travelled;
        ``overlapped_seconds``, the part of it within the backward pass.
    """
    layers = worker["layers"]
    backward = (min((a for a, _ in layers), default=0), max((b for _, b in layers), default=0))
    travels = sent_spans(worker)
    events = sorted([(a, 1) for a, _ in travels] + [(b, -1) for _, b in travels])
    flying = most = 0
    exchange = overlapped = 0.0
    for (moment, change), (following, _) in zip(events, [*events[1:], (0, 0)], strict=True):
        flying += change
        most = max(most, flying)
        if flying:
            exchange += following - moment
            begin, end = max(moment, backward[0]), min(following, backward[1])
            overlapped += max(0.0, end - begin)
    return {
        "buckets": len(travels),
        "in_flight": most,
        "backward_seconds": backward[1] - backward[0],
        "exchange_seconds": exchange,
        "overlapped_seconds": overlapped,
    }


def sent_spans(worker):
    """Returns when each bucket was on its way between the workers.

    A stream sends its buckets one after another: a bucket is under way when it has been summed
    inside the worker and the one before it in its stream has arrived. Where a bucket does not say
    its ``"stream"``, it is the one with the fewest bytes so far, by which they are chosen.
    """
    free, loads, spans = {}, [0] * worker["streams"], []
    for bucket in worker["buckets"]:
        stream = bucket.get("stream", loads.index(min(loads)))
        loads[stream] += bucket["bytes"]
        start = max(bucket["start"], free.get(stream, 0.0))
        spans.append((min(start, bucket["end"]), bucket["end"]))
        free[stream] = bucket["end"]
    return spans


def _draw(axes, worker, origin):
    layers = [(start - origin, end - start) for start, end in worker["layers"]]
    axes.broken_barh(
        layers, (-2.4, 1.6), color="tab:gray", edgecolor="white", label="backward of layers"
    )
    for place, (bucket, (sent, end)) in enumerate(
        zip(worker["buckets"], sent_spans(worker), strict=True)
    ):
        ready, start = bucket["ready"], bucket["start"]
        for begin, until, color, label in (
            (ready, start, "tab:orange", "summed inside the worker"),
            (start, sent, "lightgray", "waits for its stream"),
            (sent, end, "tab:blue", "between the workers"),
        ):
            axes.barh(
                place,
                until - begin,
                left=begin - origin,
                color=color,
                label="" if place else label,
            )
    axes.axvline(worker["step"][1] - origin, color="tab:red", linewidth=1, label="end of the step")
    axes.set_ylabel("bucket")
    axes.set_ylim(len(worker["buckets"]) - 0.4, -2.8)
    count = len(worker["buckets"])
    axes.set_yticks(range(0, count, max(1, count // 8)))
