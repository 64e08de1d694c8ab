"""The callbacks of a run in phases: they see one run, though Keras's `fit` runs once a phase."""

from tfscale._keras import keras
from tfscale.progressive.checks import too_short


class RunCallbacks:
    """Callbacks that live as long as the run, and functions that make one for each phase.

    Args:
        model: a Keras model.
        callbacks: list of Keras callbacks and of functions of a `Phase` that return one.
        epochs: `int`, of the whole run.
        verbose: Keras's 0, 1 or 2.
        phases: list of the phases' descriptions, for `CheckpointAndResume`.

    Attributes:
        history: `keras.callbacks.History` of the whole run.
    """

    def __init__(self, model, callbacks, epochs, verbose, phases):
        self.history = keras.callbacks.History()
        self._model = model
        self._callbacks = [*callbacks, self.history]
        # One for all phases: callbacks tell each other things by it.
        self._params = {"verbose": verbose, "epochs": epochs, "phases": phases}
        self._is_first = True
        for callback in callbacks:
            if isinstance(callback, type) and issubclass(callback, keras.callbacks.Callback):
                # It can be called with a phase, and would take that for its first argument.
                name = callback.__name__
                raise TypeError(
                    f"callbacks has the class {name}: write {name}(), or, for a new one in each "
                    f"phase, lambda phase: {name}()"
                )
            if not isinstance(callback, keras.callbacks.Callback) and not callable(callback):
                raise TypeError(
                    f"callbacks are Keras callbacks or functions of a phase, got {callback!r}"
                )

    def of_phase(self, phase, steps, last_epoch, is_last):
        """Returns the list of callbacks for the `fit` of one phase.

        Args:
            phase: `Phase`.
            steps: `int`, of an epoch.
            last_epoch: `int`, the phase's last epoch, from 0.
            is_last: `bool`, whether the run ends with this phase.
        """
        begins = self._is_first
        self._is_first = False
        if not begins:
            # It was true of the first step of the run only; callbacks of later phases count
            # from the optimizer's iterations.
            self._params.pop("initial_step", None)
        self._params["steps"] = steps
        present = [_made(callback, phase) for callback in self._callbacks]
        lasting = {id(c) for c, given in zip(present, self._callbacks, strict=True) if c is given}
        return _PhaseCallbacks(
            present, self._model, self._params, set() if begins else lasting, lasting,
            phase, last_epoch, is_last,
        )  # fmt: skip


def _made(callback, phase):
    if isinstance(callback, keras.callbacks.Callback):
        return callback
    made = callback(phase)
    if not isinstance(made, keras.callbacks.Callback):
        raise TypeError(
            f"the function {callback!r} among the callbacks must return a Keras callback for "
            f"phase {phase.number + 1}, got {made!r}"
        )
    return made


class _PhaseCallbacks(keras.callbacks.CallbackList):
    """What `fit` calls in one phase.

    Callbacks that live longer than the phase (`lasting`) are told of the beginning and of the end
    of the run, and not of those of a phase: they would forget what they know.

    Keras only warns of data that ends too early, and ends the `fit`; here it is an error, for the
    next phase would begin at another step than the schedules say.
    """

    def __init__(self, callbacks, model, params, begun, lasting, phase, last_epoch, is_last):
        super().__init__(callbacks, add_progbar=bool(params["verbose"]), model=model)
        self.set_params(params)
        self._begun, self._lasting = begun, lasting
        self._phase, self._last_epoch, self._is_last = phase, last_epoch, is_last
        self._steps, self._done = params["steps"], 0
        self._averages_wait = False

    def on_train_begin(self, logs=None):
        for callback in self.callbacks:
            if id(callback) not in self._begun:
                callback.on_train_begin(logs or {})

    def on_epoch_begin(self, epoch, logs=None):
        self._done = 0
        super().on_epoch_begin(epoch, logs)

    def on_train_batch_end(self, batch, logs=None):
        self._done = batch + 1
        super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch, logs=None):
        if self._done < self._steps and not self.model.stop_training:
            before = self._phase.epochs - 1 - (self._last_epoch - epoch)
            raise too_short(self._phase, self._steps, before * self._steps + self._done)
        super().on_epoch_end(epoch, logs)
        optimizer = self.model.optimizer
        goes_on = not self._is_last and not self.model.stop_training
        if goes_on and epoch == self._last_epoch and getattr(optimizer, "use_ema", False):
            # `fit` would now put the averages in the place of the weights, for good.
            self._averages_wait, optimizer.use_ema = True, False

    def on_train_end(self, logs=None):
        if self._averages_wait:
            self._averages_wait, self.model.optimizer.use_ema = False, True
        ends = self._is_last or self.model.stop_training
        for callback in self.callbacks:
            if ends or id(callback) not in self._lasting:
                callback.on_train_end(logs or {})
