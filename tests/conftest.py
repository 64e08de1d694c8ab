"""Before any test: tf_keras is the Keras in force, and four logical CPUs stand in for GPUs."""

import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.pop("TF_CONFIG", None)


def pytest_configure(config):
    from tfscale import testing

    testing.set_logical_devices(4)
