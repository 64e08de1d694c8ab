"""The benchmark's names of methods, as methods of the cost model."""

from experiments.allreduce import methods as benchmark
from tfscale.distribute.cost_model import Method


def method_of(name, bytes_per_pack=None, bucket_bytes=None, streams=None):
    """Returns the cost model's `Method` of a name such as ``2d+int8:streams=4``.

    Besides the benchmark's names there is ``tree``: a pair of binary trees of workers.

    Args:
        name: `str`; ``python -m experiments.allreduce.benchmark --help`` has the grammar.
        bytes_per_pack: `int`, what ``stock:pack=best`` turned out to be; 0 is one pack.
        bucket_bytes, streams: what a measured row says that the name left to the all-reduce's
            defaults.

    Raises:
        ValueError: for an unknown name, a peer's, or ``pack=best`` without a size.
    """
    if name == "tree":
        return Method("tree")
    parsed = benchmark.parse_method(name)
    if parsed.family == "peer":
        raise ValueError(f"{name!r} is a peer of the benchmark; the model knows stock, 2d and tree")
    if parsed.family == "stock":
        pack = parsed.pack if bytes_per_pack is None else bytes_per_pack
        if pack == "best":
            raise ValueError(f"{name!r} is for measuring; say which size, as in stock:pack=4mib")
        # The collectives of TensorFlow's one launcher run one after another.
        return Method("ring", bucket_bytes=pack or None, streams=1)
    given = {
        "bucket_bytes": bucket_bytes or parsed.bucket,
        "streams": streams or parsed.streams,
        "ratio": parsed.ratio,
    }
    return Method(
        "grid" if parsed.grid else "2d",
        parsed.compression,
        worker_grid=parsed.grid,
        **{key: value for key, value in given.items() if value is not None},
    )
