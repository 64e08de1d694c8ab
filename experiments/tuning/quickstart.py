"""What is worth searching in the quickstart's run.

    python -m experiments.quickstart.datasets digits runs/digits
    python -m tfscale.tuning experiments/train.py --trials=12 --folder=runs/tuning --prune_from=5 \\
        --space experiments.tuning.quickstart:SPACE -- \\
        --config=quickstart --data_dir=runs/digits --epochs=8 --noexport
"""

from tfscale.tuning import choice, log_uniform, uniform

SPACE = {
    "base_learning_rate": log_uniform(4, 128),
    "momentum": uniform(0.8, 0.97),
    "warmup_epochs": uniform(0, 2, 0.5),
    "label_smoothing": choice(0.0, 0.1),
}


def by_optimizer(trial):
    """Both optimizers, each with its own range of rates, as a function of an Optuna trial."""
    optimizer = trial.suggest_categorical("optimizer", ["lars", "sgd"])
    low, high = {"lars": (4, 128), "sgd": (0.01, 1)}[optimizer]
    return {
        "optimizer": optimizer,
        "base_learning_rate": trial.suggest_float(f"{optimizer}_rate", low, high, log=True),
        "momentum": trial.suggest_float("momentum", 0.8, 0.97),
    }
