"""Runs a function in a process of its own, so that nothing is left over from what ran before."""

import concurrent.futures
import multiprocessing
import os


def call(function, settings, what):
    """Returns ``function(settings)`` of a new process; what it raises is raised here.

    Args:
        function: of a module that can be imported.
        settings: whatever can be pickled.
        what: `str`, what an error calls the process.

    Raises:
        RuntimeError: if the process ends before it answers.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # input is the CPU's work
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        try:
            return pool.submit(function, settings).result()
        except concurrent.futures.process.BrokenProcessPool as error:
            raise RuntimeError(
                f"the process of {what} was killed before it was done: out of memory?"
            ) from error
