"""1-D against 2-D summation on a square mesh of replicas, up to thousands of them."""

import dataclasses
import math

from experiments.tables import aligned

SIDES = (2, 4, 8, 16, 32, 64)


@dataclasses.dataclass(frozen=True)
class Point:
    """One size of the mesh.

    Attributes:
        replicas: `int`, n x n.
        hops_1d, hops_2d: messages that follow one another.
        seconds_1d, seconds_2d: of one exchange.
    """

    replicas: int
    hops_1d: int
    hops_2d: int
    seconds_1d: float
    seconds_2d: float


def mesh_curve(total_bytes, seconds_per_byte, seconds_per_hop, sides=SIDES):
    """Returns a `Point` for each n: one ring through n x n replicas, and rings of n per axis.

    ::

        1-D   2 (n^2 - 1) hops    2 (n^2 - 1) / n^2 bytes on each link
        2-D   4 (n - 1) hops      2 (n^2 - 1) / n^2 bytes on the links of the two axes together

    In 2-D half of the tensors are summed along one axis first and the other half along the other,
    so that both axes carry data all the time: each link carries half of the bytes.

    Args:
        total_bytes: of the gradients.
        seconds_per_byte: of one link.
        seconds_per_hop: latency of one message.

    References:
        Ying et al., 2018, section on 2-D gradient summation
        (https://arxiv.org/abs/1811.06992).
    """
    points = []
    for n in sides:
        replicas = n * n
        sent = 2 * (replicas - 1) / replicas * total_bytes
        hops_1d, hops_2d = 2 * (replicas - 1), 4 * (n - 1)
        points.append(
            Point(
                replicas,
                hops_1d,
                hops_2d,
                hops_1d * seconds_per_hop + sent * seconds_per_byte,
                hops_2d * seconds_per_hop + sent / 2 * seconds_per_byte,
            )
        )
    return points


def table(points):
    """Returns the points as text."""
    cells = [("replicas", "hops 1-D", "hops 2-D", "1-D", "2-D", "1-D / 2-D")]
    for p in points:
        side = math.isqrt(p.replicas)
        cells.append(
            (
                f"{side} x {side} = {p.replicas}",
                f"{p.hops_1d}",
                f"{p.hops_2d}",
                f"{p.seconds_1d * 1e3:.1f} ms",
                f"{p.seconds_2d * 1e3:.1f} ms",
                f"{p.seconds_1d / p.seconds_2d:.1f}",
            )
        )
    return aligned(cells)
