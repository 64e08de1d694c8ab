"""`CompressionSchedule`: which compression is in force in which phase of a run."""

import logging

import tensorflow as tf

from tfscale._keras import retrace
from tfscale._keras.training_state import StepCallback
from tfscale.distribute import _tf_private
from tfscale.distribute.agreement import agree, check_timeout
from tfscale.distribute.compression.choice import compressor

_logger = logging.getLogger("tfscale")


class CompressionSchedule(StepCallback):
    """Changes the compression of gradients at given epochs or steps of a run.

        compression at t = phases[largest start <= t]        t = epoch or step, from 0

    Early gradients change too fast for a lossy compressor, and where communication is not the
    bottleneck it gains nothing: so dense in the first steps, compressed in a phase, dense again.
    The ratio of top-k can be brought down step by step, as Deep Gradient Compression does. What a
    compressor still holds back goes into the next one, or is sent with the first dense step.

    Each change costs one trace of the step. All workers change at the same step, and worker 0
    says so in one line. A resumed run begins in the phase it was in.

    A step is one of the run's, as `CheckpointAndResume` counts; without that callback it is the
    optimizer's iteration. With `steps_per_execution` a phase begins with the first execution
    that starts in it.

    Args:
        phases: dict of `int` to compression, starts ascending from 0; a compression is what
            `Hierarchical2DAllReduce` takes: None, "bfloat16", "float16", "int8", "topk" or a
            compressor. All have the same momentum: the dense phases beside a compressor with
            momentum are ``Uncompressed(momentum=0.9)``.
        unit: "epoch" (default) or "step".
        timeout_seconds: float, how long a worker waits for the others to confirm the schedule
            before it raises TimeoutError and names them.

    Attributes:
        phases: dict of `int` to the name of the compression.

    Raises:
        ValueError: in the constructor, for phases out of order, an unknown compression, different
            momenta or a timeout not above 0; in `fit`, if the workers have different schedules, or
            if the strategy has several workers but does not use `Hierarchical2DAllReduce`.

    Example:
        TopK = tfscale.distribute.TopK
        schedule = tfscale.callbacks.CompressionSchedule(
            {0: None, 2: TopK(0.25), 3: TopK(0.0625), 4: "topk", 13: None}
        )
        model.fit(data, epochs=15, steps_per_epoch=100, callbacks=[schedule])

    References:
        Lin et al., Deep Gradient Compression, 2018, section 3.3 (https://arxiv.org/abs/1712.01887);
        Mikami et al., Massively Distributed SGD, 2018 (https://arxiv.org/abs/1811.05233).
    """

    def __init__(self, phases, unit="epoch", timeout_seconds=120):
        super().__init__()
        if unit not in ("epoch", "step"):
            raise ValueError(f'unit={unit!r}: "epoch" or "step"')
        check_timeout(timeout_seconds)
        self._compressors = _checked(phases)
        self.phases = {start: c.name for start, c in self._compressors.items()}
        self._unit = unit
        self._timeout = timeout_seconds
        self._operation = self._present = None
        self._told_alone = False

    def on_train_begin(self, logs=None):
        strategy = self.model.distribute_strategy
        self._operation = retrace.operation_of(strategy)
        self._leads = strategy.extended.should_checkpoint
        self._step = self._base = self._present = None
        # For CheckpointAndResume, which keeps what the run is made of.
        self.params["compression_schedule"] = self._description()
        workers = _workers(strategy)
        if workers > 1 and self._operation is None:
            raise ValueError(
                "CompressionSchedule needs a strategy of tfscale.distribute.create_strategy with "
                "Hierarchical2DAllReduce, which compresses; this one sums gradients otherwise"
            )
        if workers == 1:
            # Not even set: it would cost a trace at each change.
            self._operation = None
            if not self._told_alone:
                self._told_alone = True
                _logger.warning("compression has no effect: one worker has no network to cross")
        agree(strategy, "the compression schedule", self._description(), self._timeout)

    def on_epoch_begin(self, epoch, logs=None):
        self._base = None
        if self._unit == "epoch":
            self._begin(epoch)

    def on_train_batch_begin(self, batch, logs=None):
        if self._unit == "epoch" or self._operation is None:
            return
        if self._step is None:
            self._step = self.params.get("initial_step")
        if self._step is None:
            self._step = int(tf.convert_to_tensor(self.model.optimizer.iterations))
        if self._base is None:
            # A resumed epoch begins with a batch of another number than 0.
            self._base = self._step - batch
        self._step = self._base + batch
        self._begin(self._step)

    def on_train_batch_end(self, batch, logs=None):
        if self._step is not None:
            self._step = self._base + batch + 1

    def _begin(self, position):
        if self._operation is None:
            return
        start = max(start for start in self._compressors if start <= position)
        before, new = self._operation.compressor.name, self._compressors[start]
        if new.name != before:
            self._operation.set_compression(new)
        if self._leads and new.name != self._present:
            # A warning, so that it shows in programs that do not set up logging.
            _logger.warning(
                "from %s %d on gradients travel with compression %s%s",
                self._unit,
                position + 1,  # counted from 1, as Progress shows them
                new.name,
                # What the all-reduce was made with was never in force, and is of no interest.
                f" (before: {self._present})" if self._present else "",
            )
        self._present = new.name

    def _description(self):
        return {"unit": self._unit, "phases": {str(k): v for k, v in self.phases.items()}}


def _workers(strategy):
    return _tf_private.num_workers(strategy)


def _checked(phases):
    """The compressors by the start of their phase; raises ValueError where they do not fit."""
    if not isinstance(phases, dict) or not phases:
        raise ValueError(f"phases={phases!r}: a dict of start to compression, e.g. {{0: None}}")
    starts = list(phases)
    for start in starts:
        if isinstance(start, bool) or not isinstance(start, int) or start < 0:
            raise ValueError(f"phases begin at whole numbers from 0, got {start!r}")
    if starts != sorted(starts) or starts[0] != 0:
        raise ValueError(f"phases must begin at 0 and ascend, got {starts}")
    found = {}
    for start, compression in phases.items():
        try:
            found[start] = compressor(compression)
        except ValueError as error:
            raise ValueError(f"phase {start}: {error}") from error
    momenta = {start: getattr(c, "momentum", 0.0) for start, c in found.items()}
    if len(set(momenta.values())) > 1:
        raise ValueError(
            f"the phases have different momenta ({_listed(momenta)}), but the velocity and the "
            "optimizer's momentum are the same in all of them. Give each compressor the same "
            "momentum; without compression that is Uncompressed(momentum=...) in place of None."
        )
    return found


def _listed(momenta):
    return ", ".join(f"{start}: {momentum:g}" for start, momentum in momenta.items())
