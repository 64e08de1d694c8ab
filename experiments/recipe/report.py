"""What came out: the search, and the time to the plain recipe's final accuracy."""

import statistics

from experiments import ratios
from experiments.tables import aligned

WANTED = 2.5  # times sooner


def search_table(rows):
    """Returns what the search found, as text."""
    lines = [["search", "trials", "best rate", "accuracy, all by rate"]]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        tried = sorted((r["learning_rate"], r["accuracy"]) for r in rows if r["arm"] == arm)
        curve = "  ".join(f"{rate:g}: {accuracy:.4f}" for rate, accuracy in tried)
        lines.append([arm, str(len(tried)), f"{best(rows, arm):g}", curve])
    return aligned(lines)


def best(rows, arm):
    """Returns an arm's learning rate of the highest accuracy, the lower of equals."""
    mine = [row for row in rows if row["arm"] == arm]
    return min(mine, key=lambda row: (-row["accuracy"], row["learning_rate"]))["learning_rate"]


def target(rows):
    """The plain recipe's final accuracy: the mean over its seeds."""
    return statistics.fmean(row["accuracy"] for row in rows if row["arm"] == "plain")


def reached(row, accuracy):
    """Returns the training time of the first epoch with at least this accuracy; None if none."""
    return next((p["seconds"] for p in row["curve"] if p["accuracy"] >= accuracy), None)


def speedups(rows):
    """Returns how many times sooner the recipe has the plain one's final accuracy.

    Returns:
        `dict` of ``"whole run"`` (the plain recipe's time is that of its run) and ``"first
        reached"`` (that of its first epoch with that accuracy): `ratios.ratio`, plain by recipe, of
        the same seeds; None if no seed has both.
    """
    wanted = target(rows)
    found = {}
    for name in ("whole run", "first reached"):
        times = []
        for row in rows:
            seconds = reached(row, wanted)
            if row["arm"] == "plain" and name == "whole run":
                seconds = row["training_seconds"]
            if seconds is not None:
                times.append({"arm": row["arm"], "seed": row["seed"], "seconds": seconds})
        try:
            found[name] = ratios.ratio(times, "plain", "recipe", "seconds")
        except ValueError:
            found[name] = None
    return found


def table(rows):
    """Returns when the runs had the target, as text."""
    wanted = target(rows)
    lines = [["arm", f"accuracy {wanted:.4f} after (each seed)", "training time", "epochs"]]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        times = [reached(row, wanted) for row in own]
        lines.append(
            [
                arm,
                ", ".join("never" if t is None else f"{t:.0f} s" for t in times),
                f"{statistics.fmean(row['training_seconds'] for row in own):.0f} s",
                str(len(own[0]["curve"])),
            ]
        )
    return aligned(lines)


def verdict(rows):
    """The answer, in a line or two."""
    wanted = target(rows)
    own = [row for row in rows if row["arm"] == "recipe"]
    there = sum(reached(row, wanted) is not None for row in own)
    asked = f"the plain recipe's final accuracy ({wanted:.4f}) {WANTED:g} times sooner"
    if there < len(own):
        return f"{asked}: no: {there} of {len(own)} seeds of the recipe have it at all"
    found = speedups(rows)
    times, low, high, n = found["whole run"]
    parts = [
        f"{asked}: {'yes' if times >= WANTED else 'no'}: {ratios.shown(times, low, high)} times "
        f"sooner than the plain run ends, {n} seeds"
    ]
    if found["first reached"]:
        times, low, high, n = found["first reached"]
        parts.append(
            f"{ratios.shown(times, low, high)} times sooner than its first epoch with that "
            f"accuracy, {n} seeds"
        )
    return "; ".join(parts)
