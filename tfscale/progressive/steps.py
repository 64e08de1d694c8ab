"""Epochs of a run in phases as its steps: knots of schedules, and the plan of a run."""

import bisect
import itertools
import operator

from tfscale.progressive.phases import numbered


def schedule_steps(phases, steps_per_epoch):
    """Returns the global step with which each phase begins, and the number of all steps.

        begin[k + 1] = begin[k] + epochs[k] * steps_per_epoch[k]

    Args:
        phases: list of `Phase`.
        steps_per_epoch: list of `int`, global batches of an epoch in each of them.

    Returns:
        `list` of ``len(phases) + 1`` `int`.

    Raises:
        ValueError: if the lists have different lengths, steps are no whole numbers, or a phase's
            epoch has no step.

    Example:
        >>> schedule_steps([Phase(13, 96, 32768), Phase(1, 128, 16384)], [39, 78])
        [0, 507, 585]
    """
    if len(phases) != len(steps_per_epoch):
        raise ValueError(
            f"{len(phases)} phases, but steps_per_epoch={list(steps_per_epoch)} has "
            f"{len(steps_per_epoch)} numbers: one for each phase"
        )
    for number in steps_per_epoch:
        try:
            operator.index(number)
        except TypeError:
            raise ValueError(
                f"steps_per_epoch={list(steps_per_epoch)}: {number!r} is no whole number (int); "
                "records // global_batch_size is one"
            ) from None
    if min(steps_per_epoch, default=1) < 1:
        raise ValueError(
            f"steps_per_epoch={list(steps_per_epoch)}: an epoch has at least one step; is a "
            "global batch larger than the data?"
        )
    steps = [p.epochs * n for p, n in zip(phases, steps_per_epoch, strict=True)]
    return list(itertools.accumulate(steps, initial=0))


def steps_at(phases, steps_per_epoch, epoch):
    """Returns the global step at an epoch of the whole run, to the nearest step.

        steps_at(e) = begin[k] + (e - epochs before k) * steps_per_epoch[k],   k the phase of e

    For schedules whose knots are given in epochs: a step is worth more of an epoch where the
    batch is larger.

    Args:
        phases, steps_per_epoch: see `schedule_steps`.
        epoch: `float`, epochs since the beginning of the run; up to their number.

    Returns:
        `int`.

    Raises:
        ValueError: as `schedule_steps`, and for an epoch outside of the run, or that is no number.

    Example:
        >>> phases = [Phase(2, 96, 512), Phase(2, 128, 256)]
        >>> [steps_at(phases, [10, 20], epoch) for epoch in (0, 1.5, 2, 2.5, 4)]
        [0, 15, 20, 30, 60]
    """
    begins = schedule_steps(phases, steps_per_epoch)
    epochs = list(itertools.accumulate((phase.epochs for phase in phases), initial=0))
    try:
        is_inside = 0 <= epoch <= epochs[-1]
    except TypeError:
        raise ValueError(f"epoch={epoch!r} is no number of epochs") from None
    if not is_inside:
        raise ValueError(f"epoch={epoch} is outside of the run, which has {epochs[-1]} epochs")
    number = min(bisect.bisect_right(epochs, epoch), len(phases)) - 1
    return round(begins[number] + (epoch - epochs[number]) * steps_per_epoch[number])


def plan(phases, steps_per_epoch, schedule=None, momentum=None):
    """Returns what a run does, a row for each phase.

    Args:
        phases, steps_per_epoch: see `schedule_steps`.
        schedule: `keras.optimizers.schedules.LearningRateSchedule`, or a `float`; None leaves the
            rates out.
        momentum: the same of the momentum.

    Returns:
        `list` of `dict` that JSON can hold: ``phase``, ``first_epoch``, ``last_epoch`` (all from
        1), ``epochs``, ``image_size``, ``global_batch_size``, ``steps_per_epoch``, ``steps``,
        ``first_step`` (from 0), ``compression`` (its name), ``options``; and
        ``first_learning_rate``, ``last_learning_rate``, ``first_momentum``, ``last_momentum``, of
        the phase's first and last step, where given.

    Raises:
        ValueError: as `schedule_steps`, and for an unknown compression.

    Example:
        >>> print(plan_table(plan([Phase(2, 96, 512), Phase(1, 128, 256)], [10, 20], 0.5)))
        phase  epochs  pixels  batch  steps/epoch  steps  compression  learning rate
            1     1-2      96    512           10     20  none         0.5 -> 0.5
            2     3-3     128    256           20     20  none         0.5 -> 0.5
        3 epochs, 40 steps
    """
    phases = numbered(phases)
    begins = schedule_steps(phases, steps_per_epoch)
    names = compression_names(phases)
    rows, epoch = [], 0
    for phase, per_epoch, begin, end in zip(
        phases, steps_per_epoch, begins[:-1], begins[1:], strict=True
    ):
        row = {
            "phase": phase.number + 1,
            "first_epoch": epoch + 1,
            "last_epoch": epoch + phase.epochs,
            **phase.description(),
            "steps_per_epoch": per_epoch,
            "steps": end - begin,
            "first_step": begin,
            "compression": names[phase.number],
        }
        for name, values in (("learning_rate", schedule), ("momentum", momentum)):
            if values is not None:
                row[f"first_{name}"] = _value(values, begin)
                row[f"last_{name}"] = _value(values, end - 1)
        epoch += phase.epochs
        rows.append(row)
    return rows


def plan_table(rows):
    """Returns the rows of `plan` as text, and a last line with the sums.

    Args:
        rows: what `plan` returned.

    Returns:
        `str`.

    Raises:
        ValueError: if there are none.

    Example:
        >>> print(plan_table(plan(phases, steps_per_epoch, schedule)))
    """
    if not rows:
        raise ValueError("the plan has no rows: give what `plan` returned")
    columns = {
        "phase": [str(row["phase"]) for row in rows],
        "epochs": [f"{row['first_epoch']}-{row['last_epoch']}" for row in rows],
        "pixels": [str(row["image_size"]) for row in rows],
        "batch": [str(row["global_batch_size"]) for row in rows],
        "steps/epoch": [str(row["steps_per_epoch"]) for row in rows],
        "steps": [str(row["steps"]) for row in rows],
        "compression": [row["compression"] for row in rows],
    }
    for name in ("learning_rate", "momentum"):
        if f"first_{name}" in rows[0]:
            columns[name.replace("_", " ")] = [
                f"{row[f'first_{name}']:.4g} -> {row[f'last_{name}']:.4g}" for row in rows
            ]
    if any(row["options"] for row in rows):
        columns["options"] = [
            ", ".join(f"{key}={value}" for key, value in row["options"].items()) for row in rows
        ]
    lines = list(zip(*([head, *cells] for head, cells in columns.items()), strict=True))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    # Numbers to the right, text to the left.
    numbers = list(columns).index("compression")
    texts = [
        "  ".join(
            cell.rjust(width) if i < numbers else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    epochs, steps = (sum(row[name] for row in rows) for name in ("epochs", "steps"))
    return "\n".join([*texts, f"{epochs} epochs, {steps} steps"])


def compression_names(phases):
    """Returns the name of each phase's compression; raises ValueError for an unknown one."""
    from tfscale.distribute.compression.choice import compressor

    names = []
    for phase in phases:
        try:
            names.append(compressor(phase.compression).name)
        except ValueError as error:
            raise ValueError(f"phase {phase.number + 1}: {error}") from error
    return names


def _value(values, step):
    return float(values(step) if callable(values) else values)
