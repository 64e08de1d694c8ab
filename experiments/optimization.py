"""A run's model, loss and optimizer, with its learning rate and momentum as schedules of steps."""

import logging


def build_model(run, num_classes, image_size):
    """The network of a `RunConfig`; `image_size` None makes one for pictures of any size."""
    from tfscale import layers, models

    def norm(**kwargs):
        return layers.GroupedSyncBatchNormalization(
            group_size=run.norm_group_size, momentum=0.9, epsilon=1e-5, **kwargs
        )

    build = getattr(models.resnet, run.model)
    return build(
        input_shape=(image_size, image_size, 3),
        num_classes=num_classes,
        norm=norm,
        width=run.width,
        blur_pool=run.blur_pool,
    )


def build_optimizer(run, phases, steps_per_epoch, momentum=None):
    """The optimizer of a `RunConfig`.

    Args:
        run: `RunConfig`, of the replicas that it has (`scaling.for_replicas`).
        phases: list of `tfscale.progressive.Phase`.
        steps_per_epoch: list of `int`, one for each of them.
        momentum: `float`, or None for the run's.

    Returns:
        A Keras optimizer.
    """
    from tfscale import keras, optimizers

    rate = learning_rate(run, phases, steps_per_epoch)
    if momentum is None:
        momentum = momentum_schedule(run, phases, steps_per_epoch)
    averages = {} if run.ema is None else {"use_ema": True, "ema_momentum": run.ema}
    if run.optimizer == "sgd":
        # The velocity that a compressor keeps is plain.
        default = not run.compression_momentum
        sgd = keras.optimizers.SGD(
            rate,
            momentum=momentum,
            nesterov=default if run.nesterov is None else run.nesterov,
            weight_decay=run.weight_decay or None,
            **averages,
        )
        # Searched for in names such as "stage1_block1_bn1/gamma/replica_1:0".
        sgd.exclude_from_weight_decay(var_names=[r"(^|/)(bias|gamma|beta)\b"])
        return sgd
    return optimizers.LARS(
        rate,
        momentum=momentum,
        weight_decay=run.weight_decay,
        trust_coefficient=run.lars_trust_coefficient,
        trust_clip=run.lars_trust_clip,
        nesterov=bool(run.nesterov),
        momentum_form=run.lars_momentum_form,
        **averages,
    )


def learning_rate(run, phases, steps_per_epoch):
    """The learning rate by step: straight lines between knots, or warm-up and decay of power 2."""
    from tfscale import keras, optimizers
    from tfscale.progressive import schedule_steps, steps_at

    if run.learning_rate_values is not None:
        return _lines(run.learning_rate_epochs, run.learning_rate_values, phases, steps_per_epoch)
    peak = peak_rate(run)
    if run.warmup_epochs > run.epochs:
        logging.getLogger("tfscale").warning(
            "the warm-up of %g epochs is longer than the run of %d: the learning rate ends below "
            "its peak",
            run.warmup_epochs,
            run.epochs,
        )
        warmup = round(run.warmup_epochs * steps_per_epoch[-1])
    else:
        warmup = steps_at(phases, steps_per_epoch, run.warmup_epochs)
    end = peak * 1e-4 if run.end_learning_rate is None else run.end_learning_rate
    decay = keras.optimizers.schedules.PolynomialDecay(
        peak,
        max(1, schedule_steps(phases, steps_per_epoch)[-1] - warmup),
        end_learning_rate=end,
        power=2.0,
    )
    return optimizers.schedules.LinearWarmup(decay, warmup)


def peak_rate(run):
    """The learning rate after the warm-up, of a run without knots."""
    from tfscale import optimizers

    if run.peak_learning_rate is not None:
        return run.peak_learning_rate
    return optimizers.schedules.scale_learning_rate(run.base_learning_rate, run.global_batch_size)


def momentum_schedule(run, phases, steps_per_epoch):
    """The momentum: a `float`, or straight lines between knots."""
    if run.momentum_values is None:
        return run.momentum
    return _lines(run.momentum_epochs, run.momentum_values, phases, steps_per_epoch)


def _lines(epochs, values, phases, steps_per_epoch):
    from tfscale import optimizers
    from tfscale.progressive import steps_at

    steps = [steps_at(phases, steps_per_epoch, epoch) for epoch in epochs]
    # In a short run two knots may fall on one step; there the later one holds.
    knots = dict(zip(steps, values, strict=True))
    return optimizers.schedules.PiecewiseLinear(list(knots), list(knots.values()))


def sparse_loss(run, num_classes):
    """Cross-entropy of integer labels, with label smoothing."""
    import tensorflow as tf

    from tfscale import keras

    def smoothed_cross_entropy(labels, probabilities):
        one_hot = tf.one_hot(tf.cast(tf.reshape(labels, [-1]), tf.int32), num_classes)
        return keras.losses.categorical_crossentropy(
            one_hot, probabilities, label_smoothing=run.label_smoothing
        )

    return smoothed_cross_entropy
