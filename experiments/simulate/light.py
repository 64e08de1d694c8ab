"""An illustration: four published rows of a 128-GPU run, redrawn with two fitted constants.

The rows are quoted from memory of a talk about Tencent's Light (Shi et al., 2020,
https://arxiv.org/abs/2010.10458) and were never checked against a source. They show how a
schedule of resolutions and compression is drawn with the model; they prove nothing about it.
"""

import dataclasses

import numpy as np

from experiments.simulate.networks import network
from experiments.tables import aligned
from tfscale.distribute.cost_model import Cluster, Method, predict
from tfscale.distribute.cost_model.costs import ACCELERATOR

LABEL = "illustration, figures unverified"


@dataclasses.dataclass(frozen=True)
class Row:
    """One phase: pixels, batch and images/s of one GPU, images/s quoted for 128 GPUs."""

    pixels: int
    batch: int
    one_gpu: float
    quoted: float
    compression: str


ROWS = (
    Row(96, 256, 4400, 366_208, "topk"),
    Row(128, 256, 3010, 269_696, "float16"),
    Row(224, 256, 1240, 131_712, "float16"),
    Row(288, 128, 710, 72_960, "float16"),
)
CLUSTER = Cluster(16, 8, 25e9)


def redraw(rows=ROWS, cluster=CLUSTER):
    """Returns ``(images/s for each row, hidden share, seconds per step)``.

    ::

        step = compute + (1 - hidden share) exchange + seconds per step

    Both constants come from least squares on these rows, so that the fit has two degrees of
    freedom left.
    """
    sizes = network("resnet50").gradient_bytes()
    compute = np.array([row.batch / row.one_gpu for row in rows])
    step = np.array([row.batch * cluster.replicas / row.quoted for row in rows])
    exchange = np.array(
        [
            predict(cluster, Method(compression=row.compression), sizes, costs=ACCELERATOR).seconds
            for row in rows
        ]
    )
    # Relative errors: every phase counts the same.
    factors = np.stack([exchange, np.ones(len(rows))], axis=1) / step[:, np.newaxis]
    (exposed, fixed), *_ = np.linalg.lstsq(factors, (step - compute) / step, rcond=None)
    exposed, fixed = float(np.clip(exposed, 0, 1)), max(0.0, float(fixed))
    drawn = [
        row.batch * cluster.replicas / float(c + exposed * e + fixed)
        for row, c, e in zip(rows, compute, exchange, strict=True)
    ]
    return drawn, 1 - exposed, fixed


def describe(rows=ROWS, cluster=CLUSTER):
    """Returns the lines of the illustration; the first and last say what it is."""
    drawn, hidden, fixed = redraw(rows, cluster)
    cells = [("pixels", "batch/GPU", "1 GPU", "128 GPUs quoted", "scaling", "drawn", "difference")]
    for row, images in zip(rows, drawn, strict=True):
        cells.append(
            (
                f"{row.pixels} ({row.compression})",
                f"{row.batch}",
                f"{row.one_gpu:,.0f}",
                f"{row.quoted:,.0f}",
                f"{row.quoted / row.one_gpu / cluster.replicas:.0%}",
                f"{images:,.0f}",
                f"{images / row.quoted - 1:+.1%}",
            )
        )
    return [
        f"Light, 16 x 8 GPUs at 25 Gbit/s ({LABEL})",
        aligned(cells),
        f"two constants were fitted to these very rows: {hidden:.0%} of the exchange hidden, "
        f"{fixed * 1e3:.0f} ms more for each step.",
        "The rows are quoted from memory of a talk and unverified, so their agreement with the "
        "drawn ones is no evidence for the model. Use --validate for evidence.",
    ]
