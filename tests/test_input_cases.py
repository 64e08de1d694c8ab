"""What users of other input pipelines reported: augmentation that repeats, labels that shift."""

import hashlib
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from tests import record_files
from tests.record_files import context, take
from tfscale import testing
from tfscale.data import augment, images, records
from tfscale.export import export


def pixels_by_record(dataset, steps):
    """Digests of the pictures that each record became, in the order they came."""
    found = {}
    for image, _, ids in dataset.take(steps).as_numpy_iterator():
        for number, picture in zip(ids.tolist(), image, strict=True):
            found.setdefault(number, []).append(hashlib.sha256(picture.tobytes()).hexdigest())
    return found


# ------------------------------------------------------------------ augmentation


@pytest.mark.slow
def test_workers_crop_the_same_picture_differently_and_a_restart_repeats_it(tmp_path):
    """The same photograph in all of 24 records, read by two workers with one seed."""
    same = record_files.encode(record_files.picture(0, 96, 128))
    record_files.write(tmp_path, [24], encoded=dict.fromkeys(range(24), same))

    def read(worker, step, steps):
        dataset = images.train_dataset(
            tmp_path, 8, 16, context(worker, 2), seed=7, initial_step=step, include_record_ids=True
        )
        return pixels_by_record(dataset, steps)

    whole = [read(worker, 0, 6) for worker in range(2)]  # two epochs
    assert sorted([*whole[0], *whole[1]]) == list(range(24))
    crops = [crop for worker in whole for both in worker.values() for crop in both]
    assert len(crops) == 48 and len(set(crops)) == 48  # no worker or epoch repeats another's
    assert read(1, 3, 3) == {number: both[1:] for number, both in whole[1].items()}


def augmented(folder, threads):
    import keras

    layers = (keras.layers.RandomRotation(0.1), keras.layers.RandomBrightness(0.3))
    return images.train_dataset(
        folder, 4, 16, seed=3, threads=threads, include_record_ids=True,
        augment=augment.keras_layers(*layers),
    )  # fmt: skip


def read_in_a_worker(folder):
    """50 batches in a process of its own: one worker with one thread, the other with four."""
    worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    return pixels_by_record(augmented(folder, threads=(1, 4)[worker]), 50)


@pytest.mark.slow
def test_augmented_pictures_repeat_in_other_processes_with_other_threads(tmp_path):
    record_files.write(tmp_path, [20, 13])
    first, second = testing.run_in_processes(read_in_a_worker, workers=2, args=(str(tmp_path),))
    assert first == second and len(first) == 33  # the order of each record's pictures included
    assert len({picture for pictures in first.values() for picture in pictures}) == 200
    # Without order batches may come as they like, but a record's pictures are the same ones.
    loose = tf.data.Options()
    loose.deterministic = False
    again = pixels_by_record(augmented(tmp_path, threads=4).with_options(loose), 50)
    for number, pictures in first.items():
        assert set(pictures[:5]) <= set(again[number])


@pytest.mark.slow
def test_augmentation_gets_the_crop_and_another_key_each_epoch(tmp_path):
    record_files.write(tmp_path, [8])
    seen = []

    def spy(image, key):
        seen.append((image.shape, image.dtype, key.dtype, key.shape))
        low = tf.cast(tf.math.floormod(key, 251), tf.uint8)
        return tf.concat([image[..., :2], tf.fill([*image.shape[:2], 1], low)], -1)

    batches = take(images.train_dataset(tmp_path, 8, (12, 16), seed=1, augment=spy), 2)
    assert set(seen) == {((12, 16, 3), tf.uint8, tf.int64, ())}
    marks = np.concatenate([image[..., 2] for image, _ in batches])
    assert (marks == marks[:, :1, :1]).all()
    assert len(set(marks[:, 0, 0])) > 12  # 16 keys, a few of which may be equal modulo 251


# ------------------------------------------------------------------ labels


@pytest.fixture
def keras():
    from tfscale import keras

    return keras


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_a_label_outside_the_classes_stops_fit_compiled_or_not(tmp_path, keras, compiled):
    record_files.write(tmp_path, [4], labels=[0, 1, 3, 2])
    found = records.find(tmp_path)
    found.label_counts.pop(3)
    found.save()  # the index does not know of it
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=compiled)
    dataset = images.train_dataset(tmp_path, 4, 8, num_classes=3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="label 3 is outside .* 3 classes"):
        model.fit(dataset, steps_per_epoch=2, verbose=0)


@pytest.mark.slow
def test_labels_from_one_train_and_the_export_names_them_right(tmp_path, keras):
    """Files with labels 1 to 3, one colour each; the model has three outputs."""
    colours = {1: (200, 20, 20), 2: (20, 200, 20), 3: (20, 20, 200)}
    labels = [1 + i % 3 for i in range(12)]
    pictures = [np.full([16, 16, 3], colours[label], np.uint8) for label in labels]
    encoded = {i: record_files.encode(picture) for i, picture in enumerate(pictures)}
    record_files.write(tmp_path, [12], labels=labels, encoded=encoded)
    with pytest.raises(ValueError, match="labels in the files run from 1 to 3: pass label_offset"):
        images.train_dataset(tmp_path, 6, 8, num_classes=3)
    contract = records.describe(tmp_path, "train", 6, num_classes=3, label_offset=1)
    assert contract.fingerprint()["label_offset"] == 1

    keras.utils.set_random_seed(0)
    inputs = keras.Input([8, 8, 3], dtype="uint8")
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1 / 255)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(3, "softmax", dtype="float32")(x))
    model.compile(keras.optimizers.SGD(2.0), "sparse_categorical_crossentropy")
    dataset = images.train_dataset(tmp_path, 6, 8, num_classes=3, label_offset=1)
    model.fit(dataset, steps_per_epoch=40, verbose=0)
    folder = export(model, tmp_path / "export", 8, class_names=["red", "green", "blue"])
    served = tf.saved_model.load(str(folder)).signatures["serving_default"]
    answer = served(image_bytes=tf.constant([encoded[0], encoded[1], encoded[2]]))
    assert answer["class_name"].numpy().tolist() == [b"red", b"green", b"blue"]
