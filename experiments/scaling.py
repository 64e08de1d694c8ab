"""Batch, learning rate and warm-up of a run on the replicas that it has: they change here only.

A recipe is meant for a number of replicas. On another number each replica keeps its batch, so the
global batch changes, and learning rate and warm-up change with it:

    sgd     rate * batch / reference                        warm-up in epochs as it was
    lars    rate * table(batch) / table(reference)          warm-up in the same way

The rule of SGD is that of Goyal et al. (https://arxiv.org/abs/1706.02677). For LARS there is no
formula that holds; the table is that of Google's ResNet-50 for TPUs (github.com/tensorflow/tpu),
by global batch. Below 4,096, which it does not speak of, rates here follow the square root
of the batch; the reference points of MLPerf at 1,632 and 3,264 (rates 7.4 and 10.5, against 10 at
4,096) lie somewhat above that. Momentum and weight decay stay.
"""

import dataclasses
import math
import os

from experiments.run_checks import SettingsError
from tfscale.topology import Topology

_DEVICES = "TFSCALE_DEVICES_PER_WORKER"
# Least global batch, peak learning rate, epochs of warm-up.
_LARS_TABLE = ((65536, 35.6, 40.0), (32768, 32.0, 14.0), (16384, 25.0, 5.0), (0, 10.0, 5.0))
_LARS_LEAST = 4096


def lars_table(batch):
    """Returns `(peak learning rate, epochs of warm-up)` of LARS for a global batch."""
    rate, warmup = next(row[1:] for row in _LARS_TABLE if batch >= row[0])
    return rate * min(1.0, math.sqrt(batch / _LARS_LEAST)), warmup


def factors(optimizer, reference, batch):
    """Returns what to multiply learning rate and warm-up by when the batch changes."""
    if optimizer == "sgd":
        return batch / reference, 1.0
    (rate, warmup), (new_rate, new_warmup) = lars_table(reference), lars_table(batch)
    return new_rate / rate, new_warmup / warmup


def expected_topology(run, cluster):
    """Returns what can be told of a run's replicas before TensorFlow loads.

    Args:
        run: `RunConfig`.
        cluster: `tfscale.cluster.ClusterConfig`.

    Returns:
        `Topology`, of a dry run always; None where TensorFlow has to look for the devices.

    Raises:
        SettingsError: if the number of devices in the environment is none, or the grid does not
            hold the workers.
    """
    text = os.environ.get(_DEVICES)
    if text and not (text.strip().isdecimal() and int(text)):
        raise SettingsError(f"{_DEVICES}={text!r} must be a whole number of at least 1")
    workers, devices = cluster.num_workers, int(text) if text else None
    if run.dry_run:
        workers = run.assumed_workers or workers
        devices = run.assumed_devices_per_worker or devices or 1
    elif run.strategy in ("one_device", "tpu"):  # The variable says nothing of their replicas.
        devices = None
    try:
        return devices and Topology(workers, devices, run.worker_grid)
    except ValueError as error:
        raise SettingsError(f"--{error}") from None


def for_replicas(run, topology):
    """Returns the run as it is on the replicas of a `Topology`, and what changed.

    Args:
        run: `RunConfig`.
        topology: `tfscale.topology.Topology`.

    Returns:
        `(RunConfig, str or None)`: with `global_batch_size` and `norm_group_size` in place of
        `per_replica_batch_size` and `norm_span`; the line is None where nothing changed.

    Raises:
        SettingsError: if a batch cannot be shared out evenly to the replicas, has too few
            examples for the micro-batches, or the replicas cannot form the groups of batch norm.

    Example:
        >>> run = RunConfig(per_replica_batch_size=16, global_batch_size=64)
        >>> for_replicas(run, Topology(1, 2))[0].global_batch_size
        32
    """
    replicas, each = topology.num_replicas, run.per_replica_batch_size
    before = run.reference_batch_size or run.global_batch_size
    batch = each * replicas if each else run.global_batch_size
    flag = f"--per_replica_batch_size={each}" if each else f"--global_batch_size={batch}"
    _check_share(run, flag, batch, replicas)
    changed = {"global_batch_size": batch, "per_replica_batch_size": None}
    rates = {}
    if run.reference_batch_size is not None:
        changed["reference_batch_size"] = batch
    if batch != before:
        if run.reference_batch_size is not None:
            rates = _rates(run, before, batch)
        changed |= rates
        if run.phase_batch_sizes:
            changed["phase_batch_sizes"] = _phase_batches(run, before, batch, replicas)
    sizes = changed.get("phase_batch_sizes", run.phase_batch_sizes)
    for size in sizes or ():
        _check_share(
            run, f"--phase_batch_sizes={','.join(map(str, sizes))}, of which {size}", size, replicas
        )
    line = _line(run, before, batch, replicas, rates)
    if run.norm_span is not None:
        examples = max(1, batch // replicas // run.micro_batches)
        changed["norm_group_size"] = group_of(run.norm_span, examples, topology)
        changed["norm_span"] = None
    else:
        try:
            topology.check_group_size(run.norm_group_size)
        except ValueError as error:
            raise SettingsError(f"--norm_group_size={run.norm_group_size}: {error}") from None
    return dataclasses.replace(run, **changed), line


def _check_share(run, flag, batch, replicas):
    """Raises SettingsError unless a batch gives each replica as many examples, and enough."""
    if batch % replicas:
        raise SettingsError(
            f"{flag}: {batch} examples cannot be shared out evenly to {replicas} replicas; "
            f"{-(-batch // replicas) * replicas} can"
        )
    each = batch // replicas
    if each < run.micro_batches:
        raise SettingsError(
            f"--micro_batches={run.micro_batches}: {flag} has only {each} for each of the replicas "
            f"({replicas}); take at most {each} micro-batches, or a larger batch"
        )


def group_of(span, examples, topology):
    """Returns how many replicas share batch-norm statistics, so that at most `span` examples do.

    A group lies inside a worker or is made of whole workers, and divides the replicas.

    Args:
        span: `int`, examples.
        examples: `int`, of each replica.
        topology: `tfscale.topology.Topology`.

    Example:
        >>> group_of(64, 16, Topology(workers=256, devices_per_worker=8))
        4
    """
    devices, workers = topology.devices_per_worker, topology.workers
    sizes = [n for n in range(1, devices + 1) if devices % n == 0]
    sizes += [devices * n for n in range(2, workers + 1) if workers % n == 0]
    return max((size for size in sizes if size * examples <= span), default=1)


def _rates(run, before, batch):
    """The fields of learning rate and warm-up for another batch."""
    by, warmup_by = factors(run.optimizer, before, batch)
    if run.learning_rate_values is None:
        found = {"peak_learning_rate": run.peak_learning_rate * by}
        # The default may not be given a value where it has no effect.
        return found | {"warmup_epochs": run.warmup_epochs * warmup_by}
    values, epochs = run.learning_rate_values, run.learning_rate_epochs
    peak = epochs[values.index(max(values))]
    found = {
        "learning_rate_values": tuple(value * by for value in values),
        "learning_rate_epochs": _moved(epochs, peak, peak * warmup_by, run.epochs),
    }
    if run.momentum_epochs:
        found["momentum_epochs"] = _moved(run.momentum_epochs, peak, peak * warmup_by, run.epochs)
    return found


def _moved(epochs, peak, to, end):
    """Knots stretched so that `peak` comes to lie at `to`, while 0 and `end` stay."""
    if peak in (0, end) or to >= end:
        return epochs
    return tuple(
        epoch * to / peak if epoch <= peak else end - (end - epoch) * (end - to) / (end - peak)
        for epoch in epochs
    )


def _phase_batches(run, before, batch, replicas):
    """Each phase's batch in proportion, a multiple of the replicas and of enough examples."""
    return tuple(
        max(run.micro_batches, round(size * batch / before / replicas)) * replicas
        if size < before
        else batch
        for size in run.phase_batch_sizes
    )


def _line(run, before, batch, replicas, rates):
    """What changed, as one line; None where nothing did."""
    meant = run.reference_replicas or replicas
    if batch == before and replicas == meant:
        return None
    place = f"{replicas} replicas" + (f" in place of {meant}" if replicas != meant else "")
    each = f"{-(-batch // replicas)} each"
    if batch == before:
        return f"{place}: batch {batch} as it was ({each})"
    parts = [f"{place}: batch {before} -> {batch} ({each})"]
    if not rates:
        peak = run.base_learning_rate
        if run.learning_rate_values is None:
            parts.append(f"learning rate {peak * before / 256:.4g} -> {peak * batch / 256:.4g}")
        return ", ".join(parts)
    values = run.learning_rate_values
    if values is None:
        old, new = run.peak_learning_rate, rates["peak_learning_rate"]
        warmup, new_warmup = run.warmup_epochs, rates["warmup_epochs"]
    else:
        place = values.index(max(values))
        old, new = values[place], rates["learning_rate_values"][place]
        warmup = run.learning_rate_epochs[place]
        new_warmup = rates["learning_rate_epochs"][place]
    rule = "linearly" if run.optimizer == "sgd" else "as Google's table of LARS has it by batch"
    parts.append(f"learning rate {old:.4g} -> {new:.4g}")
    parts.append(f"warm-up {warmup:.3g} -> {new_warmup:.3g} epochs ({rule})")
    return ", ".join(parts)
