"""`fit`: a run in phases, one `fit` of Keras's for each, one run to everything else."""

import logging

from tfscale._keras import check_model, retrace
from tfscale.callbacks.compression_schedule import CompressionSchedule
from tfscale.distribute.agreement import agree
from tfscale.progressive import checks
from tfscale.progressive.phases import PhaseData, first_epoch, numbered, total_epochs
from tfscale.progressive.run_callbacks import RunCallbacks
from tfscale.progressive.steps import compression_names

_logger = logging.getLogger("tfscale")
# By so much may workers differ in how long their data takes, as where one has it in its cache.
_SECONDS_TO_MAKE_DATA = 600


def fit(model, phases, data, *, callbacks=(), resume=None, verbose="auto", **fit_kwargs):
    """Trains a model in phases, each with pictures, a batch and a compression of its own.

    Weights, the optimizer's slots, `iterations` and averages of the weights (`use_ema`), and what
    compression holds back go on from phase to phase, and so does the learning rate: it is a
    schedule over the steps of the whole run (`steps_at` gives its knots). Epochs are counted over
    the whole run. A line tells of each phase::

        phase 2 of 4: 128 pixels, batch 32768, 11 epochs of 39 steps, uncompressed

    The data of a phase starts anew, with a seed of its own: each record once an epoch. What an
    epoch's last batch leaves over is carried into the next epoch (`tfscale.data`), and at the end
    of a phase dropped.

    Callbacks see one run: `on_train_begin` and `on_train_end` once, epochs and steps that go on,
    `params["epochs"]` of the whole run; `stop_training` ends all phases. What depends on the
    phase, as images/s do on the batch, is given as a function of the phase that makes a callback
    for it: that one sees a `fit` of the phase's epochs.

    Args:
        model: compiled Keras model that takes pictures of any size:
            ``input_shape=(None, None, 3)`` and pooling over the whole picture in the end.
        phases: list of `Phase`.
        data: function of (phase, step) that returns a `PhaseData` whose dataset begins with the
            given step of the phase, from 0. ``phase.seed(seed)`` is the seed for it.
        callbacks: list of Keras callbacks and of functions of a `Phase` that return one; None for
            none.
        resume: `CheckpointAndResume`, to save the run and go on where a killed one was saved, in
            its phase and at its step, equal to the bit; what EarlyStopping and its like among
            `callbacks` remember is saved with it. Phases that have not begun may be
            others than when it was saved.
        verbose: Keras's. Defaults to ``"auto"``.
        **fit_kwargs: other arguments of Keras's `fit`, such as ``validation_freq``.

    Returns:
        `keras.callbacks.History` of all epochs of all phases that ran.

    Raises:
        ValueError: before anything is trained, if the model takes pictures of one size and a
            phase has others, if a phase's batch has too few examples for the micro-batches of
            `accumulate_gradients`, if a compression is unknown or set twice, for an argument that
            belongs into `PhaseData`, if the checkpoint is of other phases, or if the workers do not
            agree on the phases; when a phase begins, if its data has pictures of another size, a
            batch that is known to be another, no labels for the loss, too few batches as far as
            that is known, other steps on another worker or, resumed within the phase, other steps
            per epoch; and when data ends before the phase does, unless a callback has stopped the
            run.
        TypeError: for anything that is not a list of `Phase`, a function that returns a
            `PhaseData`, or a list of callbacks.
        TimeoutError, RuntimeError: when a phase begins, if a worker does not come, or has ended;
            names it.

    Example:
        phases = [Phase(13, 96, 512, "topk"), Phase(5, 128, 256)]

        def make_data(phase, step):
            def pictures(context):
                return tfscale.data.train_dataset(
                    "records", phase.global_batch_size, phase.image_size, input_context=context,
                    seed=phase.seed(0), initial_step=step,
                )
            dataset = strategy.distribute_datasets_from_function(pictures)
            return PhaseData(dataset, steps_per_epoch=50_000 // phase.global_batch_size)

        progressive.fit(model, phases, make_data, verbose=0, callbacks=[
            lambda phase: tfscale.callbacks.Progress(phase.global_batch_size),
        ], resume=tfscale.callbacks.CheckpointAndResume("runs/a/checkpoints"))
    """
    check_model(model)
    if getattr(model, "optimizer", None) is None:
        raise ValueError("the model is not compiled: call model.compile(optimizer, loss) first")
    checks.check_arguments(fit_kwargs)
    phases, callbacks = numbered(phases), checks.listed(callbacks)
    checks.check_input(model, phases)
    checks.check_callbacks(callbacks, resume)
    compressions = _compressions(model, phases, callbacks)
    schedule = _schedule(phases, callbacks)
    strategy = model.distribute_strategy
    checks.check_micro_batches(model, phases, strategy.num_replicas_in_sync)
    if not callable(data):
        raise TypeError(
            f"data is a function of (phase, step) that returns a PhaseData, got {data!r}"
        )
    if resume is not None:
        resume.also_saves(callbacks)
    described = [phase.description() for phase in phases]
    agree(strategy, "the phases of the run", described)
    position = None if resume is None else resume.position(strategy, described)
    epochs = total_epochs(phases)
    is_complete = resume is not None and resume.is_complete(epochs)
    run = RunCallbacks(
        model,
        [*schedule, *callbacks, *([resume] if resume else [])],
        epochs,
        1 if verbose == "auto" else verbose,
        described,
    )
    for phase in phases[_number_of(phases, position) :]:
        begin = first_epoch(phases, phase)
        step = _step_within(begin, position)
        parts = _data_of(model, data, phase, step, begin, position)
        if not is_complete:
            checks.check_length(parts, phase, step)
        if not is_complete and strategy.extended.should_checkpoint:
            # A warning, so that it shows in programs that do not set up logging.
            _logger.warning("%s", _line(phases, phase, parts, step, compressions[phase.number]))
        is_last = is_complete or phase is phases[-1]
        last_epoch = begin + phase.epochs - 1
        # Keras would trace steps of a second size for pictures of any size: slower, not for a TPU,
        # and not to the bit those of a run that is resumed in this phase.
        model.make_train_function(force=True)
        model.make_test_function(force=True)
        model.fit(
            parts.dataset,
            epochs=last_epoch + 1,
            initial_epoch=begin,
            steps_per_epoch=parts.steps_per_epoch,
            validation_data=parts.validation_data,
            validation_steps=parts.validation_steps,
            verbose=verbose,
            callbacks=run.of_phase(phase, parts.steps_per_epoch, last_epoch, is_last),
            **fit_kwargs,
        )
        if is_last or model.stop_training:
            break
        position = None
        # Its threads and buffers go before those of the next phase come.
        del parts
    return run.history


# ---------------------------------------------------------------------- where to begin


def _number_of(phases, position):
    """The number of the phase in which a position lies; the last one at the end of the run."""
    epoch = position.epoch if position else 0
    behind = [first_epoch(phases, phase) <= epoch for phase in phases]
    return sum(behind) - 1


def _step_within(begin, position):
    """The step of a phase at which to go on, the phase beginning with epoch `begin`."""
    if position is None or (position.epoch, position.step) == (begin, 0):
        return 0
    # Saved within the phase, so these are the phase's steps.
    return (position.epoch - begin) * position.steps_per_epoch + position.step


def _data_of(model, data, phase, step, begin, position):
    parts = data(phase, step)
    if not isinstance(parts, PhaseData):
        raise TypeError(
            f"data(phase, step) must return a tfscale.progressive.PhaseData, got {parts!r} for "
            f"phase {phase.number + 1}"
        )
    steps = {
        "steps_per_epoch": parts.steps_per_epoch,
        "validation": parts.validation_data is not None,
        "validation_steps": parts.validation_steps,
    }
    # Workers that differ would wait for each other without a word.
    name = f"the data of phase {phase.number + 1}"
    agree(model.distribute_strategy, name, steps, _SECONDS_TO_MAKE_DATA)
    if step and position.steps_per_epoch != parts.steps_per_epoch:
        raise ValueError(
            f"phase {phase.number + 1} was saved at its epoch {position.epoch - begin + 1}, step "
            f"{position.step}, with {position.steps_per_epoch} steps an epoch, but its data has "
            f"{parts.steps_per_epoch} now. Use the same data and batch, or another checkpoint "
            "directory."
        )
    checks.check_labels(model, parts, phase)
    checks.check_sizes(parts, phase)
    return parts


def _line(phases, phase, parts, step, compression):
    steps = parts.steps_per_epoch
    items = [
        f"phase {phase.number + 1} of {len(phases)}: {phase.image_size} pixels",
        f"batch {phase.global_batch_size}",
        f"{_counted(phase.epochs, 'epoch')} of {_counted(steps, 'step')}",
    ]
    if compression:
        items.append("uncompressed" if compression == "none" else f"compression {compression}")
    if step:
        items.append(f"{step} of its {phase.epochs * steps} steps are done")
    return ", ".join(items)


def _counted(number, thing):
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _schedule(phases, callbacks):
    """The callback that changes the compression, as a list; empty where no phase names one."""
    if all(phase.compression is None for phase in phases):
        return []
    if any(isinstance(callback, CompressionSchedule) for callback in callbacks):
        raise ValueError(
            "the phases have compression and there is a CompressionSchedule among the "
            "callbacks: use one of the two"
        )
    starts = {first_epoch(phases, phase): phase.compression for phase in phases}
    return [CompressionSchedule(starts)]


def _compressions(model, phases, callbacks):
    """The name of each phase's compression; None where it may change in the phase."""
    names = compression_names(phases)
    if any(phase.compression is not None for phase in phases):
        return names
    if any(isinstance(callback, CompressionSchedule) for callback in callbacks):
        return [None] * len(names)
    operation = retrace.operation_of(model.distribute_strategy)
    return names if operation is None else [operation.compressor.name] * len(names)
