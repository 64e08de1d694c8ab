import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageFilter, ImageOps

from tests.record_files import picture
from tfscale.data import augment

SPEC = [tf.TensorSpec([None, None, 3], tf.uint8), tf.TensorSpec([], tf.int64)]


@pytest.fixture(scope="module")
def keras():
    import keras

    return keras


@pytest.fixture(scope="module")
def strong():
    return tf.function(augment.rand_augment(num_ops=2, magnitude=9), input_signature=SPEC)


@pytest.fixture(scope="module")
def operations():
    """The 14 operations at half strength, by name, as functions of (image, seed)."""
    names = [
        "identity", "solarise", "auto_contrast", "equalise", "rotate", "colour", "posterise",
        "contrast", "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y",
    ]  # fmt: skip
    return dict(zip(names, map(tf.function, augment._operations(0.5)), strict=True))


def results(function, image, keys, calls=4):
    keys = tf.constant(list(keys), tf.int64)
    dataset = tf.data.Dataset.from_tensor_slices(keys)
    return [x.numpy() for x in dataset.map(lambda key: function(image, key), calls)]


def many(operation, image, count=40):
    return [operation(image, tf.constant([7, i])).numpy() for i in range(count)]


# ------------------------------------------------------------------ a function of the key


@pytest.mark.slow
def test_same_key_same_pixels_in_any_order_on_any_thread(strong):
    image = tf.constant(picture(3))
    keys = [5, -(2**63), 2**63 - 1, 2**40 + 5, *range(20)]
    once = results(strong, image, keys)
    again = augment.rand_augment(num_ops=2, magnitude=9)
    assert all(map(np.array_equal, once, reversed(results(again, image, reversed(keys), calls=1))))
    assert np.array_equal(once[0], strong(image, tf.constant(5, tf.int64)))
    assert {(x.shape, x.dtype.name) for x in once} == {((48, 64, 3), "uint8")}
    assert len({x.tobytes() for x in once}) > len(keys) // 2


def test_graph_has_no_state_and_is_traced_once(strong):
    for key in (1, 2):
        strong(picture(0), tf.constant(key, tf.int64))
        strong(picture(0, 20, 30), tf.constant(key, tf.int64))
    assert strong.experimental_get_tracing_count() == 1
    traced = strong.get_concrete_function()
    assert not traced.captured_inputs  # no variable: a tf.data service can take the graph
    graph = traced.graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    assert not [node.op for node in nodes if node.op.startswith(augment.STATEFUL)]


def test_makes_no_variable_in_a_strategy(keras):
    made = []

    def spy(creator, **arguments):
        made.append(arguments)
        return creator(**arguments)

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope(), tf.variable_creator_scope(spy):
        keras.layers.RandomRotation(0.1)
        assert len(made) == 1
        augment.rand_augment()
        assert len(made) == 1


@pytest.mark.parametrize("arguments", [{"magnitude": 0}, {"num_ops": 0}])
def test_nothing_to_do_is_the_identity(arguments):
    image = picture(1)
    for result in results(augment.rand_augment(**arguments), image, range(5)):
        assert np.array_equal(result, image)


def test_operations_are_drawn_evenly_and_apart(monkeypatch):
    """Each of 14 operations writes its number, so that a pixel tells which two were drawn."""
    numbered = [lambda image, seed, number=i: image * 14 + number for i in range(14)]
    monkeypatch.setattr(augment, "_operations", lambda strength: numbered)
    function = augment.rand_augment(num_ops=2)
    drawn = np.array(results(function, tf.zeros([1, 1, 3], tf.uint8), range(196 * 20)))[:, 0, 0, 0]
    counts = np.bincount(drawn, minlength=196)
    for table, limit in ((counts.reshape(14, 14).sum(0), 34.5), (counts, 261)):
        expected = len(drawn) / len(table)  # limits: chi-squared, one in a thousand
        assert np.sum((table - expected) ** 2 / expected) < limit


# ------------------------------------------------------------------ what the operations do


def test_values_and_geometry_of_flat_pictures(operations):
    for name, operation in operations.items():
        for value in (0, 255):
            image = np.full([12, 10, 3], value, np.uint8)
            result = operation(image, tf.constant([1, 2]))
            assert result.dtype == tf.uint8 and result.shape == image.shape, name
            if name in ("identity", "auto_contrast", "equalise", "colour", "contrast", "sharpness"):
                assert np.array_equal(result, image), name


def test_solarise(operations):
    ramp = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2)
    starts = []
    for result in many(operations["solarise"], ramp, 80):
        changed = np.flatnonzero(result[0, :, 0] != ramp[0, :, 0])
        start = changed[0] if len(changed) else 256
        assert np.array_equal(result[0, start:, 0], 255 - np.arange(start, 256))
        starts.append(start)
    assert min(starts) >= 128 and min(starts) < 140 and max(starts) > 243


def test_posterise(operations):
    image = picture(2)
    for result in many(operations["posterise"], image, 3):
        assert np.array_equal(result, image & 0b11111100)  # 6 bits


def test_brightness_adds(operations):
    shifts = [
        int(x[0, 0, 0]) - 128
        for x in many(operations["brightness"], np.full([2, 2, 3], 128, np.uint8))
    ]
    assert max(map(abs, shifts)) <= 0.2 * 255 + 1
    assert min(shifts) < -30 and max(shifts) > 30


def test_contrast_scales_about_the_mean(operations):
    image = np.zeros([1, 2, 3], np.uint8)
    image[0, :, :] = [[100], [140]]
    spans = [np.ptp(x.astype(int)[..., 0]) for x in many(operations["contrast"], image)]
    assert min(spans) >= 0.55 * 40 - 1 and max(spans) <= 1.45 * 40 + 1
    assert min(spans) < 30 and max(spans) > 50


def test_colour_goes_to_grey(operations):
    image = picture(4)
    grey = np.asarray(Image.fromarray(image).convert("L"))[..., None].astype(float)
    shares = []
    for result in many(operations["colour"], image, 20):
        away, wanted = result - grey, image - grey
        share = np.sum(away * wanted) / np.sum(wanted**2)
        assert np.abs(away - share * wanted).max() < 2
        shares.append(share)
    assert 0.53 < min(shares) < 0.7 and 0.85 < max(shares) < 1.02


def test_auto_contrast_agrees_with_pillow(operations):
    image = picture(5) // 2 + 30
    ours = operations["auto_contrast"](image, tf.constant([0, 0])).numpy().astype(int)
    assert np.abs(ours - ImageOps.autocontrast(Image.fromarray(image))).max() <= 1


def test_equalise_makes_the_cumulative_histogram_straight(operations):
    image = picture(5) // 2 + 30
    ours = operations["equalise"](image, tf.constant([0, 0])).numpy().astype(int)
    for channel in range(3):
        below = np.cumsum(np.bincount(image[..., channel].ravel(), minlength=256))
        first = below[np.flatnonzero(below)[0]]
        table = 255 * (below - first) / (below[-1] - first)
        assert np.abs(ours[..., channel] - table[image[..., channel]]).max() < 1


def test_sharpness_blends_with_the_smoothed_picture(operations):
    image = np.random.RandomState(0).randint(90, 160, (40, 50, 3)).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(image).filter(ImageFilter.SMOOTH))
    inner = (slice(1, -1), slice(1, -1))
    wanted = (smooth.astype(float) - image)[inner]
    shares = []
    for result in many(operations["sharpness"], image, 20):
        change = (result.astype(float) - image)[inner]
        share = np.sum(change * wanted) / np.sum(wanted**2)
        assert np.abs(change - share * wanted).max() < 2
        shares.append(share)
    assert -0.5 < min(shares) < -0.2 and 0.2 < max(shares) < 0.5


@pytest.mark.parametrize("axis, name", [(1, "x"), (0, "y")])
def test_moves(operations, axis, name):
    """A white line moves by at most 0.225 of the side; a sheared one by 0.15 of its distance."""
    line = np.full([64, 64, 3], 128, np.uint8)
    line[(slice(None), 32) if axis else 32] = 255
    profiles = [
        np.mean(x[..., 0], axis=1 - axis) for x in many(operations[f"translate_{name}"], line)
    ]
    moved = np.array([np.argmax(profile) - 32 for profile in profiles])
    assert np.abs(moved).max() <= 15 and moved.min() < -9 and moved.max() > 9
    assert np.all([profile.min() > 127 for profile in profiles])  # filled with grey
    slopes = []
    for result in many(operations[f"shear_{name}"], line):
        bright = np.argmax(result[..., 0], axis=axis)
        slopes.append((bright[63] - bright[0]) / 63)
    assert np.abs(slopes).max() < 0.165 and min(slopes) < -0.1 and max(slopes) > 0.1


def test_rotates_up_to_15_degrees(operations):
    line = np.full([65, 65, 3], 128, np.uint8)
    line[32] = 255
    angles = []
    for result in many(operations["rotate"], line):
        bright = np.argmax(result[..., 0], axis=0)
        angles.append(np.degrees(np.arctan((bright[52] - bright[12]) / 40)))
    assert np.abs(angles).max() < 16.5 and min(angles) < -10 and max(angles) > 10


# ------------------------------------------------------------------ layers of the user's own


@pytest.mark.slow
def test_keras_layers_are_made_pure(keras):
    layers = [keras.layers.RandomFlip(), keras.layers.RandomZoom(0.3)]
    layers.append(keras.layers.RandomColorJitter(brightness_factor=0.2, hue_factor=0.1))  # nested
    before = [np.array(v) for layer in layers for v in layer.non_trainable_variables]
    function = tf.function(augment.keras_layers(*layers), input_signature=SPEC)
    once = results(function, picture(1), range(16))
    assert all(
        map(np.array_equal, once, reversed(results(function, picture(1), range(15, -1, -1))))
    )
    assert len({x.tobytes() for x in once}) == 16
    after = [np.array(v) for layer in layers for v in layer.non_trainable_variables]
    assert len(after) >= 5 and all(map(np.array_equal, before, after))


def test_equal_layers_draw_apart(keras):
    noise = augment.keras_layers(keras.layers.RandomBrightness(0.2))
    twice = augment.keras_layers(*(keras.layers.RandomBrightness(0.2) for _ in range(2)))
    grey = np.full([1, 1, 3], 128, np.uint8)
    once, both = (
        np.array(results(f, grey, range(50)), int)[:, 0, 0, 0] - 128 for f in (noise, twice)
    )
    assert np.abs(both - 2 * once).max() > 10


def test_layers_compute_as_their_policy_says(keras):
    layer = keras.layers.RandomBrightness((0.1, 0.1), dtype="float16")
    result = augment.keras_layers(layer)(
        np.full([2, 2, 3], 100, np.uint8), tf.constant(0, tf.int64)
    )
    assert np.array_equal(result, np.full([2, 2, 3], 126, np.uint8))  # 100 + 25.5, rounded


def test_refuses_layers_that_are_no_function_of_their_seeds(keras):
    class Unseeded(keras.layers.Layer):
        def call(self, images):
            return images * tf.random.uniform([])

    class Counting(keras.layers.Layer):
        def call(self, images):
            return images * keras.random.uniform([])  # Keras's global seed generator

    class FromNumpy(keras.layers.Layer):
        def call(self, images):
            return images * np.random.uniform()

    for layer, words in (
        (keras.layers.AugMix(), "when it is traced"),
        (FromNumpy(), "when it is traced"),
        (Unseeded(), "RandomUniform"),
        (Counting(), "Assign"),
        (keras.layers.MixUp(), "mixes the pictures"),
        (keras.layers.CutMix(), "mixes the pictures"),
        (keras.layers.Resizing(4, 4), r"keeps the\s+shape"),
    ):
        with pytest.raises(ValueError, match=f"{type(layer).__name__}.*{words}"):
            augment.keras_layers(layer)


def test_refuses_what_is_no_layer_of_keras_3(keras):
    from tfscale import keras as legacy

    with pytest.raises(TypeError, match="RandomFlip is no layer of Keras 3"):
        augment.keras_layers(legacy.layers.RandomFlip())
    with pytest.raises(TypeError, match="Normalization has weights"):
        augment.keras_layers(keras.layers.Normalization())


def test_refuses_another_backend(keras, monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="backend is 'jax'.*KERAS_BACKEND=tensorflow"):
        augment.rand_augment()


@pytest.mark.parametrize(
    "arguments, error",
    [
        ({"num_ops": -1}, ValueError),
        ({"num_ops": 1.5}, TypeError),
        ({"magnitude": 11}, ValueError),
        ({"magnitude": "9"}, TypeError),
    ],
)
def test_bad_arguments(arguments, error):
    with pytest.raises(error, match=next(iter(arguments))):
        augment.rand_augment(**arguments)
