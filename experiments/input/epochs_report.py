"""The table, the plot and the claims of `experiments.input.epochs`, from the rows of all epochs."""

import statistics
from pathlib import Path

from experiments.tables import aligned

# What should be reached: the second epoch against the first, decoded pictures against none kept.
WARM, DECODED = 10, 3
# Of an epoch; with fewer, what lies ready in the buffers is a large part of it.
ENOUGH_BATCHES = 10


def summaries(rows, bytes_per_second):
    """Returns one `dict` for each tier of each source, from the rows of all epochs.

    Args:
        rows: see `epochs_run.measure`.
        bytes_per_second: `int`, the link's, or None.
    """
    found = []
    for source, name in dict.fromkeys((row["source"], row["tier"]) for row in rows):
        here = [row for row in rows if (row["source"], row["tier"]) == (source, name)]
        first = [row for row in here if row["process"] == 1 and row["epoch"]]
        restart = next((row for row in here if row["process"] == 2 and row["epoch"]), None)
        cold, warm = first[0], first[1:]
        link = None
        if source == "slow" and bytes_per_second:
            link = cold["source_bytes"] / bytes_per_second / cold["seconds"]
        found.append(
            {
                "source": source,
                "tier": name,
                "batches": cold["images"] // cold["batch"],
                "open_seconds": here[0]["seconds"],
                "open_bytes": here[0]["source_bytes"],
                "cold_seconds": cold["seconds"],
                "cold_images_per_second": cold["images_per_second"],
                "second_seconds": warm[0]["seconds"],
                "times_faster": cold["seconds"] / warm[0]["seconds"],
                "warm_images_per_second": statistics.median(r["images_per_second"] for r in warm),
                "warm_images_per_cpu_second": statistics.median(
                    row["images"] / row["cpu_seconds"] for row in warm
                ),
                "restart_images_per_second": restart and _after_the_first_batch(restart),
                "cold_bytes": cold["source_bytes"],
                "second_bytes": warm[0]["source_bytes"],
                "restart_bytes": restart and restart["source_bytes"],
                "link_share": link,
            }
        )
    return found


def _after_the_first_batch(row):
    """Images per second without the start of the pipeline, of which a restart has much."""
    images = row["images"] - row["batch"]
    return images / (row["seconds"] - row["first_batch_seconds"]) if images else None


def table(found):
    """Returns the summaries as text for people."""
    headers = ["source, tier", "open", "epoch 1", "epoch 2", "x", "images/s", "restart", "CPU"]
    headers += ["MB 1", "MB 2", "MB r", "link"]
    lines = [headers]
    for row in found:
        slow = row["source"] == "slow"
        lines.append(
            [
                f"{row['source']}, {row['tier']}",
                f"{row['open_seconds']:.2f}",
                f"{row['cold_seconds']:.2f}",
                f"{row['second_seconds']:.2f}",
                f"{row['times_faster']:.1f}",
                f"{row['warm_images_per_second']:.0f}",
                _or_dash(row["restart_images_per_second"], ".0f"),
                f"{row['warm_images_per_cpu_second']:.0f}",
                *(
                    _or_dash(row[key] / 1e6 if slow and row[key] is not None else None, ".1f")
                    for key in ("cold_bytes", "second_bytes", "restart_bytes")
                ),
                _or_dash(row["link_share"], ".0%"),
            ]
        )
    return aligned(lines)


def _or_dash(value, form):
    return "-" if value is None else format(value, form)


def claims(found):
    """Returns what should be reached and was or was not, one line each, of the tiers measured."""
    found = {(row["source"], row["tier"]): row for row in found}
    lines = []
    if disk := found.get(("slow", "disk")):
        lines.append(
            _claim("disk, second epoch against the first", disk["times_faster"], WARM, disk)
        )
    plain, decoded = found.get(("local", "none")), found.get(("local", "decoded"))
    if plain and decoded:
        for what, key in (("s", "warm_images_per_second"), ("CPU s", "warm_images_per_cpu_second")):
            lines.append(
                _claim(
                    f"decoded against none, local, images/{what}",
                    decoded[key] / plain[key],
                    DECODED,
                    plain,
                )  # fmt: skip
            )
    return lines


def _claim(what, ratio, wanted, row):
    verdict = "reached" if ratio >= wanted else "MISSED"
    if row["batches"] < ENOUGH_BATCHES:
        verdict = f"{row['batches']} batches an epoch are too few to tell"
    return f"{what}: {ratio:.1f} x; at least {wanted} x wanted: {verdict}"


def plot(path, found, title):
    """Draws images/s of the cold epoch, the warm ones and the restart, for each tier."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.8 + 0.55 * len(found)), layout="constrained")
    axes = figure.add_subplot()
    kinds = (
        ("cold_images_per_second", "first epoch", "tab:blue"),
        ("warm_images_per_second", "later epochs", "tab:orange"),
        ("restart_images_per_second", "first epoch after a restart", "tab:green"),
    )
    for number, (key, label, color) in enumerate(kinds):
        values = [(place, row[key]) for place, row in enumerate(found) if row[key]]
        places = [place + 0.27 * (number - 1) for place, _ in values]
        heights = [value for _, value in values]
        axes.barh(places, heights, height=0.25, color=color, label=label)
        for place, value in zip(places, heights, strict=True):
            axes.annotate(f" {value:.0f}", (value, place), va="center", fontsize="small")
    axes.set_yticks(range(len(found)), [f"{row['source']}, {row['tier']}" for row in found])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.set_xlabel("images/s")
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.1), ncols=3)
    figure.suptitle(title, fontsize="medium")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
