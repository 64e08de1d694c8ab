"""Data without a disk has the elements of data from one."""

import numpy as np
import pytest
import tensorflow as tf

from tests import record_files
from tests.record_files import context, take
from tfscale.data import images, synthetic


@pytest.mark.slow
def test_same_elements_as_from_files(tmp_path):
    folder = record_files.write(tmp_path, [7, 5])
    record_files.write(folder, [10], split="validation")
    for c in (None, context(1, 2, 4)):
        real = images.train_dataset(folder, 4, 16, c)
        fake = synthetic.train_dataset(folder, 4, 16, c, num_classes=4)
        assert real.element_spec == fake.element_spec and fake.cardinality() == real.cardinality()
        for pad in (False, True):
            real = images.eval_dataset(folder, 4, 16, c, pad)
            fake = synthetic.eval_dataset(folder, 4, 16, c, pad, num_records=10)
            assert real.element_spec == fake.element_spec
            shapes = [[part.shape for part in e] for e in take(real, -1)]
            assert shapes == [[part.shape for part in e] for e in take(fake, -1)]


def test_repeats_by_seed_and_differs_by_worker():
    def first(*arguments):
        return take(synthetic.train_dataset(None, 4, 8, *arguments, num_classes=3), 2)

    one, again, other = first(), first(), first(context(1, 2))
    np.testing.assert_array_equal(one[0][0], one[1][0])
    np.testing.assert_array_equal(one[0][0], again[0][0])
    assert one[0][1].max() < 3 and (one[0][0][:2] != other[0][0]).any()
    off = tf.data.experimental.AutoShardPolicy.OFF
    dataset = synthetic.train_dataset(None, 4, 8)
    assert dataset.options().experimental_distribute.auto_shard_policy == off


def test_batch_must_divide():
    with pytest.raises(ValueError, match="not a multiple of the 3 replicas"):
        synthetic.train_dataset(None, 4, 8, context(0, 1, 3))


def test_arguments_are_checked_as_those_of_images():
    for name, value in (("seed", 1.5), ("num_classes", 0), ("global_batch_size", True),
                        ("image_size", "16"), ("input_context", "x")):  # fmt: skip
        options = {"global_batch_size": 4, "image_size": 8, name: value}
        for function in (synthetic.train_dataset, synthetic.eval_dataset):
            with pytest.raises((TypeError, ValueError), match=f"{name}={value!r}"):
                function(**options)
    with pytest.raises(ValueError, match="num_records=-1; wanted an integer of at least 0"):
        synthetic.eval_dataset(None, 4, 8, num_records=-1)
