"""The search for the learning rate, the same for both optimizers, and what follows elsewhere."""

import math


def grid(settings):
    """The rates of the first half of the trials: spread evenly over the logarithm of the range."""
    count = max(1, settings.trials // 2)
    ratio = settings.high / settings.low
    return [settings.low * ratio ** ((i + 0.5) / count) for i in range(count)]


def next_rate(tried, settings):
    """Returns the learning rate of the next trial.

    First those of `grid`, then what Optuna's TPE proposes from all that was tried. It depends on
    `tried` alone: a search that was interrupted goes on as it would have gone on.

    Args:
        tried: `list` of ``(learning rate, accuracy)``, in the order of the trials.
        settings: `Settings`.
    """
    first = grid(settings)
    if len(tried) < len(first):
        return first[len(tried)]
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    range_ = {
        "learning_rate": optuna.distributions.FloatDistribution(
            settings.low, settings.high, log=True
        )
    }
    sampler = optuna.samplers.TPESampler(n_startup_trials=len(first), seed=len(tried))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for rate, accuracy in tried:
        study.add_trial(
            optuna.trial.create_trial(
                params={"learning_rate": rate}, distributions=range_, value=accuracy
            )
        )
    return study.ask(range_).params["learning_rate"]


def tried_of(rows, arm):
    """Returns an arm's ``(learning rate, accuracy)`` of the search's rows, in order."""
    mine = sorted((r for r in rows if r["arm"] == arm), key=lambda r: r["trial"])
    return [(row["learning_rate"], row["accuracy"]) for row in mine]


def best(tried):
    """Returns the learning rate of the highest accuracy, the first of equals."""
    return max(tried, key=lambda trial: trial[1])[0]


def interpolated(tuned, batch):
    """Returns the learning rate of a batch between two at which it was tuned, or beyond.

    ::

        log rate = log rate_1 + (log rate_2 - log rate_1) log(batch / b_1) / log(b_2 / b_1)

    The linear scaling rule is the line of slope 1 in these coordinates.

    Args:
        tuned: `dict` of two batches to their rates.
        batch: `int`.

    Example:
        >>> round(interpolated({256: 0.1, 1024: 0.4}, 512), 6)
        0.2
    """
    (b1, r1), (b2, r2) = sorted(tuned.items())
    if batch in tuned:
        return tuned[batch]
    share = math.log(batch / b1) / math.log(b2 / b1)
    return r1 * (r2 / r1) ** share
