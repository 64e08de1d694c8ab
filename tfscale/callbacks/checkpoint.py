"""`CheckpointAndResume`: a killed run goes on where it was saved, equal to the bit."""

import json
import logging
from pathlib import Path

import tensorflow as tf

from tfscale._keras import check_model, training_state
from tfscale.callbacks import saved_callbacks, saved_variables
from tfscale.callbacks.checkpoint_files import CheckpointFiles, Position
from tfscale.callbacks.compression_files import SavedCompression
from tfscale.callbacks.non_finite import lost_weights
from tfscale.callbacks.saved_phases import check_phases
from tfscale.callbacks.saved_plan import compare_plans
from tfscale.callbacks.saved_settings import OptimizerSettings
from tfscale.distribute import _tf_private, all_reduce
from tfscale.distribute.agreement import agree, check_timeout, first_difference, gather_values

_logger = logging.getLogger("tfscale")


class CheckpointAndResume(training_state.StepCallback):
    """Saves the whole state of a run as it goes, and resumes from it: equal to the bit.

    Saved are the weights, all other variables of the model, the optimizer's slots and
    `iterations`, the loss scale, the metrics of an epoch that is under way, the position
    (epoch, step, global step), `state`, the plan of the all-reduce and what its compression
    holds back on each worker. A run that is killed and started again with the same program on the
    same cluster ends with the very bits that an undisturbed run ends with, since a save also
    sets each replica's own statistics (those of batch norm) to the mean that is saved. Dropout
    is the exception: its masks are not resumed.

    All workers take part in a save, for statistics are averaged over the replicas; the files
    of worker 0 stay, and with a lossy compression one of each worker, in a folder of their own
    that appears when it is complete:

        directory/step-00000120/position.json, variables.index, variables.data-...
        directory/step-00000120/compression/worker-0000.npz, worker-0001.npz, ...

    `fit` then runs the remaining steps only. The data has to start where the run stands: build
    it from `initial_step`. Put this callback last in the list: what the others change at the
    end of an epoch (`ReduceLROnPlateau`) is then saved. A run of phases takes it as the `resume`
    of `tfscale.progressive.fit`.

    On another number of workers or devices the run goes on too, with a line in the log, but
    not to the bit; what compression held back is shared out anew, and nothing of it is lost.
    With more `epochs` than before it goes on from its end; a learning rate schedule is then the
    new program's, at the saved `iterations`, so a decay that ends with the last epoch is another
    one from there on. A learning rate that is a number goes on as it was saved, for a callback
    may have lowered it; a program that is started again with another number gets that one. A line
    in the log says so, and names what else of the optimizer is set otherwise (as far as its
    config tells).

    Args:
        directory: path of a folder that all workers see; a run needs one of its own.
        save_every: None saves at the end of each epoch; int saves every so many steps, and at
            the end of the run (a save that falls on the end of an epoch waits for the
            validation).
        keep: int, how many checkpoints stay.
        state: dict that JSON can hold, of everything that must not change when the run
            resumes: seeds, the global batch size, `DataContract.fingerprint()`.
        callbacks: Keras's EarlyStopping, ReduceLROnPlateau or ModelCheckpoint objects of the
            same `fit`, whose best value, patience and best weights are to survive as well: a
            callback does not know of the others. `tfscale.progressive.fit` adds its own.
        timeout_seconds: float, how long a worker waits for the others to come to the same save
            before it raises TimeoutError and names them; it happens where not all workers
            were given this callback.

    Attributes:
        initial_step: int, the global step to resume at, 0 for a new run; known before `fit`.

    Raises:
        RuntimeError: in `fit`, in place of a save of weights that are NaN or infinite, which
            would push sound checkpoints out; names the weights and the newest checkpoint.
        ValueError: in the constructor, for an argument out of its range, or if the newest
            checkpoint cannot be read; in `fit`, if the directory cannot be written to, if it
            was made by another model, with another `state` or steps per epoch, or if
            the workers do not see the same checkpoint: naming what differs.

    Example:
        resume = tfscale.callbacks.CheckpointAndResume("runs/a/checkpoints", state={"seed": 1})
        data = tfscale.data.train_dataset(..., initial_step=resume.initial_step)
        model.fit(data, epochs=90, steps_per_epoch=625, callbacks=[resume])
    """

    def __init__(
        self, directory, save_every=None, keep=3, state=None, callbacks=(), timeout_seconds=120
    ):
        super().__init__()
        if save_every is not None and (type(save_every) is not int or save_every < 1):
            raise ValueError(
                f"save_every={save_every!r}: a number of steps of at least 1, or None for epochs"
            )
        check_timeout(timeout_seconds)
        self._files = CheckpointFiles(directory, keep)
        self._save_every = save_every
        self._state = _as_json(state or {})
        self._others = tuple(callbacks)
        for callback in self._others:
            if not isinstance(callback, saved_callbacks.KINDS):
                kinds = ", ".join(kind.__name__ for kind in saved_callbacks.KINDS)
                raise ValueError(f"callbacks: {callback!r} is none of {kinds}; leave it out")
        self._timeout = timeout_seconds
        self._latest = self._files.latest()
        self._epoch = self._step = 0
        self._saved_at = None

    def also_saves(self, callbacks):
        """Adds those of a `fit`'s callbacks that remember something, as the argument does.

        Args:
            callbacks: list of Keras callbacks; others than the argument's three kinds, and those
                that it has already, are passed over.
        """
        kinds = saved_callbacks.KINDS
        found = (c for c in callbacks if isinstance(c, kinds) and c not in self._others)
        self._others = (*self._others, *found)

    @property
    def initial_step(self):
        return self._latest.global_step if self._latest else 0

    def is_complete(self, epochs):
        """Whether the saved run is finished: it has `epochs` epochs, or a callback ended it.

        Args:
            epochs: int, what `fit` would be given.

        Returns:
            `bool`.

        Example:
            if resume.is_complete(epochs=90):
                print("this run is done")
        """
        return self._latest is not None and (
            self._latest.stopped or (self._latest.epoch >= epochs and self._latest.step == 0)
        )

    def position(self, strategy, phases=None):
        """Returns where the run goes on; all workers ask together.

        `fit` asks by itself. Who has to know before, to make the data of the epoch and step at
        which the run goes on, asks as well.

        Args:
            strategy: the model's `tf.distribute.Strategy`.
            phases: list of the descriptions of the phases of the run, of which those that have
                begun must be the saved ones (`tfscale.progressive.fit`); None for a run without.

        Returns:
            The newest checkpoint's `Position`, with ``epoch``, ``step`` and ``steps_per_epoch``;
            None for a new run.

        Raises:
            ValueError: if the workers do not see the same checkpoint, or other phases were saved.

        Example:
            position = resume.position(strategy)
            epoch = position.epoch if position else 0
        """
        self._latest = self._files.latest()
        self._agree_on_start(strategy)
        if self._latest is not None:
            where = self._files.folder(self._latest.global_step)
            check_phases(self._latest, phases, where)
        return self._latest

    # ------------------------------------------------------------------ resuming

    def on_train_begin(self, logs=None):
        check_model(self.model)
        strategy = self.model.distribute_strategy
        self.position(strategy, self.params.get("phases"))
        self._global_step = self._saved_at = self.initial_step
        self._memories, self._stopped = None, False
        self._compression = SavedCompression(self.model, self._files, self._timeout)
        self._settings = OptimizerSettings(self.model.optimizer)
        self.params["initial_step"] = self.initial_step  # for callbacks that count steps
        position, epochs = self._latest, self.params.get("epochs")
        is_complete = self.is_complete(epochs)
        if strategy.extended.should_checkpoint and not is_complete:
            self._files.prepare()
        if position is None:
            return
        where = self._files.folder(position.global_step)
        self._check(position, where)
        training_state.build_optimizer(self.model)
        present = saved_variables.describe(saved_variables.all_variables(self.model))
        if len(present) == len(position.variables):
            self._settings.check(position.optimizer, where)
        saved_variables.check_variables(position.variables, present, where)
        checkpoint = tf.train.Checkpoint(model=self.model)
        self._settings.restore(lambda: self._read(checkpoint), position.optimizer)
        self._compression.restore(position)
        way_out, self._stopped = self._files.way_out(), position.stopped
        self._memories = saved_callbacks.read(where, position.callbacks, way_out)
        if is_complete:
            self._restore_callbacks()  # No epoch begins: at the end they put their best weights.
            _logger.warning("this run is complete: %s (%d steps)", where, position.global_step)
            training_state.start_fit_at(self.model, epochs, 0)
            return
        training_state.start_fit_at(self.model, position.epoch, position.step)
        if position.step and not training_state.before_first_step(self.model, self._read_metrics):
            _logger.warning("the model runs eagerly: metrics start again in mid-epoch")
        # Warnings, so that they show in programs that do not set up logging.
        _logger.warning(
            "resuming from %s: epoch %d, step %d", where, position.epoch + 1, position.step
        )

    def _agree_on_start(self, strategy):
        mine = {"step": self.initial_step, "directory": str(self._files.directory)}
        theirs = gather_values(strategy, "the checkpoint to resume", mine, self._timeout)
        if len({worker["step"] for worker in theirs}) > 1:
            names = _tf_private.worker_names(strategy)
            seen = "\n".join(
                f"  {name}: step {worker['step'] or 'none'} in {worker['directory']}"
                for name, worker in zip(names, theirs, strict=True)
            )
            raise ValueError(
                f"the workers see different checkpoints:\n{seen}\n"
                "The directory must be on a file system that all workers share; or copy the "
                "newest checkpoint to every worker, and delete the others."
            )
        agree(strategy, "the state of the run", self._state, self._timeout)

    def _check(self, position, where):
        difference = first_difference(position.state, self._state, "state")
        if difference:
            name, saved, now = difference
            raise ValueError(
                f"{where} was saved with {name} = {saved}, but this run has {now}. "
                "Use the saved value, or another checkpoint directory for the new run."
            )
        steps = self.params.get("steps")
        if position.step and position.steps_per_epoch != steps:
            raise ValueError(
                f"{where} was saved in the middle of an epoch of {position.steps_per_epoch} steps, "
                f"but an epoch of this run has {steps}. Use the same steps_per_epoch, or another "
                "checkpoint directory."
            )
        if len(position.callbacks) != len(self._others):
            raise ValueError(
                f"{where} was saved with {len(position.callbacks)} callbacks={self._others}, "
                f"this run has {len(self._others)}: give the same ones."
            )
        strategy = self.model.distribute_strategy
        workers, replicas = _tf_private.num_workers(strategy), strategy.num_replicas_in_sync
        if (workers, replicas) != (position.workers, position.replicas):
            _logger.warning(
                "saved by %d workers with %d replicas, resumed by %d with %d: the global batch, "
                "the schedule and the position in the data stay; the last bits of sums differ",
                position.workers,
                position.replicas,
                workers,
                replicas,
            )

    def _read(self, checkpoint):
        prefix = self._files.prefix(self._latest.global_step)
        try:
            checkpoint.read(prefix).assert_existing_objects_matched().expect_partial()
        except saved_variables.READ_ERRORS as error:
            raise ValueError(
                f"checkpoint {prefix} is damaged{saved_variables.damaged_variable(prefix)}: "
                f"{str(error).splitlines()[0]}. {self._files.way_out()}"
            ) from error

    def _read_metrics(self):
        variables = training_state.metric_variables(self.model)
        where = self._files.folder(self._latest.global_step)
        saved_variables.check_variables(
            self._latest.metrics, saved_variables.describe(variables), where
        )
        if variables:
            self._read(tf.train.Checkpoint(metrics=variables))

    def _restore_callbacks(self):
        if self._memories is not None:
            for callback, memory in zip(self._others, self._memories, strict=True):
                vars(callback).update(memory)
            self._memories = None

    # ------------------------------------------------------------------ saving

    def on_epoch_begin(self, epoch, logs=None):
        resumed = self._latest if self._global_step == self.initial_step else None
        self._epoch, self._step = epoch, resumed.step if resumed else 0
        if resumed:
            self._compression.compare(resumed, self.params.get("compression_schedule"))
        # Not before: these callbacks forget everything in their on_train_begin.
        self._restore_callbacks()

    def on_train_batch_end(self, batch, logs=None):
        # Keras gives the number, within the epoch, of the last step that ran.
        self._global_step += batch + 1 - self._step
        self._step = batch + 1
        self._compression.after_step()
        if self._is_due() and self._step != self.params.get("steps"):
            self._save()

    def on_epoch_end(self, epoch, logs=None):
        steps = self.params.get("steps")
        if steps is None or self._step >= steps:
            self._epoch, self._step = epoch + 1, 0
        last = epoch + 1 == self.params.get("epochs")
        if self._save_every is None or self._is_due() or last or self.model.stop_training:
            self._save()

    def on_train_end(self, logs=None):
        # A callback later in the list may have ended the run after the last save.
        if self._global_step > self._saved_at or (self.model.stop_training and not self._stopped):
            self._save()

    def _is_due(self):
        every = self._save_every
        return every is not None and self._global_step // every > self._saved_at // every

    def _save(self):
        strategy = self.model.distribute_strategy
        # A worker that saved alone would wait in a collective for ever; this names the others.
        agree(strategy, "the step to save", self._global_step, self._timeout)
        self._refuse_lost_weights()
        metrics = training_state.metric_variables(self.model) if self._step else []
        variables = saved_variables.all_variables(self.model)
        self._stopped = bool(self.model.stop_training)
        position = Position(
            epoch=self._epoch,
            step=self._step,
            global_step=self._global_step,
            steps_per_epoch=self.params.get("steps"),
            state=self._state,
            workers=_tf_private.num_workers(strategy),
            replicas=strategy.num_replicas_in_sync,
            variables=saved_variables.describe(variables),
            metrics=saved_variables.describe(metrics),
            callbacks=saved_callbacks.describe(self._others),
            bucket_plan=self._checked_plan(strategy),
            compression=self._compression.collect(self.params.get("compression_schedule")),
            stopped=self._stopped,
            phases=self.params.get("phases"),
            optimizer=self._settings.values,
        )
        trackables = {"model": self.model} | ({"metrics": metrics} if metrics else {})
        with self._files.writing(position, remains=strategy.extended.should_checkpoint) as prefix:
            tf.train.Checkpoint(**trackables).write(prefix)
            saved_callbacks.write(Path(prefix).parent, self._others)
            self._compression.write(position)
        # A resumed run starts from what was written, the statistics averaged over the replicas;
        # for this run to stay equal to it, it goes on from the same values.
        for variable in [*variables, *metrics]:
            if training_state.is_read_synchronised(variable):
                variable.assign(variable.read_value())
        # The files are in their place when any worker goes on, perhaps to another fit.
        agree(strategy, "the step that was saved", self._global_step, self._timeout)
        self._saved_at = self._global_step

    def _refuse_lost_weights(self):
        """A run that has diverged must not push its sound checkpoints out."""
        lost = lost_weights(self.model)
        if lost:
            steps = self._files.steps()
            sound = ""
            if steps:
                newest = self._files.folder(steps[-1])
                sound = f"; the newest checkpoint is {newest}, delete it if it is too late as well"
            raise RuntimeError(
                f"not saved at epoch {self._epoch + 1}, step {self._step}: {lost}: the training "
                f"has diverged{sound}. Lower the learning rate, lengthen the warm-up, or look for "
                "bad values in the data"
            )

    def _checked_plan(self, strategy):
        """How gradients are exchanged; a resumed run that does it otherwise says so."""
        plan, before = all_reduce.plan_of(strategy), self._latest
        resumed = before and self._saved_at == self.initial_step and plan and before.bucket_plan
        if resumed and before.replicas == strategy.num_replicas_in_sync:
            compare_plans(before.bucket_plan, plan)
        return plan


def _as_json(state):
    try:
        return json.loads(json.dumps(state, allow_nan=False))  # NaN is equal to nothing
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"state={state!r} cannot be kept as JSON: {error}. Give plain numbers, texts and lists"
        ) from error
