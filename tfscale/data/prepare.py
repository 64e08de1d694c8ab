"""Image folders to TFRecord shards with an index.

    python -m tfscale.data.prepare --source=IMAGES --output=RECORDS

Shards are written one by one and renamed when complete; a run that was stopped goes on where it
was. The same source and options give the same bytes; pictures are compared by their content, so
that a copied source is the same one, and one in which a picture was replaced is another.
"""

import concurrent.futures
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import pathlib
import sys

import numpy as np

logger = logging.getLogger("tfscale")

SHARD_BYTES = 128 << 20
ORIGINAL = "original"


def prepare(
    source,
    output,
    *,
    validation_fraction=0.1,
    short_side=None,
    quality=95,
    format="jpeg",
    keep_original=False,
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
        short_side: `int`, pixels that the short side is reduced to; None keeps it. Twice the
            records a second at 256, for training at 224.
        quality: `int`, of the JPEGs that are made, 1 to 100. Defaults to 95.
        format: "jpeg", or "bmp": decoded, three bytes a pixel: nothing is left to decode, for
            phases of low resolution. Defaults to "jpeg".
        keep_original: `bool`: the files' own bytes are written too, to ``output/original``, in
            the same splits and order. Defaults to False.
        num_shards: `int`; None makes shards of about 128 MB.
        seed: `int`, of the split and of the shuffle. Defaults to 0.
        on_error: "raise", or "skip": name and count bad pictures and go on.
        overwrite: `bool`, replace records of another source or other options.

    Returns:
        `dict` of split to `index.RecordIndex`; the originals' are under "original/SPLIT".

    Raises:
        ValueError: for a bad picture, a source without classes or pictures, an output that
            was made from something else, or an argument out of its range.
        OSError: if the output cannot be written, such as on a full disk.

    Example:
        ```python
        prepare("photos", "records", short_side=256, quality=90)
        dataset = tfscale.data.train_dataset("records", 256, 224)
        ```
    """
    from tfscale.data import arguments, forms, sources

    quality, num_shards, seed = _check(quality, num_shards, seed)
    if short_side is not None:
        short_side = arguments.integer("short_side", short_side, 1)
    arguments.choice("format", format, forms.FORMATS)
    arguments.choice("on_error", on_error, ("raise", "skip"))
    if not str(output):
        raise ValueError("output is empty; wanted a folder for the records")
    if pathlib.Path(output).resolve() == pathlib.Path(source).resolve():
        raise ValueError(f"output {output} is the source itself; wanted another folder")
    form = forms.Form(format, short_side, quality)
    if keep_original and form.keeps_bytes:
        raise ValueError(
            "keep_original would write the same bytes twice: they are kept anyway unless "
            "short_side or format='bmp' is given"
        )
    splits, class_names = sources.find(source, validation_fraction, seed, on_error)
    if validation_fraction and list(splits) == ["train"]:
        logger.warning(
            "no split 'validation': no class has two pictures, of which one could be held out"
        )
    with _alone_in(pathlib.Path(output)):
        return _write_all(
            splits, class_names, output, form, keep_original, num_shards, seed, on_error, overwrite
        )


@contextlib.contextmanager
def _alone_in(folder):
    """Holds a folder against another process that prepares into it; the kernel ends the hold."""
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise ValueError(
            f"another process is preparing into {folder} right now: wait for it, or stop it"
        ) from None
    except OSError:
        pass  # some network file systems know no locks
    try:
        yield
    finally:
        os.close(held)


def _write_all(
    splits, class_names, output, form, keep_original, num_shards, seed, on_error, overwrite
):
    """Writes all splits in all forms."""
    from tfscale.data import forms

    wanted = {"": form}
    if keep_original:
        wanted[ORIGINAL] = forms.Form("original")
    written = {}
    for split, pictures in splits.items():
        digests, total = _digests(split, pictures, on_error)
        listing = [[p.name, p.label, digest] for p, digest in zip(pictures, digests, strict=True)]
        options = {"seed": seed, "source": _digest([listing, class_names])}
        for folder, form in wanted.items():
            written[f"{folder}/{split}".lstrip("/")] = _write(
                pathlib.Path(output) / folder, split, pictures, total, form, class_names,
                num_shards, options, on_error, overwrite,
            )  # fmt: skip
    return written


def _write(
    folder, split, pictures, source_bytes, form, class_names, num_shards, options, on_error,
    overwrite,
):  # fmt: skip
    """Writes one split in one form."""
    from tfscale.data import writing

    size = source_bytes if form.keeps_bytes else form.estimate(pictures, class_names)
    log = logger.warning if form.format == "bmp" and form.short_side is None else logger.info
    log(
        "%s: %d pictures, %s; about %s to write, the files have %s",
        split, len(pictures), form, _size(size), _size(source_bytes),
    )  # fmt: skip
    order = np.random.RandomState(options["seed"]).permutation(len(pictures))
    return writing.write_split(
        folder,
        split,
        [pictures[i] for i in order],
        lambda picture: form.example(picture, class_names),
        class_names,
        num_shards or max(1, -(-size // SHARD_BYTES)),
        {**form.options(), **options},
        on_error,
        overwrite,
    )


def _size(count):
    """Returns a number of bytes as text."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if count >= factor:
            return f"{count / factor:.2f} {unit}"
    return f"{count / 1e3:.1f} kB"


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
    from tfscale.data import forms, sources, writing

    quality, num_shards, seed = _check(quality, num_shards, seed)
    class_names = tuple(map(str, class_names))
    sources.check_class_names(class_names)
    examples = [(np.asarray(image), int(label)) for image, label in examples]
    digest = hashlib.sha256()
    for number, (image, label) in enumerate(examples):
        forms.check_array(image, label, len(class_names), f"example {number}")
        digest.update(f"{label} {image.shape}".encode() + np.ascontiguousarray(image).tobytes())
    order = np.random.RandomState(seed).permutation(len(examples))
    return writing.write_split(
        output,
        split,
        [(int(i), *examples[i]) for i in order],
        lambda example: forms.of_array(*example, class_names, quality),
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
    from tfscale.data.progress import Progress

    digests, total = [], 0
    progress = Progress(logger.info, f"{split}, a first look", len(pictures), "pictures")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for outcome in writing.in_order(pool, lambda picture: picture.digest(), pictures):
            if isinstance(outcome, ValueError):
                if on_error == "raise":
                    raise ValueError(f"{outcome}. Mend it, or pass on_error='skip'.")
                outcome = "", 0  # named when its turn to be written comes
            digests.append(outcome[0])
            total += outcome[1]
            progress(len(digests))
    return digests, total


def _digest(value):
    # Names of files need not be UTF-8: such bytes come as surrogates, and go as they came.
    text = json.dumps(value, ensure_ascii=False).encode(errors="surrogateescape")
    return hashlib.sha256(text).hexdigest()[:16]


def main(argv=None):
    """The command line; returns the exit code."""
    from tfscale.data import prepare_options

    options = prepare_options.parse(argv)
    import tensorflow as tf  # not before: --help answers at once

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        written = prepare(options.pop("source"), options.pop("output"), **options)
    except (ValueError, OSError, tf.errors.OpError) as error:
        print(f"prepare: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("prepare: stopped; started again, it goes on where it was", file=sys.stderr)
        return 130
    for split, index in written.items():
        size = sum(shard.bytes for shard in index.shards)
        print(
            f"{split}: {index.num_records} records of {len(index.class_names)} classes in "
            f"{len(index.shards)} shard(s), {_size(size)}, "
            f"{size / index.num_records / 1e3:.1f} kB a record: {index.directory}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
