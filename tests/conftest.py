"""Before any test: tf_keras is the Keras in force, and four logical CPUs stand in for GPUs."""

import logging
import os
import signal
import tempfile

import pytest

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.pop("TF_CONFIG", None)
os.environ["TFSCALE_THREADS_FILE"] = os.path.join(tempfile.mkdtemp(), "threads.json")


# A shell that starts the tests in the background, or nohup, makes them and their children ignore
# these, and tests that send them would wait in vain.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_configure(config):
    from tfscale import testing

    testing.set_logical_devices(4)


@pytest.fixture(autouse=True)
def restored_logging():
    """A program that is run in this process sets the level, which later tests would see."""
    logger = logging.getLogger("tfscale")
    level = logger.level
    yield
    logger.setLevel(level)
