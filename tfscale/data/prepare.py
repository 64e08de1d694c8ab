"""Image folders to TFRecord shards with an index.

    python -m tfscale.data.prepare --source=IMAGES --output=RECORDS

Shards are written one by one and renamed when complete; a run that was stopped goes on where it
was. The same source and options give the same bytes; pictures are compared by their content, so
that a copied source is the same one, and one in which a picture was replaced is another.
"""

import argparse
import concurrent.futures
import hashlib
import json
import logging
import sys
import time

import numpy as np

logger = logging.getLogger("tfscale")

SHARD_BYTES = 128 << 20


def prepare(
    source,
    output,
    *,
    validation_fraction=0.1,
    image_size=None,
    quality=95,
    num_shards=None,
    seed=0,
    on_error="raise",
    overwrite=False,
):
    """Writes the pictures of a class-per-folder directory as TFRecord shards, shuffled.

    JPEGs are kept byte for byte unless they are resized or are CMYK; PNG, GIF (first frame),
    BMP and WebP become JPEGs. Every picture is decoded once, so that a bad one is found here.

    Args:
        source: `str`, see `sources.find`.
        output: `str`, a folder; made if need be.
        validation_fraction: share of each class held out, unless the source has a folder for
            it. Defaults to 0.1.
        image_size: `int`, pixels that the short side is reduced to; None keeps it.
        quality: `int`, of the JPEGs that are made, 1 to 100. Defaults to 95.
        num_shards: `int`; None makes shards of about 128 MB.
        seed: `int`, of the split and of the shuffle. Defaults to 0.
        on_error: "raise", or "skip": name and count bad pictures and go on.
        overwrite: `bool`, replace records of another source or other options.

    Returns:
        `dict` of split to `index.RecordIndex`.

    Raises:
        ValueError: for a bad picture, a source without classes or pictures, an output that
            was made from something else, or an argument out of its range.
        OSError: if the output cannot be written, such as on a full disk.

    Example:
        ```python
        prepare("photos", "records", image_size=256)
        dataset = tfscale.data.train_dataset("records", 256, 224)
        ```
    """
    from tfscale.data import arguments, sources, writing

    quality, num_shards, seed = _check(quality, num_shards, seed)
    if image_size is not None:
        image_size = arguments.integer("image_size", image_size, 1)
    arguments.choice("on_error", on_error, ("raise", "skip"))
    splits, class_names = sources.find(source, validation_fraction, seed, on_error)
    options = {"image_size": image_size, "quality": quality, "seed": seed}
    written = {}
    for split, pictures in splits.items():
        digests, total = _digests(split, pictures, on_error)
        listing = [[p.name, p.label, digest] for p, digest in zip(pictures, digests, strict=True)]
        order = np.random.RandomState(seed).permutation(len(pictures))
        shuffled = [pictures[i] for i in order]
        written[split] = writing.write_split(
            output,
            split,
            shuffled,
            lambda picture: writing.from_file(picture, class_names, image_size, quality),
            class_names,
            num_shards or max(1, -(-total // SHARD_BYTES)),
            {**options, "source": _digest([listing, class_names])},
            on_error,
            overwrite,
        )
    return written


def prepare_arrays(
    examples, output, split, class_names, *, quality=95, num_shards=1, seed=0, overwrite=False
):
    """Writes pictures that are in memory as TFRecord shards, shuffled.

    Args:
        examples: iterable of (image, label): uint8 array [height, width], [height, width, 1]
            or [height, width, 3]; `int` from 0.
        output, split: `str`: folder, and the split's name.
        class_names: sequence of `str`, by label.
        quality, num_shards, seed, overwrite: see `prepare`. One shard by default.

    Returns:
        `index.RecordIndex`.

    Raises:
        ValueError: if an image has another shape or type, or a label no class.

    Example:
        ```python
        digits = sklearn.datasets.load_digits()
        images = (digits.images * 15.9).astype("uint8")
        prepare_arrays(zip(images, digits.target), "records", "train", "0123456789")
        ```
    """
    from tfscale.data import sources, writing

    quality, num_shards, seed = _check(quality, num_shards, seed)
    class_names = tuple(map(str, class_names))
    sources.check_class_names(class_names)
    examples = [(np.asarray(image), int(label)) for image, label in examples]
    digest = hashlib.sha256()
    for number, (image, label) in enumerate(examples):
        writing.check_array(image, label, len(class_names), f"example {number}")
        digest.update(f"{label} {image.shape}".encode() + np.ascontiguousarray(image).tobytes())
    order = np.random.RandomState(seed).permutation(len(examples))
    return writing.write_split(
        output,
        split,
        [(int(i), *examples[i]) for i in order],
        lambda example: writing.from_array(*example, class_names, quality),
        class_names,
        num_shards or 1,
        {"quality": quality, "seed": seed, "source": _digest([digest.hexdigest(), class_names])},
        "raise",
        overwrite,
    )


def _check(quality, num_shards, seed):
    from tfscale.data import arguments

    if num_shards is not None:
        num_shards = arguments.integer("num_shards", num_shards, 1)
    return (
        arguments.integer("quality", quality, 1, 100),
        num_shards,
        arguments.integer("seed", seed, 0, 2**32 - 1),  # what NumPy's generators take
    )


def _digests(split, pictures, on_error):
    """Returns the digests of the pictures' files, "" for one that cannot be read, and all bytes."""
    from tfscale.data import writing

    digests, total, said = [], 0, time.monotonic()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for outcome in writing.in_order(pool, lambda picture: picture.digest(), pictures):
            if isinstance(outcome, ValueError):
                if on_error == "raise":
                    raise ValueError(f"{outcome}. Mend it, or pass on_error='skip'.")
                outcome = "", 0  # named when its turn to be written comes
            digests.append(outcome[0])
            total += outcome[1]
            if time.monotonic() - said > 5:
                said = time.monotonic()
                logger.info("%s: %d of %d pictures looked at", split,
                            len(digests), len(pictures))  # fmt: skip
    return digests, total


def _digest(value):
    # Names of files need not be UTF-8: such bytes come as surrogates, and go as they came.
    text = json.dumps(value, ensure_ascii=False).encode(errors="surrogateescape")
    return hashlib.sha256(text).hexdigest()[:16]


def main(argv=None):
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tfscale.data.prepare",
        description="Writes class-per-folder images as TFRecord shards with an index.",
    )
    parser.add_argument("--source", required=True, help="folder with one sub-folder a class, or "
                        "with train/ and validation/ of such")  # fmt: skip
    parser.add_argument("--output", required=True, help="folder for the records")
    parser.add_argument("--validation_fraction", type=float, default=0.1)
    parser.add_argument("--image_size", type=int, help="reduce the short side to these pixels")
    parser.add_argument("--quality", type=int, default=95, help="of JPEGs that are made")
    parser.add_argument("--num_shards", type=int, help="default: shards of about 128 MB")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--on_error", choices=("raise", "skip"), default="raise")
    parser.add_argument("--overwrite", action="store_true")
    options = vars(parser.parse_args(argv))
    import tensorflow as tf  # not before: --help answers at once

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        written = prepare(options.pop("source"), options.pop("output"), **options)
    except (ValueError, OSError, tf.errors.OpError) as error:
        print(f"prepare: {error}", file=sys.stderr)
        return 1
    for split, index in written.items():
        print(
            f"{split}: {index.num_records} records of {len(index.class_names)} classes in "
            f"{len(index.shards)} shard(s), {sum(s.bytes for s in index.shards) / 1e6:.1f} MB: "
            f"{index.directory}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
