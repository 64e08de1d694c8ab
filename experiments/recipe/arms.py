"""The two recipes: what each run of them is, but for the learning rate, which is searched for."""

from experiments.progressive import flags, training

ARMS = ("plain", "recipe")


def run_of(args, arm, records, learning_rate, seed):
    """Returns the `training.Run` of an arm.

    Args:
        args: flags of the experiment.
        arm: "plain" or "recipe".
        records: `str`, folder with both splits.
        learning_rate: `float`, the highest.
        seed: `int`.

    Both have the same network, batch, weight decay, momentum and crops. They differ in:

    ==================  ==========================  =====================================
    what                plain                       recipe
    ==================  ==========================  =====================================
    pictures            the full size throughout    growing (Tan and Le, EfficientNetV2)
    learning rate       constant; a tenth from      up in a line in a fifth of the steps,
                        the half on, a hundredth    down in a line to 0 (Smith 2018)
                        from three quarters on
                        (He et al. 2015)
    momentum            plain                       Nesterov's
    labels              as they are                 smoothed, 0.1 (Szegedy et al. 2016)
    evaluated weights   the last ones               their moving average
    evaluation          the picture                 the picture and its mirror image
    epochs              more                        fewer
    ==================  ==========================  =====================================
    """
    shared = {"weight_decay": args.weight_decay, **flags.network(args)}
    if arm == "plain":
        epochs, sizes = (args.plain_epochs,), (args.image_sizes[-1],)
        own = {"schedule": "steps"}
    else:
        epochs, sizes = args.epochs, args.image_sizes
        own = {
            "schedule": "lines",
            "nesterov": True,
            "label_smoothing": 0.1,
            "ema": args.ema,
            "flip_eval": True,
            "blur_pool": args.blur_pool,
        }
    return training.Run(
        records,
        seed,
        epochs,
        sizes,
        args.image_sizes[-1],
        learning_rate,
        (args.min_crop_area,) * len(epochs),
        **shared,
        **own,
    )
