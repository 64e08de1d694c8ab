"""Flags that the experiments on photographs have in common, and what follows from them."""

import argparse

from experiments import flag_ranges, imagenette

# Kind, default and meaning of those that some of them have.
_SOME = {
    "image_size": (flag_ranges.COUNT, 32, "pixels"),
    "epochs": (flag_ranges.COUNT, 12, "of each run"),
    "seeds": (flag_ranges.COUNT, 5, "runs of each arm"),
    "learning_rate": (flag_ranges.POSITIVE, 0.2, "the highest"),
    "weight_decay": (flag_ranges.NOT_NEGATIVE, 5e-4, "of kernels"),
    "min_crop_area": (flag_ranges.SHARE_ABOVE_0, 0.35, "smallest share of a picture in a crop"),
}


def parser_of(name, description, results):
    """Returns an `argparse` parser with the flags of all of them.

    Args:
        name: `str`, of the experiment.
        description: `str`.
        results: `Path`, default of ``--results``.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.{name}.run",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    imagenette.add_flags(parser)
    add(
        "--batch",
        type=flag_ranges.COUNT,
        default=128,
        help="pictures of a step (default: %(default)s)",
    )
    add("--stem", choices=("small", "imagenet"), default="imagenet", help="(default: %(default)s)")
    add(
        "--widths",
        type=flag_ranges.listed(flag_ranges.COUNT, may_repeat=True),
        default="32,64,128",
        help="filters of the network's stages, list with commas (default: %(default)s)",
    )
    add("--results", default=str(results), help="folder, read and added to (default: %(default)s)")
    return parser


def add(parser, *names):
    """Adds flags that not all of the experiments have, by their names."""
    for name in names:
        kind, default, text = _SOME[name]
        parser.add_argument(
            f"--{name}", type=kind, default=default, help=f"{text} (default: %(default)s)"
        )


def phases(parser, name, text):
    """Returns epochs and image sizes of phases such as ``"32:10,48:6,64:4"``."""
    try:
        pairs = [tuple(map(int, part.split(":"))) for part in text.split(",")]
        sizes, epochs = zip(*pairs, strict=True)
    except ValueError:
        parser.error(f"--{name}={text}: expected PIXELS:EPOCHS with commas between the phases")
    if min(*sizes, *epochs) <= 0:
        parser.error(f"--{name}={text}: expected numbers above 0")
    return epochs, sizes


def network(args):
    """Returns the arguments of a `training.Run` that say what the network and the step are."""
    return {
        "batch": args.batch,
        "widths": args.widths,
        "depths": (1,) * len(args.widths),
        "stem": args.stem,
    }
