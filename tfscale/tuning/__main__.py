"""Hyperparameter search: ``python -m tfscale.tuning --help``."""

import os
import shlex
import signal
import sys


def main(argv=None):
    from tfscale.tuning.options import parse

    words, flags, space, settings, report_only = parse(sys.argv[1:] if argv is None else argv)
    try:
        import optuna
    except ImportError:
        return _say('the search needs optuna: pip install "tfscale[tune]"', 2)
    from tfscale.tuning.judging import SearchError

    try:
        if report_only:
            from tfscale.tuning.report import existing

            report, settings = existing(settings)
            settings.home.mkdir(parents=True, exist_ok=True)  # Another machine's may lie elsewhere.
            report.write()
        else:
            from tfscale.tuning.searching import search

            report = search(space, words, flags, settings, notify=_show)
    except KeyboardInterrupt as stop:
        _say("stopped; the same command goes on with it", 0)
        return 128 + getattr(signal.Signals, str(stop), signal.SIGINT)
    except SearchError as error:
        return _say(str(error), 1)
    except (ValueError, OSError) as error:
        return _say(str(error), 2)
    except optuna.exceptions.StorageInternalError as error:
        from tfscale.tuning.storage import shown, way_out

        cause = error.__cause__ or error
        out = way_out(cause, settings) or "the same command goes on with the search"
        said = str(cause).partition("\n")[0]
        return _say(f"the storage {shown(settings)} fails: {said}; {out}", 1)
    return finish(report, settings)


def finish(report, settings):
    """Shows the table, draws the plots, and names the best run; returns the exit code."""
    _show(f"\n{report.table()}\n")
    if settings.plots:
        _plot(report, settings)
    _show(f"results: {settings.home / 'results.json'}, results.csv")
    best = report.best
    if best is None:
        return _say("no trial has succeeded", 1)
    _show(f"best: trial {best['number']}, {settings.metric} {best['value']:.6g}. To run it:")
    _show(f"  sh {shlex.quote(str(settings.home / 'best.sh'))}   (takes more flags), which is")
    _show(f"  {best['command']}")
    return 0


def _plot(report, settings):
    os.environ.setdefault("MPLBACKEND", "Agg")
    try:
        from tfscale.tuning.plots import plot

        plots = plot(report.study, settings.metric, settings.home / "plots")
        _show(f"plots: {', '.join(map(str, plots)) or 'none yet'}")
    except ImportError:
        _show('no plots: pip install "tfscale[plots]"')


def _show(text):
    print(text, flush=True)


def _say(text, code):
    print(f"error: {text}" if code else text, file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
