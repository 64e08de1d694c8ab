"""How gradients are exchanged: which bytes cross a worker's link, in how many steps."""

import dataclasses
import math

ALGORITHMS = ("ring", "tree", "2d", "grid")
COMPRESSIONS = (None, "bfloat16", "float16", "int8", "topk")
# One float32 scale for this many int8 values.
INT8_BLOCK = 256
# So many workers sum bfloat16 as it is, in a ring.
BFLOAT16_RING_UP_TO = 8
# Top-k leaves smaller tensors as they are.
TOP_K_MIN_BYTES = 4 * 4096


@dataclasses.dataclass(frozen=True)
class Method:
    """An all-reduce of buckets.

    ========  ==========================  ==================  =======================
    name      devices that take part      steps               bytes sent per worker
    ========  ==========================  ==================  =======================
    ``ring``  all N D in one ring         2 (N D - 1)         2 (N D - 1) / (N D)
    ``tree``  one column of N workers     2 ceil(log2 N)      2
    ``2d``    D columns of N workers      2 (N - 1)           2 (N - 1) / N
    ``grid``  R x C workers, C in a row   C + 2 (R - 1)       2 (N - 1) / N
    ========  ==========================  ==================  =======================

    Bytes are in units of the bucket's. ``ring`` is TensorFlow's own; ``tree`` a pair of binary
    trees that carry half of the bucket each. Compression applies between workers: halves and
    int8 travel by an all-to-all and a direct exchange, 2 steps, at 1/2 and (1 + 4 / 256) / 4 of
    the bytes (bfloat16 between at most eight workers by a ring); top-k by a direct exchange
    alone, 1 step and ``2 ratio (N - 1)``, which grows with N until it is no less than float32's.
    Tensors of fewer than 4096 elements are not sparsified. On a grid halves compress rows and
    columns, int8 and top-k the columns only.

    Args:
        algorithm: one of the above. Defaults to ``"2d"``.
        compression: None (default), ``"bfloat16"``, ``"float16"``, ``"int8"`` or ``"topk"``.
        ratio: `float`, share of the values that top-k keeps. Defaults to 0.01.
        bucket_bytes: `int`; ``"adaptive"``; or None for one message that holds everything, as
            TensorFlow's ``bytes_per_pack=0`` does. Defaults to 4 MiB.
        streams: `int`, buckets in flight. Defaults to 4.
        worker_grid: ``(rows, columns)`` for ``grid``, else None.

    Raises:
        ValueError: for an argument out of range, or compression of a ring or tree.

    Example:
        >>> Method(compression="bfloat16").sent_share(Cluster(4, 2))
        0.75

    References:
        Ying et al., 2018 (https://arxiv.org/abs/1811.06992); Mikami et al., 2018
        (https://arxiv.org/abs/1811.05233); Sanders, Speck and Träff, Two-tree algorithms for
        full bandwidth broadcast, reduction and scan, 2009.
    """

    algorithm: str = "2d"
    compression: str | None = None
    ratio: float = 0.01
    bucket_bytes: int | str | None = 4 << 20
    streams: int = 4
    worker_grid: tuple | None = None

    def __post_init__(self):
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"unknown algorithm {self.algorithm!r}; choose one of {ALGORITHMS}")
        if self.compression not in COMPRESSIONS:
            raise ValueError(
                f"unknown compression {self.compression!r}; choose one of {COMPRESSIONS}"
            )
        if self.compression and self.algorithm in ("ring", "tree"):
            raise ValueError(f"{self.algorithm} has no compression; 2d and grid have")
        if not 0 < self.ratio <= 1:
            raise ValueError(f"ratio must be above 0 and at most 1, got {self.ratio!r}")
        size = self.bucket_bytes
        if not (size in (None, "adaptive") or (isinstance(size, int) and size > 0)):
            raise ValueError(f"bucket_bytes must be a positive int, 'adaptive' or None: {size!r}")
        if not isinstance(self.streams, int) or self.streams < 1:
            raise ValueError(f"streams must be a positive int, got {self.streams!r}")
        if (self.worker_grid is not None) != (self.algorithm == "grid"):
            raise ValueError(
                f"worker_grid belongs to the algorithm 'grid': got {self.worker_grid!r} with "
                f"{self.algorithm!r}"
            )

    def has_work_between_rounds(self, cluster):
        """Whether a worker has to sum between two messages of one bucket."""
        by_two_exchanges = self.compression in ("bfloat16", "float16", "int8")
        return self.algorithm == "grid" or (
            by_two_exchanges and not self._travels_by_ring(cluster.workers)
        )

    def sent_share(self, cluster):
        """Returns the bytes that a worker sends over its link per float32 byte of a bucket."""
        workers = cluster.workers
        if workers == 1:
            return 0.0
        if self.algorithm == "ring":
            return 2 * (cluster.replicas - 1) / cluster.replicas
        if self.algorithm == "tree":
            return 2.0
        if self.algorithm == "2d":
            return self._compressed_share(workers)
        rows, columns = self.grid_of(cluster)
        along_rows = 2 * (columns - 1) / columns
        if self.compression in ("bfloat16", "float16"):
            along_rows /= 2
        return along_rows + self._compressed_share(rows) / columns

    def direct_share(self, cluster):
        """Returns how much of `sent_share` goes to several others at once, not to a neighbour.

        Of a direct exchange among n workers that is ``(n - 2) / (n - 1)``: between two there is
        but one connection.
        """
        if self.algorithm in ("ring", "tree") or cluster.workers == 1:
            return 0.0
        if self.algorithm == "2d":
            return self._direct_column_share(cluster.workers)
        rows, columns = self.grid_of(cluster)
        # float32 is scattered along the row by an all-to-all and gathered by a ring; halves go
        # by direct exchanges both times. Either way that is one vector of float32.
        along_row = _several((columns - 1) / columns, columns)
        return along_row + self._direct_column_share(rows) / columns

    def _direct_column_share(self, workers):
        if workers == 1 or self._travels_by_ring(workers):
            return 0.0
        return _several(self._compressed_share(workers), workers)

    def _compressed_share(self, workers):
        if self.compression == "topk":
            # Eight bytes for a value and its place, against four for the value alone. Where
            # that is no shorter, the whole vector travels.
            return 2 * min(self.ratio, 1 / workers) * (workers - 1)
        width = {None: 1, "int8": (1 + 4 / INT8_BLOCK) / 4}.get(self.compression, 1 / 2)
        return width * 2 * (workers - 1) / workers

    def steps(self, cluster):
        """Returns how many messages of one bucket follow one another."""
        workers = cluster.workers
        if workers == 1:
            return 0
        if self.algorithm == "ring":
            return 2 * (cluster.replicas - 1)
        if self.algorithm == "tree":
            return 2 * math.ceil(math.log2(workers))
        if self.algorithm == "2d":
            return self._column_steps(workers)
        rows, columns = self.grid_of(cluster)
        # An all-to-all and a gather along the row, or a direct exchange; between them the column.
        along_row = 2 if self.compression in ("bfloat16", "float16") else columns
        return (along_row if columns > 1 else 0) + self._column_steps(rows)

    def _column_steps(self, workers):
        if workers == 1:
            return 0
        if self._travels_by_ring(workers):
            return 2 * (workers - 1)
        return 1 if self.compression == "topk" else 2

    def _travels_by_ring(self, workers):
        narrow_sums = self.compression == "bfloat16" and workers <= BFLOAT16_RING_UP_TO
        return self.compression is None or narrow_sums or self._travels_whole(workers)

    def _travels_whole(self, workers):
        return self.compression == "topk" and self.ratio * workers >= 1

    def for_tensor(self, size):
        """Returns the method by which a tensor of `size` bytes travels: this, or uncompressed."""
        if self.compression == "topk" and size < TOP_K_MIN_BYTES:
            return dataclasses.replace(self, compression=None)
        return self

    def grid_of(self, cluster):
        """Returns ``(rows, columns)``; raises ValueError unless they hold the workers."""
        rows, columns = self.worker_grid
        if rows * columns != cluster.workers:
            raise ValueError(
                f"worker_grid ({rows}, {columns}) has {rows * columns} cells, but there are "
                f"{cluster.workers} workers"
            )
        return rows, columns


def _several(share, workers):
    """What of a share that is sent to each of the others equally does not go to the first one."""
    return share * (workers - 2) / (workers - 1) if workers > 1 else 0.0
