"""The pictures of the simulator; matplotlib is imported when one is drawn."""

from pathlib import Path

from experiments.simulate import light
from experiments.simulate.validation import TOLERANCE


def draw_outcomes(path, rows, title):
    """Draws each method's step: computation and what of the exchange it does not hide."""
    figure, axes = _figure(8, 1.6 + 0.4 * len(rows))
    places = range(len(rows))
    compute = [row.step_seconds - row.exposed_seconds for row in rows]
    axes.barh(places, compute, color="tab:blue", label="computation")
    axes.barh(
        places,
        [row.exposed_seconds for row in rows],
        left=compute,
        color="tab:orange",
        label="exchange, not hidden",
    )
    axes.set_yticks(places, [row.method for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("seconds per step (predicted)")
    for place, row in zip(places, rows, strict=True):
        axes.annotate(f" {row.efficiency:.0%}", (row.step_seconds, place), va="center")
    axes.margins(x=0.12)
    axes.legend(loc="lower right")
    figure.suptitle(title, fontsize="medium", wrap=True)
    _save(figure, path)


def draw_curve(path, points, title):
    """Draws the hops and the times of 1-D and 2-D summation over the number of replicas."""
    figure, (hops, times) = _figure(9, 4, columns=2)
    replicas = [p.replicas for p in points]
    hops.loglog(replicas, [p.hops_1d for p in points], "o-", label="1-D ring: 2 (n² - 1)")
    hops.loglog(replicas, [p.hops_2d for p in points], "s-", label="2-D: 4 (n - 1)")
    hops.set_ylabel("messages that follow one another")
    times.loglog(replicas, [p.seconds_1d for p in points], "o-", label="1-D ring")
    times.loglog(replicas, [p.seconds_2d for p in points], "s-", label="2-D")
    times.set_ylabel("seconds per exchange (predicted)")
    for axes in (hops, times):
        axes.set_xlabel("replicas, n x n")
        axes.grid(True, which="both", alpha=0.3)
        axes.legend()
    figure.suptitle(title)
    _save(figure, path)


def draw_comparison(path, rows, verb):
    """Draws predicted over measured times of `validation.Compared` with the tolerated band."""
    figure, axes = _figure(6.5, 6)
    measured = [row.measured_seconds for row in rows]
    ends = [min(measured) / 1.3, max(measured) * 1.3]
    axes.loglog(ends, ends, color="black", linewidth=0.8, label="predicted = measured")
    axes.fill_between(
        ends,
        [end * (1 - TOLERANCE) for end in ends],
        [end * (1 + TOLERANCE) for end in ends],
        color="tab:green",
        alpha=0.2,
        label=f"within {TOLERANCE:.0%}",
    )
    for kind in dict.fromkeys(row.kind for row in rows):
        own = [row for row in rows if row.kind == kind]
        axes.plot(
            [row.measured_seconds for row in own],
            [row.predicted_seconds for row in own],
            "o",
            label=kind,
        )
    axes.set_xlabel("measured seconds")
    axes.set_ylabel(f"{verb.lower()} seconds")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend(fontsize="small")
    within = sum(row.within for row in rows)
    axes.set_title(f"{verb}: {within} of {len(rows)} within {TOLERANCE:.0%}")
    _save(figure, path)


def draw_light(path):
    """Draws the four quoted rows beside the redrawn ones, with the label across the picture."""
    drawn, _, _ = light.redraw()
    figure, axes = _figure(7, 4.5)
    places = list(range(len(light.ROWS)))
    axes.bar([p - 0.2 for p in places], [r.quoted for r in light.ROWS], 0.4, label="quoted")
    axes.bar([p + 0.2 for p in places], drawn, 0.4, label="drawn, two constants fitted to these")
    axes.set_xticks(places, [f"{r.pixels} px\n{r.compression}" for r in light.ROWS])
    axes.set_ylabel("images/s on 128 GPUs")
    axes.legend()
    axes.set_title(f"Light, 16 x 8 GPUs, 25 Gbit/s: {light.LABEL}")
    axes.text(
        0.5,
        0.6,
        light.LABEL,
        transform=axes.transAxes,
        ha="center",
        fontsize=22,
        color="red",
        alpha=0.35,
        rotation=15,
    )
    _save(figure, path)


def _figure(width, height, columns=1):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns)


def _save(figure, path):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
