"""Rows of the benchmark: from the workers' samples, to a table and a plot."""

import statistics
from pathlib import Path

from experiments.rates import format_bytes
from experiments.tables import aligned, megabytes

# Float32 methods sum the same numbers in another order.
_SAME_SUM = 1e-3
# A worker sends at least this for a million float32 parameters, in whichever exact exchange.
_SMALL_PAYLOAD = 4e6

COLUMNS = (
    "method",
    "seconds_median",
    "seconds_min",
    "seconds_max",
    "bytes_per_link",
    "link_share",
    "cpu_seconds",
)

# What a row of stock or 2d says besides; the cost model reads it.
FACTS = (
    "payload_bytes",
    "bytes_per_pack",
    "bucket_bytes",
    "streams",
    "buckets",
    "notes",
    "compute_seconds",
    "forward_share",
)


def rows_of(reports, payload_bytes_per_second):
    """Returns a row for each method from what each worker has reported.

    An all-reduce has ended when the slowest worker has its result. Bytes are those of the worker
    that sent most, CPU seconds the mean over the workers; both the median of the repeats.

    Args:
        reports: `list` of the workers' reports: ``{"samples": {method: [sample]}, "facts":
            {method: {"payload_bytes": ..., ...}}}``.
        payload_bytes_per_second: `float`, what iperf3 got through one link, or None.

    Raises:
        ValueError: if methods that send float32 do not agree on the sums.
    """
    _check_sums(reports[0]["facts"])
    rows = []
    for method, facts in reports[0]["facts"].items():
        repeats = list(zip(*(report["samples"][method] for report in reports), strict=True))
        slowest = [max(sample["seconds"] for sample in repeat) for repeat in repeats]
        row = dict.fromkeys(COLUMNS)
        row |= {
            "method": method,
            "seconds_median": statistics.median(slowest),
            "seconds_min": min(slowest),
            "seconds_max": max(slowest),
            "bytes_per_link": statistics.median(
                max(sample["sent"] for sample in repeat) for repeat in repeats
            ),
            "cpu_seconds": statistics.median(
                statistics.mean(sample["cpu_seconds"] for sample in repeat) for repeat in repeats
            ),
        }
        if payload_bytes_per_second and facts.get("payload_bytes"):
            bound = facts["payload_bytes"] / payload_bytes_per_second
            row["link_share"] = bound / row["seconds_median"]
        row |= {name: facts[name] for name in FACTS if name in facts}
        if facts.get("samples_per_step"):
            row["samples_per_second"] = facts["samples_per_step"] / row["seconds_median"]
        rows.append(row)
    return rows


def table(rows):
    """Returns the rows as text for people, with ratios to stock."""
    train = any(row.get("samples_per_second") for row in rows)
    stock = next((row for row in rows if row["method"] == "stock"), None)
    all_stock = [row for row in rows if row["method"].startswith("stock")]
    best = min(all_stock, key=_seconds, default=None)
    headers = ["method", "seconds", "min", "max"]
    if train:
        headers.append("samples/s")
    if stock:
        headers.append("x stock")
    if best and len(all_stock) > 1:
        headers.append("x best stock")
    headers += ["MB per link", "link share", "CPU s"]
    lines = [headers]
    for row in rows:
        line = [_label(row), *(f"{row[f'seconds_{k}']:.3f}" for k in ("median", "min", "max"))]
        if train:
            line.append(_number(row.get("samples_per_second"), ".1f"))
        for base, name in ((stock, "x stock"), (best, "x best stock")):
            if name in headers:
                line.append(f"{_seconds(base) / _seconds(row):.2f}")
        sent = row["bytes_per_link"]
        line.append("-" if sent is None else megabytes(sent))
        line.append(_number(row["link_share"], ".1%"))
        line.append(_number(row["cpu_seconds"], ".2f"))
        lines.append(line)
    text = aligned(lines)
    if _is_small(rows):
        text += (
            "\nless than 1 M parameters: bound by latency and CPU; these times say nothing about "
            "compression"
        )
    return text


def plot(path, rows, title):
    """Draws the rows' times, with their spread, into a picture file.

    Raises:
        ImportError: without matplotlib; `outputs.check_matplotlib` asks before hours of measuring.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.6 + 0.4 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    places = range(len(rows))
    medians = [row["seconds_median"] for row in rows]
    spread = [
        [row["seconds_median"] - row["seconds_min"] for row in rows],
        [row["seconds_max"] - row["seconds_median"] for row in rows],
    ]
    axes.barh(places, medians, xerr=spread, capsize=3, color="tab:blue", ecolor="black")
    bounds = [row["seconds_median"] * (row["link_share"] or 0) for row in rows]
    if any(bounds):
        axes.barh(places, bounds, color="tab:orange", height=0.3, label="the link's bound")
        axes.legend(loc="lower right")
    axes.set_yticks(places, [_label(row) for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("seconds (median; min and max)")
    axes.set_title(title)
    for place, row in zip(places, rows, strict=True):
        axes.annotate(
            f" {row['seconds_median']:.3g}",
            (row["seconds_max"], place),
            verticalalignment="center",
        )
    axes.margins(x=0.12)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _is_small(rows):
    """Whether an uncompressed exchange sends less than the least for a million parameters."""
    exact = [row.get("payload_bytes") for row in rows if "+" not in row["method"]]
    return any(size and size < _SMALL_PAYLOAD for size in exact)


def _check_sums(facts):
    exact = {
        method: fact["checksum"]
        for method, fact in facts.items()
        if fact.get("checksum") is not None and not fact.get("lossy")
    }
    for method, checksum in exact.items():
        first, expected = next(iter(exact.items()))
        if abs(checksum - expected) > _SAME_SUM * max(1.0, abs(expected)):
            raise ValueError(
                f"{method} and {first} do not agree on the sums: {checksum} and {expected}. One "
                "of them is wrong, so its time means nothing"
            )


def _label(row):
    if not row["method"].endswith("pack=best"):
        return row["method"]
    pack = row["bytes_per_pack"]
    return f"{row['method']} ({format_bytes(pack) if pack else 'one pack'})"


def _seconds(row):
    return row["seconds_median"]


def _number(value, form):
    return "-" if value is None else format(value, form)
