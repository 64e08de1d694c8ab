"""In which form a picture is stored in a record: as it came, as a JPEG, or decoded."""

import dataclasses
import struct

import numpy as np
import tensorflow as tf

from tfscale.data import jpeg, reading

FORMATS = ("jpeg", "bmp")
SAMPLE = 16  # pictures by which the size of all is estimated
LONGEST_SIDE = 65500  # pixels: what libjpeg can write


@dataclasses.dataclass(frozen=True)
class Form:
    """How pictures are stored.

    Args:
        format: "jpeg": JPEGs byte for byte, unless they are reduced or are CMYK, and all else as
            JPEGs; "bmp": decoded, three bytes a pixel, so that nothing is left to decode;
            "original": the bytes of the file, whatever they are.
        short_side: `int`, pixels that the short side is reduced to; None keeps it.
        quality: `int`, of the JPEGs that are made, 1 to 100.

    Example:
        >>> str(Form("jpeg", 256, 90))
        'JPEG, short side 256, quality 90'
    """

    format: str = "jpeg"
    short_side: int | None = None
    quality: int = 95

    def __str__(self):
        if self.format == "original":
            return "originals, byte for byte"
        size = "" if self.short_side is None else f", short side {self.short_side}"
        quality = f", quality {self.quality}" if self.format == "jpeg" else ""
        return f"{self.format.upper()}{size}{quality}"

    @property
    def keeps_bytes(self):
        """Whether most pictures are stored as they came."""
        return self.format == "original" or (self.format == "jpeg" and self.short_side is None)

    def options(self):
        """Returns what the bytes of a record are a function of, as a JSON-able `dict`."""
        chosen = {"format": self.format}
        if self.format != "original":
            chosen["short_side"] = self.short_side
        if self.format == "jpeg":
            chosen["quality"] = self.quality
        return chosen

    def example(self, picture, class_names):
        """Reads and decodes a picture, and puts it into a record in this form.

        Args:
            picture: `sources.Picture`.
            class_names: sequence of `str`, by label.

        Returns:
            `(label, (height, width), serialised example)`.

        Raises:
            ValueError: naming the file, if it is not a complete picture.
        """
        encoded = picture.read()
        reason = reading.what_is_wrong_with_picture(encoded)
        if reason:
            raise ValueError(f"{picture.path} ({len(encoded)} bytes): {reason}")
        image = jpeg.decode(tf.constant(encoded))
        longest = max(image.shape)
        if longest > LONGEST_SIDE:  # in every form, so that all forms have the same records
            raise ValueError(
                f"{picture.path} is {longest} pixels long; at most {LONGEST_SIDE} can be stored"
            )
        if self.format == "original":
            kind = reading.kind_of(encoded)
        elif self.format == "bmp":
            image = self._reduced(image)
            encoded, kind = encode_bmp(image.numpy()), "BMP"
        else:
            reduced = self._reduced(image)
            is_jpeg = encoded.startswith(jpeg.JPEG_START)
            # TensorFlow's header reader counts the channels: 1 grey, 3 colour, 4 CMYK.
            plain = is_jpeg and int(tf.io.extract_jpeg_shape(encoded)[2]) in (1, 3)
            if not plain or reduced.shape != image.shape:
                encoded = encode_jpeg(reduced, self.quality)
            image, kind = reduced, "JPEG"
        return _example(encoded, image.shape, picture.label, picture.name, class_names, kind)

    def _reduced(self, image):
        return image if self.short_side is None else jpeg.shrink(image, self.short_side)

    def estimate(self, pictures, class_names):
        """Returns about how many bytes the records of `pictures` will take, by a few of them."""
        step = max(1, len(pictures) // SAMPLE)
        sizes = []
        for picture in pictures[::step][:SAMPLE]:
            try:
                sizes.append(len(self.example(picture, class_names)[-1]))
            except ValueError:
                continue  # it will be named when its turn to be written comes
        return int(np.mean(sizes) * len(pictures)) if sizes else 0


def of_array(number, image, label, class_names, quality):
    """Returns what `Form.example` does, for a uint8 array and its label, as a JPEG."""
    image = image[..., None] if image.ndim == 2 else image
    name = f"{number:08d}.jpg"
    return _example(encode_jpeg(image, quality), image.shape, label, name, class_names, "JPEG")


def check_array(image, label, num_classes, place):
    """Raises ValueError unless `image` and `label` can be written."""
    fits = image.ndim == 2 or (image.ndim == 3 and image.shape[-1] in (1, 3))
    if image.dtype != "uint8" or not fits or 0 in image.shape:
        raise ValueError(
            f"{place}: image of shape {image.shape}, {image.dtype}; wanted uint8 in [0, 255], "
            "[height, width] or [height, width, 1 or 3]"
        )
    if not 0 <= label < num_classes:
        raise ValueError(f"{place}: label {label} is outside [0, {num_classes})")


def encode_jpeg(image, quality):
    """Returns the bytes of a uint8 image [height, width, 1 or 3] as a JPEG.

    Colour is kept at full resolution from quality 95 on; at half of it, photographs take a fifth
    fewer bytes and decode a tenth faster.
    """
    image = tf.convert_to_tensor(image)
    form = "grayscale" if image.shape[-1] == 1 else "rgb"
    return tf.io.encode_jpeg(
        image, format=form, quality=quality, chroma_downsampling=quality < 95
    ).numpy()


def encode_bmp(image):
    """Returns the bytes of a uint8 RGB image [height, width, 3] as an uncompressed bitmap.

    54 bytes of header, then the rows from the bottom up, each padded to a multiple of 4 bytes,
    blue first. TensorFlow reads this form but has no op that writes it.

    Args:
        image: uint8 array [height, width, 3].

    Returns:
        `bytes`, ``54 + height * 4 * ceil(3 * width / 4)`` of them.

    Example:
        >>> len(encode_bmp(np.zeros([2, 3, 3], np.uint8)))
        78

    Source: Microsoft, "BITMAPINFOHEADER structure", Windows GDI reference.
    """
    height, width, _ = image.shape
    rows = np.zeros([height, -(-3 * width // 4) * 4], np.uint8)
    rows[:, : 3 * width] = image[::-1, :, ::-1].reshape(height, -1)
    header = struct.pack("<2sI4xI", b"BM", 54 + rows.size, 54)
    # Size of what follows, width, height, planes, bits a pixel, no compression, bytes of pixels,
    # pixels a metre each way (72 an inch), no palette.
    header += struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, rows.size, 2835, 2835, 0, 0)
    return header + rows.tobytes()


def _example(encoded, shape, label, name, class_names, kind):
    height, width = int(shape[0]), int(shape[1])
    return label, (height, width), reading.example(
        encoded, label, height=height, width=width, filename=name, text=class_names[label],
        image_format=kind,
    ).SerializeToString(deterministic=True)  # fmt: skip
