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


def test_known_shape_is_used_and_a_wrong_one_raises():
    encoded = record_files.encode(record_files.picture())
    seen = []

    def window_of(shape):
        seen.append(shape.numpy().tolist())
        return tf.concat([[0, 0], shape], 0)

    jpeg.decode_and_crop(encoded, window_of, tf.constant([48, 64]))
    jpeg.decode_and_crop(encoded, window_of, tf.constant([0, 0]))
    assert seen == [[48, 64], [48, 64]]
    with pytest.raises(tf.errors.InvalidArgumentError):
        jpeg.decode_and_crop(encoded, window_of, tf.constant([480, 64]))


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


def test_sampled_crops_keep_to_their_ranges_and_fill_them():
    height, width = 300, 400
    sample = tf.function(lambda key: jpeg.sample_crop([height, width], tf.stack([key, 0])))
    windows = np.stack([sample(tf.constant(key)).numpy() for key in range(1500)])
    top, left, h, w = windows.T
    assert (top >= 0).all() and (left >= 0).all() and (h > 0).all() and (w > 0).all()
    assert (top + h <= height).all() and (left + w <= width).all()
    area, aspect = h * w / (height * width), w / h
    rounding = 0.01
    assert area.min() >= 0.08 - rounding and area.min() < 0.11 and area.max() > 0.9
    assert aspect.min() >= 0.75 - rounding and aspect.max() <= 4 / 3 + rounding
    assert aspect.min() < 0.78 and aspect.max() > 1.29
    # Uniform in place: the share of the free way that lies before the window.
    free = (height - h > 20) & (width - w > 20)
    for share in ((top / (height - h + 1e-9))[free], (left / (width - w + 1e-9))[free]):
        assert abs(share.mean() - 0.5) < 0.03 and share.min() < 0.02 and share.max() > 0.98


def test_sampled_crop_is_a_function_of_its_seed():
    shape, seed = tf.constant([300, 400]), tf.constant([5, 6])
    eager = jpeg.sample_crop(shape, seed).numpy()
    np.testing.assert_array_equal(in_map(jpeg.sample_crop, shape, seed), eager)
    assert (jpeg.sample_crop(shape, [5, 7]).numpy() != eager).any()


@pytest.mark.parametrize("shape", [[1, 1], [2, 300], [300, 1]])
def test_sampled_crop_of_tiny_images_fits(shape):
    for key in range(20):
        top, left, height, width = jpeg.sample_crop(shape, [key, 0]).numpy()
        assert height >= 1 and width >= 1 and top + height <= shape[0] and left + width <= shape[1]


@pytest.mark.parametrize(
    "shape, size, fraction, wanted",
    [
        ([256, 256], (224, 224), 0.875, [16, 16, 224, 224]),
        ([256, 512], (224, 224), 0.875, [16, 144, 224, 224]),
        ([48, 64], (24, 48), 1.0, [8, 0, 32, 64]),
        ([1, 1], (8, 8), 0.875, [0, 0, 1, 1]),
    ],
)
def test_centre_crop(shape, size, fraction, wanted):
    assert jpeg.centre_crop(shape, size, fraction).numpy().tolist() == wanted


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


def test_flip_mirrors_half_of_the_seeds():
    image = tf.constant(record_files.picture(1, 4, 6))
    flipped = 0
    for key in range(200):
        result = jpeg.flip(image, [key, 1]).numpy()
        mirrored = (result == image.numpy()[:, ::-1]).all()
        assert mirrored or (result == image.numpy()).all()
        flipped += mirrored
    assert 70 < flipped < 130


def test_shrink_only_shrinks():
    assert jpeg.shrink(tf.zeros([100, 50, 3], tf.uint8), 25).shape == (50, 25, 3)
    image = tf.constant(record_files.picture(1, 20, 30))
    np.testing.assert_array_equal(jpeg.shrink(image, 20), image)
