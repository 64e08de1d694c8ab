"""What an exchange of gradients costs, before it is run: ring, tree, 2-D, grid, compressed."""

from tfscale._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Calibration": "tfscale.distribute.cost_model.calibration",
        "Cluster": "tfscale.distribute.cost_model.cluster",
        "Costs": "tfscale.distribute.cost_model.costs",
        "Measurement": "tfscale.distribute.cost_model.calibration",
        "Method": "tfscale.distribute.cost_model.method",
        "Prediction": "tfscale.distribute.cost_model.prediction",
        "calibrate": "tfscale.distribute.cost_model.calibration",
        "predict": "tfscale.distribute.cost_model.prediction",
    },
)
