"""The GPUs of this machine, divided among trials that run at the same time."""

from pathlib import Path

from tfscale.gpus import visible_gpus


def divide_gpus(environ, parallel, devices=Path("/dev")):
    """The GPUs of each of `parallel` trials: lists of ids as ``CUDA_VISIBLE_DEVICES`` names them.

    Args:
        environ: mapping, the environment of the search.
        parallel: `int`, trials at a time.
        devices: folder of the device files, where ``CUDA_VISIBLE_DEVICES`` does not say.

    Returns:
        `list`, one entry for each trial: None where there is nothing to divide.

    Raises:
        ValueError: there are GPUs, but fewer than trials.

    Example:

    >>> divide_gpus({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 2)
    [['0', '1'], ['2', '3']]
    """
    found = visible_gpus(environ, devices)
    if parallel == 1 or not found:
        return [None] * parallel
    each = len(found) // parallel
    if not each:
        raise ValueError(
            f"--parallel={parallel} trials cannot have a GPU each: there are {len(found)} "
            f"({', '.join(found)}); take a smaller --parallel, or set CUDA_VISIBLE_DEVICES=-1 to "
            "train on CPU"
        )
    return [found[i * each : (i + 1) * each] for i in range(parallel)]
