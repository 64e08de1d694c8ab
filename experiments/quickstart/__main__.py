"""The quickstart: prepare a small data set, train on 2 workers x 2 devices, show a summary.

`sh launch/quickstart.sh` sets up the environment and calls this; flags it does not know itself
go to the training program (`python experiments/train.py --help` lists them).
"""

import argparse
import json
import os
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def main(argv=None):
    # TensorFlow's own remarks about the machine would bury the progress display.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    args, train_flags = arguments(sys.argv[1:] if argv is None else argv)
    model_dir = Path(args.model_dir)
    summary_file = model_dir / "summary.json"
    config = {"digits": "quickstart", "fashion_mnist": "fashion_mnist"}[args.dataset]
    config = "folder" if args.data_dir else config
    try:
        records = prepare(args, model_dir)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    before = summary_file.stat().st_mtime if summary_file.exists() else None
    code = launch(args, config, records, train_flags)
    if code:
        return code
    show(summary_file, args, unchanged=before and before == summary_file.stat().st_mtime)
    return 0


def arguments(argv):
    parser = argparse.ArgumentParser(
        prog="sh launch/quickstart.sh",
        description=__doc__.splitlines()[0],
        epilog="Any other --flag=value goes to the training program, for example --epochs=5 or "
        "--precision=float32; `python experiments/train.py --help` lists them.",
    )
    parser.add_argument(
        "--dataset",
        choices=("digits", "fashion_mnist"),
        default="digits",
        help="scikit-learn's handwritten digits, no download (default), or Fashion-MNIST",
    )
    parser.add_argument(
        "--data_dir",
        help="your own images, one folder per class (or shards made by tfscale.data.prepare)",
    )
    parser.add_argument(
        "--model_dir", default="runs/quickstart", help="run folder (default: %(default)s)"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument(
        "--devices_per_worker", type=int, default=2, help="logical CPU devices in each (default: 2)"
    )
    parser.add_argument(
        "--on_error",
        choices=("raise", "skip"),
        default="raise",
        help="what a corrupt image does: end the run, or be named and left out (default: raise)",
    )
    args, rest = parser.parse_known_args(argv)
    stray = [a for a in rest if not a.startswith("--")]
    if stray:
        parser.error(f"unexpected argument {stray[0]!r}; flags are written --name=value")
    return args, rest


def prepare(args, model_dir):
    """The folder of records: the user's own, or made of their images; None for built-in sets.

    The training program writes those itself.
    """
    if args.data_dir is None:
        return None
    source = Path(args.data_dir)
    if list(source.glob("*.tfrecord*")) or list(source.glob("*.index.json")):
        return source
    from tfscale.data.prepare import prepare as prepare_folder

    prepare_folder(str(source), str(model_dir / "records"), on_error=args.on_error)
    return model_dir / "records"


def launch(args, config, records, train_flags):
    from launch.local import main as launch_local

    return launch_local(
        [
            f"--workers={args.workers}",
            f"--devices_per_worker={args.devices_per_worker}",
            "--show=leader",
            str(ROOT / "experiments" / "train.py"),
            "--",
            f"--config={config}",
            *([f"--data_dir={records}"] if records else []),
            f"--model_dir={args.model_dir}",
            f"--on_error={args.on_error}",
            *train_flags,
        ]
    )


def show(summary_file, args, unchanged):
    summary = json.loads(summary_file.read_text())
    python = Path(sys.executable)
    tensorboard = python.parent / "tensorboard"
    replicas = summary["workers"] * summary["devices_per_worker"]
    print()
    if unchanged:
        print("This run was already complete; to start another: --model_dir=runs/another")
    print(f"Accuracy on held-out images  {summary['accuracy']:.4f}")
    speed = summary["images_per_second"]
    print(
        f"Speed                        "
        f"{f'{speed:,.0f} images/s' if speed else 'not measured: too few steps'} "
        f"({summary['workers']} workers x {summary['devices_per_worker']} devices"
        f" = {replicas} replicas)"
    )
    print(f"Global batch                 {summary['global_batch']}")
    print(f"Wall time                    {summary['wall_seconds']:.0f} s")
    print(f"Logs                         {summary['log_dir']}")
    print(f"Checkpoints                  {Path(args.model_dir) / 'checkpoints'}")
    print(f"SavedModel                   {summary['export_dir'] or 'none (--noexport)'}")
    print(f"Summary                      {summary_file}")
    print("\nNext:")
    print(f"  {relative(tensorboard)} --logdir {shlex.quote(str(summary['log_dir']))}")
    print("  sh launch/quickstart.sh --data_dir=DIR --model_dir=runs/mine   # your class folders")
    print("  sh tests/run.sh --fast")


def relative(path):
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path


if __name__ == "__main__":
    sys.exit(main())
