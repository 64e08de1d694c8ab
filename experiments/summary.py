"""What a run leaves for others to read: ``summary.json``."""

import json
from pathlib import Path

from experiments import inputs, outputs


def of(run, topology, results, speeds, skipped_records, seconds):
    """Returns the summary of a run as a `dict`.

    Args:
        run: `RunConfig`.
        topology: `Topology` it ran on.
        results: `dict` of `tfscale.evaluation.evaluate`.
        speeds: `list` of `tfscale.callbacks.Throughput`, of each phase.
        skipped_records: `int`, of all workers.
        seconds: `float`, the whole time.
    """
    folder = Path(run.model_dir)
    # Not measured where there were too few steps after the first ones, which trace the graph.
    measured = [speed.images_per_second if speed.epochs else None for speed in speeds]
    return {
        "accuracy": results["top_1"],
        "top_5": results["top_5"],
        "loss": results["loss"],
        "images_per_second": measured[-1],
        "images_per_second_of_phases": measured,
        "workers": topology.workers,
        "devices_per_worker": topology.devices_per_worker,
        "global_batch": run.global_batch_size,
        "epochs": run.epochs,
        "skipped_records": skipped_records,
        "input": inputs.summary(run),
        "wall_seconds": seconds,
        "export_dir": str(folder / "export") if run.export else None,
        "log_dir": str(folder / "logs"),
    }


def write(path, summary):
    """Writes a summary to a `Path`: whole, or not at all."""
    outputs.write_whole(path, json.dumps(summary, indent=2) + "\n")


def add(path, **facts):
    """Adds facts to a summary that was written before."""
    write(path, {**json.loads(path.read_text()), **facts})
