"""What came out: tables, the answer in one line, and a plot."""

from experiments import paired
from experiments.large_batch.search import best, tried_of
from experiments.large_batch.settings import OPTIMIZERS, arm
from experiments.tables import aligned

# What the question asks for, in accuracy.
HELD, LOST = 0.01, 0.02


def search_table(rows):
    """Returns, of each search, the best learning rate and what the others gave, as text."""
    lines = [["search", "trials", "best rate", "accuracy (validation)", "all, by rate"]]
    for name in dict.fromkeys(row["arm"] for row in rows):
        tried = tried_of(rows, name)
        curve = "  ".join(f"{rate:.3g}: {accuracy:.3f}" for rate, accuracy in sorted(tried))
        rate = best(tried)
        lines.append([name, str(len(tried)), f"{rate:.3g}", f"{dict(tried)[rate]:.4f}", curve])
    return aligned(lines)


def curves(rows):
    """Returns a `dict` for each optimizer and batch, in their order.

    Each has ``optimizer``, ``batch``, ``steps``, ``learning_rate``, ``accuracy`` and
    ``training_accuracy`` (means over seeds), ``low`` and ``high`` (of the accuracy's mean),
    ``lost``: `paired.differences` from the optimizer's smallest batch, None of that batch itself.
    """
    points = []
    for optimizer in OPTIMIZERS:
        mine = [row for row in rows if row["optimizer"] == optimizer]
        batches = sorted({row["batch"] for row in mine})
        for batch in batches:
            own = [row for row in mine if row["batch"] == batch]
            mean, low, high = paired.interval([row["accuracy"] for row in own])
            lost = None
            if batch != batches[0]:
                lost = paired.differences_if_paired(
                    rows, arm(optimizer, batch), arm(optimizer, batches[0])
                )
            training = [row["training_accuracy"] for row in own]
            points.append(
                {
                    "optimizer": optimizer,
                    "batch": batch,
                    "steps": own[0]["steps"],
                    "learning_rate": own[0]["learning_rate"],
                    "accuracy": mean,
                    "low": low,
                    "high": high,
                    "training_accuracy": sum(training) / len(training),
                    "lost": lost,
                    "seeds": len(own),
                }
            )
    return points


def table(rows):
    """Returns the final runs as text for people."""
    points = {(p["optimizer"], p["batch"]): p for p in curves(rows)}
    lines = [["batch", "steps"]]
    lines[0] += [f"{o}: {x}" for o in OPTIMIZERS for x in ("rate", "accuracy", "from smallest")]
    lines[0] += ["lars - sgd, 95 % interval", "seeds"]
    for batch in sorted({batch for _, batch in points}):
        cells = []
        for optimizer in OPTIMIZERS:
            point = points.get((optimizer, batch))
            if point is None:
                cells += ["-"] * 3
                continue
            lost = "-" if point["lost"] is None else paired.shown(*point["lost"][:3])
            cells += [f"{point['learning_rate']:.3g}", f"{point['accuracy']:.4f}", lost]
        apart = paired.differences_if_paired(rows, arm("lars", batch), arm("sgd", batch))
        tail = ["-", "-"] if apart is None else [paired.shown(*apart[:3]), str(apart[3])]
        steps = next(p["steps"] for (_, b), p in points.items() if b == batch)
        lines.append([str(batch), str(steps), *cells, *tail])
    return aligned(lines)


def verdict(rows):
    """The answer: is there a batch at which LARS has lost little and SGD much?"""
    lost = {(p["optimizer"], p["batch"]): p["lost"][0] for p in curves(rows) if p["lost"]}
    found = [
        batch
        for (optimizer, batch), mean in lost.items()
        if optimizer == "lars" and mean > -HELD and lost.get(("sgd", batch), 0) <= -LOST
    ]
    asked = (
        f"lars within {100 * HELD:g} point of its accuracy at the smallest batch where sgd has "
        f"lost {100 * LOST:g} or more"
    )
    if found:
        return f"{asked}: yes, at batch {', '.join(map(str, found))}"
    held = {
        optimizer: max((b for (o, b), m in lost.items() if o == optimizer and m > -HELD), default=0)
        for optimizer in OPTIMIZERS
    }
    ends = ", ".join(f"{o} holds to {b or 'none of the larger batches'}" for o, b in held.items())
    return f"{asked}: at none of these batches; within {100 * HELD:g} point {ends}"


def plot(rows, path):
    """Draws accuracy over the batch, with 95 % intervals."""
    names = {"sgd": "SGD + momentum", "lars": "LARS"}
    lines = {
        names[optimizer]: [
            (p["batch"], p["accuracy"], p["high"])
            for p in curves(rows)
            if p["optimizer"] == optimizer
        ]
        for optimizer in dict.fromkeys(row["optimizer"] for row in rows)
    }
    paired.plot_lines(lines, path, "batch, equal epochs")
