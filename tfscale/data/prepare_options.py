"""The options of ``python -m tfscale.data.prepare``."""

import argparse

EPILOG = """
what makes training faster:
  --short_side=256 --quality=90 is enough for training at up to 224 pixels: a quarter of the bytes
  of ImageNet's originals (27 kB for 110 kB a picture) and about twice the pictures a second, as
  decoding is the limit.
  --format=bmp stores pixels: nothing is left to decode. For phases of low resolution, together
  with --short_side, from a fast disk or memory: 68 kB a picture at 128 pixels, 260 kB at 256.

example:
  python -m tfscale.data.prepare --source=photos --output=records --short_side=256 --quality=90
  with photos/CLASS/picture.jpg, or photos/train/CLASS/... and photos/validation/CLASS/...

Then: python -m tfscale.data.check records, and tfscale.data.train_dataset("records", ...).
A run that was stopped goes on where it was when it is started again.
"""


def parse(argv=None):
    """Returns the options as a `dict`, by the names of `prepare.prepare`'s arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m tfscale.data.prepare",
        description="Writes class-per-folder images as TFRecord shards with an index.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def option(name, help, **settings):  # noqa: A002
        parser.add_argument(f"--{name}", help=help, **settings)

    option(
        "source",
        "folder with one sub-folder a class, or with train/ and validation/ of such",
        required=True,
    )
    option("output", "folder for the records", required=True)
    option(
        "validation_fraction",
        "share of each class held out, where the source has no validation/ (default 0.1)",
        type=float,
        default=0.1,
    )
    option(
        "short_side",
        "reduce the short side to these pixels; smaller pictures stay (default: all stay)",
        type=int,
    )
    option(
        "quality",
        "of JPEGs that are made, 1 to 100; JPEGs that are not reduced stay byte for byte "
        "(default 95)",
        type=int,
        default=95,
    )
    option(
        "format",
        "bmp: decoded, three bytes a pixel (default jpeg)",
        choices=("jpeg", "bmp"),
        default="jpeg",
    )
    option(
        "keep_original",
        "write the files' own bytes too, to OUTPUT/original, in the same order",
        action="store_true",
    )
    option("num_shards", "default: shards of about 128 MB", type=int)
    option("seed", "of the split and the shuffle (default 0)", type=int, default=0)
    option(
        "on_error",
        "at a bad picture: raise, or skip: name and count it (default raise)",
        choices=("raise", "skip"),
        default="raise",
    )
    option("overwrite", "replace records of another source or other options", action="store_true")
    return vars(parser.parse_args(argv))
