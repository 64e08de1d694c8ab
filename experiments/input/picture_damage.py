"""Damage to the structure of JPEGs: sizes, tables, markers; and to bytes of any format."""

import numpy as np

KINDS = (
    "size", "sampling", "components", "precision", "table", "marker", "length", "drop",
    "duplicate", "swap", "restart", "progressive", "scan", "cut", "end", "noise",
)  # fmt: skip
LARGEST = 4096  # pixels a side: a header may claim more memory than the machine has


def segments(data):
    """Splits a JPEG into its marker segments and the rest.

    Returns:
        `list` of `bytes`: the start, each segment with its marker, and from the scan on.

    Source: ITU-T T.81, annex B.
    """
    parts, at = [data[:2]], 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] == 0xDA:
            break
        parts.append(data[at:end])
        at = end
    return [*parts, data[at:]]


def damage(data, kind, random):
    """Returns the bytes of a JPEG after a damage of the given kind.

    Args:
        data: `bytes`.
        kind: one of `KINDS`.
        random: `np.random.Generator`.
    """
    parts = [bytearray(part) for part in segments(data)]

    def having(*markers):
        found = [part for part in parts[1:] if len(part) > 4 and part[1] in markers]
        return found[random.integers(len(found))] if found else parts[-1]

    def put(part, at, value):
        if at < len(part):
            part[at] = value

    frame = having(0xC0, 0xC1, 0xC2)
    other = int(random.integers(256))
    match kind:
        case "size":
            side = int(random.choice([0, 1, 7, 8, 9, random.integers(LARGEST), LARGEST]))
            at = int(random.choice([5, 7]))
            for i, byte in enumerate(side.to_bytes(2, "big")):
                put(frame, at + i, byte)
        case "sampling":
            put(frame, 11 + 3 * int(random.integers(3)), other)
        case "components":
            put(frame, int(random.choice([9, 10, 13, 16])), int(random.choice([0, 1, 2, 4, other])))
        case "precision":
            put(frame, 4, int(random.choice([0, 1, 12, 16, other])))
        case "table":
            part = having(0xDB, 0xC4)
            put(part, int(random.integers(4, max(5, len(part)))), other)
        case "marker":
            put(parts[random.integers(1, len(parts))], 1, other)
        case "length":
            part = parts[random.integers(1, len(parts))]
            put(part, int(random.choice([2, 3])), other)
        case "drop":
            del parts[random.integers(len(parts))]
        case "duplicate":
            at = random.integers(len(parts))
            parts.insert(at, parts[at])
        case "swap":
            one, two = random.integers(len(parts), size=2)
            parts[one], parts[two] = parts[two], parts[one]
        case "restart":
            interval = int(random.integers(65536)).to_bytes(2, "big")
            parts.insert(len(parts) - 1, bytearray(b"\xff\xdd\x00\x04" + interval))
        case "progressive":
            put(frame, 1, int(random.choice([0xC1, 0xC2, 0xC3, 0xC9, 0xCA])))
        case "scan":
            put(parts[-1], int(random.integers(min(14, len(parts[-1])))), other)
        case "cut":
            whole = b"".join(parts)
            return whole[: random.integers(len(whole))] + random.choice([b"", b"\xff\xd9"])
        case "end":
            return data[:-2] + bytes([other]) * int(random.integers(4))
        case "noise":
            return flip(data, random)
    return b"".join(parts)


def flip(data, random):
    """Returns `data` with a few bytes replaced at random."""
    changed = bytearray(data)
    for _ in range(int(random.integers(1, 9))):
        changed[random.integers(len(changed))] = random.integers(256)
    return bytes(changed)


def pictures():
    """Returns valid pictures to damage, a `list` of `bytes`: several kinds of JPEG, PNG, BMP."""
    import tensorflow as tf

    from tfscale.data import forms

    y, x = np.mgrid[0:40, 0:56]
    image = np.stack([127 + 90 * np.sin(x / (4 + c) + y / 5) for c in range(3)], -1)
    image = image.astype(np.uint8)
    grey = image[..., :1]
    jpegs = [
        tf.io.encode_jpeg(image, quality=90, chroma_downsampling=chroma, progressive=progressive)
        for chroma in (False, True)
        for progressive in (False, True)
    ]
    others = [tf.io.encode_jpeg(grey, format="grayscale"), tf.io.encode_png(image)]
    return [*(data.numpy() for data in [*jpegs, *others]), forms.encode_bmp(image)]


def decoder():
    """Returns a function of a picture's bytes that decodes the middle of it, and all of it.

    It returns what breaks the law, a `list` of `str`: anything but an error that says so, or a
    picture of the size that was asked for; and an error where the whole can be decoded.
    """
    import tensorflow as tf

    from tfscale.data import jpeg

    def window_of(shape):
        size = tf.maximum(shape // 2, 1)
        return tf.concat([(shape - size) // 2, size], 0)

    middle_of = tf.function(
        lambda encoded: jpeg.decode_and_crop(encoded, window_of),
        input_signature=[tf.TensorSpec([], tf.string)],
    )

    def attempt(function, encoded):
        try:
            return function(tf.constant(encoded)).numpy(), []
        except tf.errors.OpError:
            return None, []
        except Exception as error:  # noqa: BLE001
            return None, [f"{type(error).__name__}: {str(error)[:200]}"]

    def violations(encoded):
        middle, broken = attempt(middle_of, encoded)
        whole, other = attempt(jpeg.decode, encoded)
        broken += other
        if whole is not None:
            wanted = tuple(max(side // 2, 1) for side in whole.shape[:2]) + (3,)
            if middle is None:
                broken.append("the whole can be decoded, a window of it cannot")
            elif middle.shape != wanted:
                broken.append(f"a window of {middle.shape}; wanted {wanted}")
        return broken

    return violations
