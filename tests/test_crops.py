"""Windows and flips."""

import numpy as np
import pytest
import tensorflow as tf

from tfscale.data import crops

KEYS = np.arange(4000)


def sampled(height, width, **options):
    shapes = np.tile([[height, width]], (len(KEYS), 1))
    return crops.sample_crop(shapes, KEYS, **options).numpy()


def test_sampled_crops_keep_to_their_ranges_and_fill_them():
    height, width = 300, 400
    top, left, h, w = sampled(height, width).T
    assert (top >= 0).all() and (left >= 0).all() and (h > 0).all() and (w > 0).all()
    assert (top + h <= height).all() and (left + w <= width).all()
    area, aspect = h * w / (height * width), w / h
    rounding = 0.01
    assert area.min() >= 0.08 and area.min() < 0.09 and area.max() > 0.9
    assert aspect.min() >= 0.75 - rounding and aspect.max() <= 4 / 3 + rounding
    assert aspect.min() < 0.77 and aspect.max() > 1.31
    # Uniform in place: the share of the free way that lies before the window.
    free = (height - h > 20) & (width - w > 20)
    for share in ((top / (height - h + 1e-9))[free], (left / (width - w + 1e-9))[free]):
        assert abs(share.mean() - 0.5) < 0.02 and share.min() < 0.01 and share.max() > 0.99


@pytest.mark.parametrize("height, width", [(375, 500), (500, 333), (100, 900), (64, 64)])
def test_sampled_crops_are_distributed_as_tensorflow_samples_them(height, width):
    def reference(key):
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            [height, width, 3], tf.constant([[[0.0, 0.0, 1.0, 1.0]]]), tf.stack([key, 0]),
            min_object_covered=0.0, aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1.0),
        )  # fmt: skip
        return tf.concat([begin[:2], size[:2]], 0)

    theirs = tf.map_fn(reference, tf.constant(KEYS, tf.int32)).numpy()
    # Not the place: theirs never touches the lower and the right edge.
    for ours, other in zip(sampled(height, width).T[2:], theirs.T[2:], strict=True):
        # Kolmogorov-Smirnov, at one in ten thousand; ties make it milder.
        values = np.arange(max(ours.max(), other.max()) + 1)
        distance = np.abs(
            np.searchsorted(np.sort(ours), values, "right")
            - np.searchsorted(np.sort(other), values, "right")
        ).max() / len(KEYS)
        assert distance < 2.23 * np.sqrt(2 / len(KEYS))


def test_a_window_is_a_function_of_its_key_alone():
    several = sampled(300, 400)
    compiled = tf.function(crops.sample_crop)
    for n in (0, 17):
        one = compiled(tf.constant([[300, 400]], tf.int64), tf.constant([KEYS[n]], tf.int64))
        np.testing.assert_array_equal(one[0], several[n])
    assert len(np.unique(several, axis=0)) > 3900


@pytest.mark.parametrize("height, width", [(1, 1), (2, 300), (300, 1), (0, 0)])
def test_sampled_crops_of_tiny_images_fit(height, width):
    top, left, h, w = sampled(height, width).T
    assert (h >= min(1, height)).all() and (w >= min(1, width)).all()
    assert (top + h <= height).all() and (left + w <= width).all()


def test_full_area_and_one_aspect_give_the_whole_picture():
    whole = sampled(300, 300, area_range=(1.0, 1.0), aspect_range=(1.0, 1.0))
    assert (whole == [0, 0, 300, 300]).all()


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
    assert crops.centre_crop(shape, size, fraction).numpy().tolist() == wanted
    both = crops.centre_crop([shape, [7, 9]], size, fraction).numpy()
    assert both.shape == (2, 4) and both[0].tolist() == wanted


def test_flips_are_half_of_the_keys():
    assert abs(crops.flips(KEYS).numpy().mean() - 0.5) < 0.03
