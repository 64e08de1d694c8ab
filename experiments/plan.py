"""What a run will do, need and take, before it is started: `--dry_run`.

Model and optimizer are built, nothing is trained. Time is predicted by the cost model of the
exchange (`tfscale.distribute.cost_model`) from speeds that are assumed, and printed.
"""

import math

from experiments import communication, inputs, memory, optimization, scaling
from experiments.rates import format_rate, parse_rate
from experiments.simulate.networks import Network
from experiments.tables import aligned


def show(run, topology):
    """Prints the plan of a `RunConfig` for the replicas of a `Topology`."""
    run, change = scaling.for_replicas(run, topology)
    if change:
        print(change)
    print("\n".join(lines(run, topology)), flush=True)


def lines(run, topology):
    """The plan as lines, of a run on the replicas of a `Topology`."""
    from tfscale import progressive

    phases = inputs.phases(run)
    steps, num_classes = _data(run, topology, phases)
    policy, model, optimizer = _build(run, phases, steps, num_classes)
    rows = progressive.plan(
        phases,
        steps,
        optimization.learning_rate(run, phases, steps),
        optimization.momentum_schedule(run, phases, steps),
    )
    net = network(model)
    exchanges = [_exchange(run, topology, net, row) for row in rows]
    for row in rows:
        row["compression"] = _compression(run, row)
    count = len(model.trainable_variables)
    text = [
        f"{run.model}, {net.parameters:,} parameters in {count} tensors, {policy}; "
        f"{_optimizer(run)}; {topology.workers} workers x {topology.devices_per_worker} devices",
        progressive.plan_table(rows),
        _peak(run),
        "",
        _times(run, topology, rows, exchanges),
        "",
        *memory.lines(run, topology, phases, model, optimizer),
        *_notes(run, topology, exchanges),
    ]
    return text


def _data(run, topology, phases):
    """Steps of an epoch of each phase, and the number of classes."""
    if run.train_images is not None and run.num_classes is not None:
        pictures = inputs.SyntheticPictures(run, topology)
    else:
        try:
            pictures = inputs.pictures(run, topology)
        except FileNotFoundError as error:
            raise ValueError(
                "--dry_run writes no records: say --train_images=N --num_classes=N, or --data_dir "
                f"({error})"
            ) from None
    steps = [pictures.steps_per_epoch(phase.global_batch_size) for phase in phases]
    return steps, pictures.num_classes


def _build(run, phases, steps, num_classes):
    """The policy's name, the model at the size that needs most memory, and its optimizer."""
    from tfscale import keras, precision

    before = keras.mixed_precision.global_policy()
    try:
        policy = precision.set_global_policy(run.precision)
        image_size = memory.largest_of(phases).image_size
        model = optimization.build_model(run, num_classes, image_size)
        optimizer = optimization.build_optimizer(run, phases, steps)
        optimizer.build(model.trainable_variables)
    finally:
        keras.mixed_precision.set_global_policy(before)
    return policy, model, optimizer


def _peak(run):
    """Where the learning rate is highest, which is rarely the end of a phase."""
    values = run.learning_rate_values
    if values is not None:
        peak, epoch = max(values), run.learning_rate_epochs[values.index(max(values))]
    else:
        peak, epoch = optimization.peak_rate(run), run.warmup_epochs
    return f"learning rate {peak:.4g} at its peak, after {epoch:.3g} epochs"


def network(model):
    """A Keras model as the cost model sees it: tensors, and multiply-adds that end in each."""
    shapes, work = [], []
    for layer in model.layers:
        for variable in layer.trainable_variables:
            shapes.append(tuple(variable.shape))
            is_kernel = len(variable.shape) > 1
            pixels = math.prod(layer.output.shape[1:-1]) if is_kernel else 0
            work.append(math.prod(variable.shape) * pixels)
    return Network(model.name, tuple(shapes), tuple(work))


# ---------------------------------------------------------------------- time


def _speeds(run):
    """Assumed images/s of one device in each phase; None where nothing is assumed."""
    given = run.assumed_images_per_second
    sizes = run.phase_image_sizes or (run.image_size,)
    count = len(run.phase_epochs or (1,))
    if given is None:
        return [None] * count
    if len(given) == 1:
        sizes = sizes if len(sizes) == count else sizes * count
        return [given[0] * (sizes[-1] / size) ** 2 for size in sizes]
    if len(given) != count:
        raise ValueError(
            f"--assumed_images_per_second has {len(given)} values; wanted one, or one for each of "
            f"{count} phases"
        )
    return list(given)


def _exchange(run, topology, net, row):
    """What a phase's steps exchange: `(bytes of its last epoch's steps, seconds of all steps)`."""
    from tfscale.distribute.cost_model import Cluster, predict
    from tfscale.distribute.cost_model.costs import ACCELERATOR

    rate = parse_rate(run.assumed_link) if run.assumed_link else None
    cluster = Cluster(topology.workers, topology.devices_per_worker, rate)
    speed = _speeds(run)[row["phase"] - 1]
    compute = row["global_batch_size"] / topology.num_replicas / speed if speed else None
    sizes, ready = net.gradient_bytes(), net.ready_seconds(compute or 0.0)
    seconds, known = 0.0, {}
    for epoch in range(row["first_epoch"] - 1, row["last_epoch"]):
        method = communication.method(run, epoch)
        if method not in known:
            known[method] = predict(cluster, method, sizes, ready, ACCELERATOR)
        exposed = known[method].exposed_seconds if rate else 0.0
        seconds += row["steps_per_epoch"] * ((compute or 0.0) + exposed)
    return {
        "compute": compute,
        "sent": known[method].bytes_per_link if topology.workers > 1 else 0.0,
        "exposed": exposed,
        "seconds": seconds if compute else None,
        "speed": speed,
    }


def _times(run, topology, rows, exchanges):
    """A table of each phase's batch norm, exchange and time."""
    head = ("phase", "norm span", "images/s a device", "compute", "exposed exchange",
            "MB sent", "time")  # fmt: skip
    cells = [head]
    group = run.norm_group_size or topology.num_replicas
    for row, found in zip(rows, exchanges, strict=True):
        each = row["global_batch_size"] // topology.num_replicas
        part = -(-each // run.micro_batches)
        timed = found["compute"] is not None
        cells.append(
            (
                str(row["phase"]),
                f"{group * part} ({group} x {part})",
                f"{found['speed']:,.0f}" if timed else "?",
                f"{found['compute'] * 1e3:.1f} ms" if timed else "?",
                f"{found['exposed'] * 1e3:.1f} ms" if run.assumed_link else "not counted",
                f"{found['sent'] / 1e6:.1f}",
                _duration(found["seconds"]) if timed else "?",
            )
        )
    return aligned(cells)


def _notes(run, topology, exchanges):
    link = "links without limit (--assumed_link), so that no exchange is counted"
    if topology.workers == 1:
        link = "one worker, of which nothing crosses a network"
    elif run.assumed_link:
        link = (
            f"a worker's link of {format_rate(parse_rate(run.assumed_link))} (--assumed_link), and "
            "the cost model's constants for accelerators, which nobody measured"
        )
    if exchanges[0]["compute"] is None:
        return [
            "no time is predicted without --assumed_images_per_second, the training speed of one "
            "device",
            f"assumed: {link}",
        ]
    total = sum(found["seconds"] for found in exchanges)
    given = ",".join(f"{value:g}" for value in run.assumed_images_per_second)
    return [
        f"time of all steps: {_duration(total)}; evaluation, input, checkpoints and the start come "
        "on top",
        f"assumed: {given} images/s of one device (--assumed_images_per_second); {link}",
        "MB sent and exposed exchange: of each worker, in a step at the end of the phase",
    ]


def _duration(seconds):
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"


def _compression(run, row):
    """How gradients travel in a phase; where that changes in it, from what to what."""
    names = []
    for epoch in range(row["first_epoch"] - 1, row["last_epoch"]):
        method = communication.method(run, epoch)
        name = method.compression or "none"
        names.append(f"{name} {method.ratio:g}" if name == "topk" else name)
    return names[0] if names[0] == names[-1] else f"{names[0]} -> {names[-1]}"


def _optimizer(run):
    extra = f", average of the weights {run.ema:g}" if run.ema is not None else ""
    return f"{run.optimizer}, weight decay {run.weight_decay:g}{extra}"
