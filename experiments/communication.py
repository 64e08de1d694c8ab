"""How a run's gradients travel: its flags as an all-reduce and a schedule of compression."""


def all_reduce(run):
    """The all-reduce of a `RunConfig`, with the compression that the run begins with."""
    from tfscale.distribute import Hierarchical2DAllReduce

    phases = compression_phases(run)
    return Hierarchical2DAllReduce(
        compression=phases[0],
        bucket_bytes=run.bucket_bytes,
        streams=run.streams,
        worker_grid=run.worker_grid,
    )


def compression_phases(run):
    """``{epoch, from 0: compressor}`` of a `RunConfig`, as `CompressionSchedule` takes it."""
    from tfscale.distribute import TopK, Uncompressed, top_k_warmup

    dense = Uncompressed(momentum=run.compression_momentum)
    if run.compression == "none":
        return {0: dense}
    first, last = run.compression_epochs or (1, run.epochs)
    phases = {0: dense, first - 1: run.compression}
    if run.compression == "topk":
        ratios = top_k_warmup(run.compression_ratio, steps=run.compression_warmup_epochs)
        for epoch, ratio in enumerate(ratios, start=first - 1):
            phases[epoch] = TopK(ratio, momentum=run.compression_momentum)
    # Nothing ends with the run's last epoch: a longer run then goes on as it was.
    return phases | ({last: dense} if last < run.epochs else {})


def method(run, epoch):
    """The cost model's `Method` of what is in force in an epoch, from 0, of a `RunConfig`."""
    from tfscale.distribute.cost_model import Method

    phases = compression_phases(run)
    compressor = phases[max(start for start in phases if start <= epoch)]
    ratio = getattr(compressor, "ratio", None)
    name = "topk" if ratio else compressor if isinstance(compressor, str) else None
    return Method(
        "2d" if run.worker_grid is None else "grid",
        name,
        bucket_bytes=run.bucket_bytes,
        streams=run.streams,
        worker_grid=run.worker_grid,
        **({"ratio": ratio} if ratio else {}),
    )
