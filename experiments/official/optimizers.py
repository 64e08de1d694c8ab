"""LARS of tfscale and of tf-models-official with the same settings, and the addons' LAMB."""

# What both leave out of decay and of layer adaptation. Theirs are searched for in a replica's own
# variable, whose name may end in "/replica_1:0": an expression that ends in ":0" would hit the
# first replica's only, and the replicas would drift apart.
NORM_AND_BIAS = ["bias", "gamma", "beta"]


def schedule(peak, settings):
    """Linear warm-up to `peak`, then a decay to 0 by a polynomial of power 2."""
    from tfscale import keras
    from tfscale.optimizers import schedules

    warmup = max(1, round(settings.warmup * settings.steps))
    decay = keras.optimizers.schedules.PolynomialDecay(
        peak, max(1, settings.steps - warmup), end_learning_rate=0.0, power=2.0
    )
    return schedules.LinearWarmup(decay, warmup, initial_learning_rate=peak / warmup)


def build(name, settings):
    """Returns the optimizer of an arm, new.

    ::

        tfscale             eta |w| / (|g| + wd |w|)
        official            eta |w| / |g + wd w|
        official-no-lists   the same, no variable excluded from decay or adaptation: its default
        official-popular    v = m v + g + wd w;  w = w - lr eta |w| / |v| v: the ratio is that of
                            the momentum ("popular" is its word; classic_momentum=False)
        lamb                tensorflow-addons' LAMB

    Args:
        name: `str`, one of the above.
        settings: `Settings`.
    """
    if name == "tfscale":
        return our_lars(schedule(settings.learning_rate, settings), settings)
    if name == "lamb":
        return lamb(schedule(settings.lamb_learning_rate, settings), settings)
    return their_lars(
        schedule(settings.learning_rate, settings),
        settings,
        lists=name != "official-no-lists",
        classic_momentum=name != "official-popular",
    )


def our_lars(learning_rate, settings, **kwargs):
    from tfscale.optimizers import LARS

    return LARS(
        learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        trust_coefficient=settings.trust_coefficient,
        **kwargs,
    )


def their_lars(learning_rate, settings, lists=True, **kwargs):
    from official.modeling.optimization import lars

    return lars.LARS(
        learning_rate,
        momentum=settings.momentum,
        weight_decay_rate=settings.weight_decay,
        eeta=settings.trust_coefficient,
        exclude_from_weight_decay=NORM_AND_BIAS if lists else None,
        **kwargs,
    )


def lamb(learning_rate, settings):
    from tfscale.interop import import_addons

    return import_addons().optimizers.LAMB(
        learning_rate,
        weight_decay=settings.weight_decay,
        exclude_from_weight_decay=NORM_AND_BIAS,
    )
