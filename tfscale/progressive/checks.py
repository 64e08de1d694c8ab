"""What is refused before a run of phases, and before a phase of it, begins."""

import tensorflow as tf

from tfscale._keras import keras
from tfscale.callbacks.checkpoint import CheckpointAndResume
from tfscale.distribute import _tf_private

_OF_THE_PHASE = {
    "x": "dataset",
    "y": "dataset",
    "steps_per_epoch": "steps_per_epoch",
    "validation_data": "validation_data",
    "validation_steps": "validation_steps",
}
_WITHOUT_MEANING = (
    "epochs", "initial_epoch", "batch_size", "validation_batch_size", "validation_split"
)  # fmt: skip


def listed(callbacks):
    if callbacks is not None and not isinstance(callbacks, (list, tuple)):
        raise TypeError(f"callbacks is a list, got {callbacks!r}: write callbacks=[...]")
    return list(callbacks or ())


def check_arguments(fit_kwargs):
    for name in fit_kwargs:
        if name in _OF_THE_PHASE:
            raise ValueError(
                f"{name} differs from phase to phase: data(phase, step) gives it, as "
                f"PhaseData({_OF_THE_PHASE[name]}=...)"
            )
        if name in _WITHOUT_MEANING:
            raise ValueError(
                f"{name} has no meaning in a run of phases: each Phase has its epochs and its "
                "batch, and PhaseData the datasets"
            )


def check_input(model, phases):
    sizes = [phase.image_size for phase in phases]
    for tensor in model.inputs or ():
        if tensor.shape.rank != 4:
            continue
        sides = _sides(tensor.shape)
        if any(side is not None and side != size for side in sides for size in sizes):
            raise ValueError(
                f"the model takes pictures of {sides[0]} x {sides[1]} pixels, but the phases have "
                f"{', '.join(map(str, sizes))}. Build it for pictures of any size: with "
                "input_shape=(None, None, channels) and pooling over the whole picture before "
                "its last layer"
            )


def check_micro_batches(model, phases, replicas):
    parts = getattr(vars(model).get("train_step"), "micro_batches", 1)
    for phase in phases:
        if phase.global_batch_size < parts * replicas:
            raise ValueError(
                f"phase {phase.number + 1}: a batch of {phase.global_batch_size} on {replicas} "
                f"replicas cannot be run in {parts} micro-batches (accumulate_gradients): it "
                f"needs {parts * replicas} examples, or fewer micro-batches"
            )


def check_callbacks(callbacks, resume):
    if resume is not None and not isinstance(resume, CheckpointAndResume):
        raise TypeError(f"resume must be a CheckpointAndResume, got {resume!r}")
    for callback in callbacks:
        if isinstance(callback, (CheckpointAndResume, keras.callbacks.BackupAndRestore)):
            raise ValueError(
                f"{type(callback).__name__} among the callbacks does not know of phases: give "
                "resume=CheckpointAndResume(...)"
            )


def check_labels(model, parts, phase):
    """Refuses data without labels for a model that Keras itself trains with a loss."""
    spec = parts.dataset.element_spec
    has_labels = isinstance(spec, tuple) and len(spec) > 1
    if not has_labels and model.loss and type(model).train_step is keras.Model.train_step:
        raise ValueError(
            f"phase {phase.number + 1}: the model has a loss, but its data has no labels: the "
            f"elements are {spec}, and must be (x, y) or (x, y, weight)"
        )


def check_sizes(parts, phase):
    is_distributed = isinstance(parts.dataset, tf.distribute.DistributedDataset)
    strategy = _tf_private.strategy_of(parts.dataset) if is_distributed else None
    # What is distributed tells of a replica's batch, None where they differ.
    replicas = strategy.num_replicas_in_sync if is_distributed else 1
    for shape in _picture_shapes(parts.dataset):
        sides = _sides(shape)
        if any(side not in (None, phase.image_size) for side in sides):
            raise ValueError(
                f"phase {phase.number + 1} is of {phase.image_size} pixels, but its data has "
                f"pictures of {sides[0]} x {sides[1]}: data(phase, step) must make them of "
                "phase.image_size"
            )
        if shape[0] is not None and shape[0] * replicas != phase.global_batch_size:
            split = f" ({shape[0]} on each of {replicas} replicas)" if is_distributed else ""
            raise ValueError(
                f"phase {phase.number + 1} has a global batch of {phase.global_batch_size}, but "
                f"its data has batches of {shape[0] * replicas}{split}: data(phase, step) must "
                "make them of phase.global_batch_size"
            )


def check_length(parts, phase, step):
    """Refuses a dataset that is known to be too short; others show it only in their last step."""
    if not isinstance(parts.dataset, tf.data.Dataset):
        return
    count, steps = int(parts.dataset.cardinality()), parts.steps_per_epoch
    # Keras starts a dataset of exactly an epoch's batches again in each epoch.
    if 0 <= count < phase.epochs * steps - step and count != steps:
        raise too_short(phase, steps, step + count)


def too_short(phase, steps_per_epoch, end):
    """The error of a phase whose data ends after its step `end`."""
    return ValueError(
        f"phase {phase.number + 1}: its data ends after {end} of the "
        f"{phase.epochs * steps_per_epoch} steps ({phase.epochs} epochs of {steps_per_epoch}). "
        "data(phase, step) must return a dataset of all steps of the phase that are left, as with "
        "repeat(), or a PhaseData of fewer steps_per_epoch"
    )


def _picture_shapes(dataset):
    """The shapes of what a dataset's elements hold of pictures, plain or distributed."""
    specs = tf.nest.flatten(getattr(dataset, "element_spec", None), expand_composites=True)
    shapes = [spec.shape for spec in specs if isinstance(spec, tf.TensorSpec)]
    return [shape for shape in shapes if shape.rank == 4]


def _sides(shape):
    """Height and width of pictures of this shape, None where it is not fixed."""
    first = 1 if keras.backend.image_data_format() == "channels_last" else 2
    return tuple(shape[first : first + 2].as_list())
