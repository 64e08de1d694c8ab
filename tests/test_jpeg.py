"""One image: formats, crops, resize, flip; eagerly and inside `map`."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests import record_files
from tfscale.data import jpeg


def in_map(function, *arguments):
    """What `function` gives inside `tf.data`."""
    return next(iter(tf.data.Dataset.from_tensors(arguments).map(function)))


@pytest.mark.parametrize(
    "form, mode", [("PNG", "RGB"), ("PNG", "RGBA"), ("PNG", "P"), ("PNG", "LA"), ("GIF", "P"),
                   ("BMP", "RGB"), ("WEBP", "RGB"), ("JPEG", "L"), ("JPEG", "CMYK"),
                   ("JPEG", "RGB")]
)  # fmt: skip
def test_every_format_gives_the_right_picture_and_the_crop(form, mode):
    image = Image.fromarray(record_files.picture()).convert(mode)
    options = {"WEBP": {"lossless": True}}.get(form, {})
    if form == "JPEG" and mode != "L":
        options = {"subsampling": 0}  # at a window's edge a fused decoder lacks neighbours' chroma
    encoded = record_files.encode(image, form, **options)
    wanted = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB")).astype(int)
    tolerance = 2 if mode == "CMYK" else 0  # Pillow rounds the conversion in another way
    assert np.abs(jpeg.decode(encoded).numpy() - wanted).max() <= tolerance
    window = [5, 9, 20, 30]
    cropped = jpeg.decode_and_crop(encoded, lambda shape: tf.constant(window))
    assert cropped.shape == (20, 30, 3)
    assert np.abs(cropped.numpy() - wanted[5:25, 9:39]).max() <= tolerance


def test_sixteen_bit_png_keeps_its_scale():
    values = np.linspace(0, 65535, 48 * 64).reshape(48, 64).astype(np.uint16)
    encoded = record_files.encode(Image.fromarray(values), "PNG")
    assert np.abs(jpeg.decode(encoded).numpy()[..., 0].astype(int) - values / 256).max() <= 1


def test_animation_gives_its_first_frame():
    frames = [Image.fromarray(record_files.picture(i)) for i in range(3)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    first = np.asarray(Image.open(io.BytesIO(buffer.getvalue())).convert("RGB"))
    np.testing.assert_array_equal(jpeg.decode(buffer.getvalue()), first)


def test_fused_equals_decode_then_crop_then_resize():
    encoded = tf.constant(record_files.encode(record_files.picture(3), subsampling=0))

    def fused(encoded):
        return jpeg.resize(jpeg.decode_and_crop(encoded, lambda _: tf.constant([8, 16, 32, 40])),
                           (24, 20))  # fmt: skip

    image = jpeg.decode(encoded)[8:40, 16:56]
    wanted = tf.image.resize(image, (24, 20)).numpy()
    for result in (fused(encoded), in_map(fused, encoded)):
        np.testing.assert_allclose(result.numpy(), wanted, atol=0.51)


def test_the_shape_is_read_from_the_header_and_a_window_outside_raises():
    encoded = record_files.encode(record_files.picture())
    whole = jpeg.decode_and_crop(encoded, lambda shape: tf.concat([[0, 0], shape], 0))
    assert whole.shape == (48, 64, 3)
    with pytest.raises(tf.errors.InvalidArgumentError):
        jpeg.decode_and_crop(encoded, lambda shape: tf.constant([0, 0, 480, 64]))


@pytest.mark.parametrize(
    "window, ratio",
    [([0, 0, 47, 64], 1), ([0, 0, 48, 64], 2), ([4, 9, 130, 97], 4), ([8, 16, 200, 264], 8)],
)
def test_large_windows_are_decoded_at_a_smaller_scale(window, ratio):
    encoded = record_files.encode(record_files.picture(1, 240, 320), subsampling=0)
    found = jpeg.decode_and_crop(encoded, lambda shape: tf.constant(window), (24, 24))
    top, left, height, width = (side // ratio for side in window)
    assert found.shape == (height, width, 3)
    image = np.asarray(jpeg.decode(encoded), float)
    means = image.reshape(240 // ratio, ratio, 320 // ratio, ratio, 3).mean((1, 3))
    wanted = means[top : top + height, left : left + width]
    np.testing.assert_allclose(found, wanted, atol=1 if ratio == 1 else 6)


def test_partial_jpeg_is_refused_even_where_the_window_is_whole():
    encoded = record_files.encode(record_files.picture(0, 480, 640), subsampling=0)
    cut = encoded[: int(0.9 * len(encoded))]
    with pytest.raises(tf.errors.InvalidArgumentError):
        jpeg.decode_and_crop(cut, lambda shape: tf.constant([0, 0, 20, 20]))
    # The bare operation does not notice.
    assert tf.io.decode_and_crop_jpeg(cut, [0, 0, 20, 20], channels=3).shape == (20, 20, 3)


def test_bytes_after_the_end_marker_do_no_harm():
    encoded = record_files.encode(record_files.picture())
    window = lambda shape: tf.constant([0, 0, 48, 64])  # noqa: E731
    np.testing.assert_array_equal(
        jpeg.decode_and_crop(encoded + b"tail", window), jpeg.decode_and_crop(encoded, window)
    )


@pytest.mark.parametrize("encoded", [b"", b"\xff\xd8\xff\xe0" + bytes(96), bytes(range(200))])
def test_what_is_no_picture_raises(encoded):
    with pytest.raises(tf.errors.InvalidArgumentError):
        jpeg.decode_and_crop(encoded, lambda shape: tf.constant([0, 0, 1, 1]))


def test_resize_equals_numpy_bilinear():
    image = record_files.picture(2, 13, 17)

    def weights(size, out):
        centre = np.clip((np.arange(out) + 0.5) * size / out - 0.5, 0, size - 1)
        low = np.minimum(np.floor(centre).astype(int), size - 1)
        high, part = np.minimum(low + 1, size - 1), centre - low
        matrix = np.zeros([out, size])
        matrix[np.arange(out), low] += 1 - part
        matrix[np.arange(out), high] += part
        return matrix

    wanted = np.einsum("ih,jw,hwc->ijc", weights(13, 8), weights(17, 10), image.astype(float))
    np.testing.assert_allclose(jpeg.resize(image, (8, 10)).numpy(), wanted, atol=0.51)


def test_flip_mirrors():
    image = tf.constant(record_files.picture(1, 4, 6))
    np.testing.assert_array_equal(jpeg.flip(image, True), image.numpy()[:, ::-1])
    np.testing.assert_array_equal(jpeg.flip(image, False), image)


def test_shrink_only_shrinks():
    assert jpeg.shrink(tf.zeros([100, 50, 3], tf.uint8), 25).shape == (50, 25, 3)
    image = tf.constant(record_files.picture(1, 20, 30))
    np.testing.assert_array_equal(jpeg.shrink(image, 20), image)
