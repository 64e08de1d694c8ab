"""What compression holds back, in a checkpoint: a file for each worker, written by that worker.

The residuals of a lossy compressor are part of a run's state: without them a resumed run loses
gradients that were to be sent later. They differ from worker to worker, so each writes its own:

    step-00000120/compression/worker-0000.npz
"""

import json
import logging
import os
import shutil
import time

import numpy as np

from tfscale._keras import retrace
from tfscale.callbacks.checkpoint_files import NPZ_ERRORS
from tfscale.callbacks.portable_paths import portable_identities, renamed
from tfscale.distribute import _tf_private
from tfscale.distribute.agreement import first_difference, gather_values
from tfscale.distribute.error_feedback import CompressionState

_logger = logging.getLogger("tfscale")
# Of the files: since 2 with paths that `portable_paths` gives.
_VERSION = 2


class SavedCompression:
    """The compression of a model's strategy, in the checkpoints of its run.

    Args:
        model: a Keras model. Where its strategy has no `Hierarchical2DAllReduce`, there is
            nothing to save.
        files: `CheckpointFiles`.
        timeout_seconds: float, how long workers wait for each other.
    """

    def __init__(self, model, files, timeout_seconds):
        self._model, self._files, self._timeout = model, files, timeout_seconds
        self._strategy = model.distribute_strategy
        self._operation = retrace.operation_of(self._strategy)
        self._worker = _tf_private.worker_index(self._strategy)
        self._workers = _tf_private.num_workers(self._strategy)
        self._exported = {}
        self._leftovers = False

    # ------------------------------------------------------------------ saving

    def collect(self, schedule):
        """Returns what `position.json` says of compression; all workers call it together.

        Args:
            schedule: what `CompressionSchedule` says of itself, or None.
        """
        if self._operation is None:
            return None
        state = self._state()
        own = portable_identities(state, self._variables())
        self._exported = renamed(state.export(), {own[name]: name for name in own})
        # The token names the folder that is being written, and tells files of one save apart
        # from those of another.
        mine = {"holds": bool(self._exported), "token": f"{os.getpid()}-{time.monotonic_ns()}"}
        told = self._gather("what compression holds back", mine)
        holds = any(worker["holds"] for worker in told)
        return {
            "compressor": self._operation.compressor.name,
            "schedule": schedule,
            "measured": not self._operation.wants_measurement,
            "state": {"workers": self._workers, "token": told[0]["token"]} if holds else None,
        }

    def write(self, position):
        """Writes this worker's file and waits for those of the others.

        Raises:
            OSError: on every worker alike, if a worker could not write, or wrote elsewhere.
        """
        state = _state_of(position)
        if state is None:
            return
        partial = self._files.partial(position)
        path, problem = _path(partial, self._worker), None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, self._exported, _about(state, self._worker))
        except OSError as error:
            problem = f"{path} cannot be written: {error}"
        self._exported = {}
        self._raise_alike("the files of compression", problem, partial)
        # Worker 0 puts the folder in its place only when all have looked.
        self._raise_alike("what they see of them", self._unseen(partial), partial)

    def _raise_alike(self, name, problem, partial):
        problems = [p for p in self._gather(name, problem) if p]
        if problems:
            shutil.rmtree(partial, ignore_errors=True)
            raise OSError("; ".join(problems))

    def _unseen(self, partial):
        """What is wrong if this worker does not see the files of all others; None if it does."""
        absent = [w for w in range(self._workers) if not _path(partial, w).exists()]
        if not absent:
            return None
        names = _tf_private.worker_names(self._strategy)
        return (
            f"{names[self._worker]} does not see the file that {names[absent[0]]} wrote to "
            f"{self._files.directory}. The directory must be on a file system that all workers "
            "share: each writes there what its compression holds back"
        )

    # ------------------------------------------------------------------ resuming

    def restore(self, position):
        """Gives the all-reduce the plan and what was held back; before the step is traced.

        Raises:
            ValueError: on every worker alike, if a file is missing, damaged or of another
                checkpoint: names it and the way out.
        """
        state = _state_of(position)
        if self._operation is None:
            if state:
                _logger.warning(
                    "the checkpoint holds what compression (%s) held back on %d workers; this "
                    "strategy has no all-reduce that could add it, so it is not used",
                    position.compression["compressor"],
                    state["workers"],
                )
            return
        same_cluster = (position.workers, position.replicas) == (
            self._workers,
            self._strategy.num_replicas_in_sync,
        )
        if same_cluster and (position.compression or {}).get("measured"):
            self._operation.use_plan(position.bucket_plan)
        exported = self._read_all(position, state) if state else []
        # As the state will number them.
        own = portable_identities(CompressionState(), self._variables())
        exported = [renamed(one, own) for one in exported]
        self._state().load(exported, self._worker, self._workers, self._variables())
        if exported and self._worker == 0:
            _logger.info(
                "taking over what compression (%s) held back on %d workers",
                position.compression["compressor"],
                state["workers"],
            )
        self._leftovers = bool(exported)
        # A step that an earlier `fit` traced works on the variables of before.
        retrace.retrace(self._model)

    def after_step(self):
        """Drops, after the first step, what was restored and found no use, and says so."""
        if self._leftovers:
            self._state().drop_leftovers()
            self._leftovers = False

    def _state(self):
        return self._operation.state_of(self._model)

    def _variables(self):
        """``(path, size, key)`` of all variables of the model."""
        variables = self._model.variables
        found = [(_tf_private.destination_of(v), v.shape.num_elements()) for v in variables]
        return [(v.path, size, v.key) for v, size in found if v]

    def _read_all(self, position, state):
        folder = self._files.folder(position.global_step)
        exported, problem = [], None
        for old in range(state["workers"]):
            path = _path(folder, old)
            try:
                # Each file is read by one worker, the one that takes it over.
                mine = old % self._workers == self._worker
                exported.append(_read(path, _about(state, old)) if mine else _check(path))
            except NPZ_ERRORS as error:
                reason = str(error) or type(error).__name__
                if isinstance(error, FileNotFoundError):
                    reason = "it is missing"
                problem = f"{path} cannot be read: {reason}. {self._files.way_out()}"
                break
        problems = [p for p in self._gather("the files of compression to resume", problem) if p]
        if problems:
            raise ValueError(problems[0])
        return exported

    def compare(self, position, schedule):
        """Says so if the run goes on with another compression than it was saved with."""
        saved = position.compression
        if self._operation is None or not saved:
            return
        before, now = saved["schedule"], schedule
        if before and now:
            difference = first_difference(before, now, "the schedule of compression")
        else:
            # Without a schedule there is one compression for all of the run.
            was = _shown(before) or saved["compressor"]
            present = _shown(now) or self._operation.compressor.name
            difference = was != present and ("compression", was, present)
        if difference:
            _logger.warning(
                "%s was %s when the run was saved and is %s now; what compression held back is "
                "carried over",
                *difference,
            )

    def _gather(self, name, value):
        return gather_values(self._strategy, name, value, self._timeout)


def _state_of(position):
    return (position.compression or {}).get("state")


def _shown(schedule):
    """A schedule as text: ``none, bfloat16 from epoch 3 on``; None if there is none."""
    if not schedule:
        return None
    first, *others = schedule["phases"].items()
    since = [f"{name} from {schedule['unit']} {int(start) + 1} on" for start, name in others]
    return ", ".join([first[1], *since])


def _path(folder, worker):
    return folder / "compression" / f"worker-{worker:04d}.npz"


def _about(state, worker):
    return {"token": state["token"], "worker": worker, "workers": state["workers"]}


def _write(path, exported, about):
    slots = {slot: values for slot, values in exported.items() if slot != "tensors"}
    header = {
        "version": _VERSION,
        "about": about,
        "tensors": exported.get("tensors", []),
        "slots": list(slots),
    }
    arrays = {f"{slot}/{i}": v for slot, values in slots.items() for i, v in enumerate(values)}
    header = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with open(path, "wb") as file:
        np.savez(file, header=header, **arrays)
        file.flush()
        os.fsync(file.fileno())


def _read(path, about):
    """What `_write` was given; a zip file carries a checksum of each array."""
    with np.load(path, allow_pickle=False) as arrays:
        header = json.loads(arrays["header"].tobytes())
        if header.get("version") != _VERSION:
            raise ValueError("it was written by another version of tfscale, with other paths")
        if header["about"] != about:
            raise ValueError(f"it belongs to another checkpoint or worker ({header['about']})")
        count = len(header["tensors"])
        exported = {slot: [arrays[f"{slot}/{i}"] for i in range(count)] for slot in header["slots"]}
    return {"tensors": header["tensors"], **exported} if count else {}


def _check(path):
    """Stands for a file that another worker reads."""
    os.stat(path)
    return {}
