import numpy as np
import pytest

from tfscale.data import crops, rectangles


def bounds_of(records, batches):
    return np.arange(batches + 1) * records // batches


def photographs(count, seed=0):
    """Heights and widths like those of photographs from the web."""
    rng = np.random.RandomState(seed)
    common = [(375, 500), (500, 375), (333, 500), (500, 333), (500, 500), (281, 500)]
    usual = rng.choice(6, count, p=[0.55, 0.15, 0.15, 0.07, 0.05, 0.03])
    sizes = np.array(common)[usual]
    other = rng.rand(count) < 0.3
    sizes[other, 1] = rng.randint(100, 1500, other.sum())
    sizes[other, 0] = sizes[other, 1] * np.exp(rng.normal(-0.15, 0.3, other.sum()))
    return sizes[:, 0], sizes[:, 1]


def kept(shape, size):
    """Share of a picture's area in the largest centred rectangle of an output's aspect ratio."""
    scale = min(shape[0] / size[0], shape[1] / size[1])
    return scale**2 * size[0] * size[1] / (shape[0] * shape[1])


@pytest.mark.parametrize("image_size", [96, 224, 300])
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_each_step_takes_the_size_that_keeps_most(replicas, image_size):
    """Against a search over all sizes, picture by picture."""
    heights, widths = photographs(203)
    bounds = bounds_of(203, 7 * replicas)
    plan = rectangles.plan(heights, widths, bounds, replicas, image_size)
    assert sorted(plan.order) == list(range(203))
    assert np.all(np.diff((widths / heights)[plan.order]) >= 0)
    longs = {image_size} | {x for x in range(image_size, 2 * image_size + 1) if x % 32 == 0}
    possible = {(image_size, x) for x in longs} | {(x, image_size) for x in longs}
    for step in range(7):
        sizes = plan.sizes[step * replicas : (step + 1) * replicas]
        assert len(np.unique(sizes, axis=0)) == 1
        records = plan.order[bounds[step * replicas] : bounds[(step + 1) * replicas]]
        shapes = [(heights[r], widths[r]) for r in records]
        means = {size: np.mean([kept(shape, size) for shape in shapes]) for size in possible}
        assert means[tuple(sizes[0])] == pytest.approx(max(means.values()), abs=1e-12)


@pytest.mark.parametrize("crop_fraction", [1.0, 0.875, 0.3])
def test_windows_are_those_of_the_graph_to_the_pixel(crop_fraction):
    heights, widths = photographs(3000, seed=1)
    heights[:3], widths[:3] = [1, 1, 2000], [1, 2000, 1]
    shapes = np.stack([heights, widths], 1)
    plan = rectangles.plan(heights, widths, [0, 1500, 3000], 2, 224, crop_fraction)
    for size in ((224, 224), (96, 96), (224, 288), (416, 224)):
        ours = rectangles.centre_crop(shapes, np.full([3000, 2], size), crop_fraction)
        assert np.array_equal(ours, crops.centre_crop(shapes, size, crop_fraction))
    size = tuple(plan.sizes[0])
    wanted = crops.centre_crop(shapes[plan.order], size, crop_fraction)
    assert np.array_equal(plan.windows, wanted)


def test_squares_stay_squares():
    """A set of squares gets the windows and the order of square evaluation."""
    sides = np.random.RandomState(2).randint(1, 800, 100)
    plan = rectangles.plan(sides, sides, bounds_of(100, 6), 2, 224)
    assert np.array_equal(plan.order, np.arange(100))
    assert np.array_equal(plan.sizes, np.full([6, 2], 224))
    assert plan.shapes.tolist() == [[224, 224]]
    wanted = crops.centre_crop(np.stack([sides, sides], 1), (224, 224))
    assert np.array_equal(plan.windows, wanted)


def test_unknown_sizes_are_taken_for_squares_and_have_no_window():
    heights = np.array([0, 300, 0, 100, 50, 0])
    widths = np.array([0, 400, 50, 400, 50, 0])
    plan = rectangles.plan(heights, widths, bounds_of(6, 3), 1, 64)
    assert plan.order.tolist() == [0, 2, 4, 5, 1, 3]
    assert plan.sizes.tolist() == [[64, 64], [64, 64], [64, 96]]
    assert plan.windows[[0, 1, 3]].tolist() == [[0] * 4] * 3
    assert (plan.windows[[2, 4, 5], 2:] > 0).all()


def test_panoramas_are_held_to_twice_the_side():
    plan = rectangles.plan([100, 5000], [5000, 100], [0, 1, 2], 1, 224)
    assert plan.sizes.tolist() == [[448, 224], [224, 448]]


def test_more_batches_than_records_and_no_records():
    plan = rectangles.plan([300, 400], [400, 300], bounds_of(2, 4), 4, 224)
    assert plan.sizes.shape == (4, 2) and sorted(plan.order) == [0, 1]
    plan = rectangles.plan([], [], [0], 2, 224)
    assert plan.order.shape == (0,) and plan.windows.shape == (0, 4) and plan.sizes.shape == (0, 2)


def test_few_shapes_and_little_lost_on_photographs():
    """50,000 pictures in batches of 256: at most 15 sizes, and far more kept than by squares."""
    heights, widths = photographs(50_000)
    steps = -(-50_000 // 256)
    plan = rectangles.plan(heights, widths, bounds_of(50_000, steps), 1, 224, 1.0)
    assert len(plan.shapes) <= 15
    assert np.count_nonzero(np.any(np.diff(plan.sizes, axis=0) != 0, axis=1)) < len(plan.shapes)
    area = plan.windows[:, 2] * plan.windows[:, 3]
    share = area / (heights * widths)[plan.order]
    square = np.minimum(heights / widths, widths / heights)
    assert share.mean() > 0.96 and square.mean() < 0.76


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        ({"image_size": (224, 224)}, TypeError, "image_size"),
        ({"crop_fraction": 0}, ValueError, "crop_fraction"),
        ({"heights": [3, -1]}, ValueError, r"record 1: .*\[-1, 5\]"),
        ({"bounds": [0, 3]}, ValueError, "not those of 2 records"),
        ({"num_replicas": 2}, ValueError, "2 replica"),
    ],
)
def test_bad_arguments(arguments, error, words):
    good = {
        "heights": [4, 4], "widths": [5, 5], "bounds": [0, 2], "num_replicas": 1, "image_size": 224,
    }  # fmt: skip
    with pytest.raises(error, match=words):
        rectangles.plan(**{**good, **arguments})
