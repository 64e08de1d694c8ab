"""Plots of a search by Optuna's matplotlib functions."""

import contextlib
import warnings
from pathlib import Path

from optuna.trial import TrialState


def plot(study, metric, folder):
    """Draws history, epochs, slices, parallel coordinates and importances as PNG files.

    Those that say nothing yet are left out: importances and coordinates of one complete trial.

    Args:
        study: the `optuna.Study`.
        metric: `str`, for the axes.
        folder: path for the files, which is made.

    Returns:
        `list` of the paths that were written.

    Raises:
        ImportError: matplotlib is not installed.

    Example:

    >>> plot(report.study, "val_accuracy", "runs/tuning/plots")
    [PosixPath('runs/tuning/plots/history.png'), ...]
    """
    import matplotlib
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as drawing

    trials = study.get_trials(deepcopy=False)
    complete = sum(trial.state == TrialState.COMPLETE for trial in trials)
    varied = len({tuple(sorted(trial.params.items())) for trial in trials}) > 1
    named = {"target_name": metric}
    wanted = {"epochs": (drawing.plot_intermediate_values, {})} if trials else {}
    if complete:
        wanted["history"] = drawing.plot_optimization_history, named
        wanted["slices"] = drawing.plot_slice, named
    if complete > 1 and varied:
        wanted["parallel_coordinates"] = drawing.plot_parallel_coordinate, named
        wanted["importances"] = drawing.plot_param_importances, named
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    # Optuna sets a style for the whole process, and calls its plots experimental.
    with matplotlib.rc_context(), _quiet():
        for name, (draw, options) in wanted.items():
            axes = draw(study, **options)
            figure = getattr(axes, "flat", [axes])[0].figure
            paths.append(folder / f"{name}.png")
            figure.savefig(paths[-1], dpi=120, bbox_inches="tight")
            pyplot.close(figure)
    return paths


@contextlib.contextmanager
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
