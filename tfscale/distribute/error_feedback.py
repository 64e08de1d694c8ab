"""What compression holds back, and what becomes of it.

A lossy compressor keeps what it did not send, the residual, and adds it to what it is given in
the next step; so nothing is ever lost, only late (error feedback: Seide et al., 1-bit SGD, 2014;
Karimireddy et al., 2019, https://arxiv.org/abs/1901.09847). With momentum correction the velocity
lives there as well (Lin et al., Deep Gradient Compression, https://arxiv.org/abs/1712.01887).

These vectors belong to buckets and devices while they are in use. Outside of it they are kept by
tensor, and so outlive other buckets, other compressors and other numbers of devices and workers:
what worker w owes to a variable's sum may be paid by any worker, at any time.

A tensor's identity is ``(path, size, n)``: the n-th variable of that path and size whose sums
were traced. A layer that is frozen, or the variables of another optimizer, change nothing of it.
"""

import dataclasses
import logging

import numpy as np
import tensorflow as tf

from tfscale.distribute import _tf_private

_logger = logging.getLogger("tfscale")
RESIDUAL, VELOCITY = "residual", "velocity"


@dataclasses.dataclass
class _Vector:
    """A variable of one bucket and device, and whose elements lie where in it.

    `segments` lists ``(index of the tensor in its plan, start, size, offset in the vector)``.
    """

    variable: object
    segments: tuple


class CompressionState:
    """The residuals and velocities of one model on one worker, for all plans of its all-reduce."""

    def __init__(self):
        self._identities = {}  # key of a variable -> identity
        self._plans = {}  # plan -> list of identities of its tensors
        self._vectors = {}  # (plan, bucket, column, slot, whether it is paid) -> _Vector
        self._pending = {}  # identity -> {slot: array}: what has no variable yet
        self._flags = {}  # (plan, bucket, column) -> variable

    def begin_plan(self, plan, tensors):
        """Declares the tensors of a plan before its buckets ask for their vectors.

        Args:
            plan: hashable.
            tensors: list of ``(path, size, key)``: `key` is the variable's own in this process;
                without it the path is.
        """
        self._plans[plan] = [
            self.identity_of(path, size, *key or [path]) for path, size, *key in tensors
        ]

    def identity_of(self, path, size, key):
        """Returns the identity ``(path, size, n)`` of a variable, which it keeps.

        Args:
            path: `str`.
            size: `int`, elements.
            key: `str`, the variable's own in this process.
        """
        if key not in self._identities:
            n = sum(known[:2] == (path, size) for known in self._identities.values())
            self._identities[key] = (path, size, n)
        return self._identities[key]

    def vector(self, slot, plan, bucket, column, segments, length, device, paid=False):
        """Returns the variable of a bucket's part on a device; the first call makes it.

        It starts with what is pending for its tensors, else with zeros.

        Args:
            slot: ``"residual"`` or ``"velocity"``.
            plan: given to `begin_plan` before.
            bucket, column: `int`.
            segments: tuple of ``(tensor, start, size, offset)``.
            length: `int`, elements.
            device: `str`.
            paid: `bool`, whether it is there to be paid, beside the compressor's own.
        """
        place = (plan, bucket, column, slot, paid)
        if place not in self._vectors:
            value = np.zeros(length, np.float32)
            for tensor, start, size, offset in segments:
                pending = self._pending.get(self._plans[plan][tensor], {}).get(slot)
                if pending is not None:
                    value[offset : offset + size] = pending[start : start + size]
                    # Taken over, so that it is neither paid nor exported twice.
                    pending[start : start + size] = 0
            self._vectors[place] = _Vector(_tf_private.raw_variable(value, device), segments)
        return self._vectors[place].variable

    def flag(self, plan, bucket, column, device):
        """Returns a scalar variable, True until the step that pays an old residual has run."""
        place = (plan, bucket, column)
        if place not in self._flags:
            self._flags[place] = _tf_private.raw_variable(True, device, tf.bool)
        return self._flags[place]

    def owes(self, plan, bucket, column, segments):
        """Whether residuals of a bucket's part are to be paid: pending, or held for that.

        Args:
            plan, bucket, column, segments: as for `vector`.
        """
        held = (plan, bucket, column, RESIDUAL, True) in self._vectors
        return held or self.is_pending(plan, segments)

    def is_pending(self, plan, segments):
        """Whether residuals of these segments have no variable yet."""
        for tensor, start, size, _ in segments:
            pending = self._pending.get(self._plans[plan][tensor], {}).get(RESIDUAL)
            if pending is not None and np.any(pending[start : start + size]):
                return True
        return False

    def release(self):
        """Makes all that is held pending, for other buckets or another compressor to take up."""
        exported = self.export()
        self._clear()
        self._pending = _by_identity(exported)

    def forget_velocities(self):
        """Drops the pending velocities; after `release` these are all."""
        for slots in self._pending.values():
            slots.pop(VELOCITY, None)

    def export(self):
        """Returns what this worker owes, by tensor.

        Returns:
            `dict` with ``"tensors"``, list of identities ``[path, size, n]``, and for
            ``"residual"`` and ``"velocity"`` a list of float32 arrays, one for each tensor; empty
            if nothing is owed.
        """
        owed = {
            identity: {slot: np.array(value) for slot, value in slots.items()}
            for identity, slots in self._pending.items()
        }
        for (plan, _, _, slot, _), vector in self._vectors.items():
            value = vector.variable.numpy()
            for tensor, start, size, offset in vector.segments:
                identity = self._plans[plan][tensor]
                slots = owed.setdefault(identity, {})
                if slot not in slots:
                    slots[slot] = np.zeros(identity[1], np.float32)
                slots[slot][start : start + size] += value[offset : offset + size]
        owed = {i: slots for i, slots in owed.items() if any(map(np.any, slots.values()))}
        exported = {"tensors": [list(identity) for identity in owed]} if owed else {}
        for slot in (RESIDUAL, VELOCITY):
            if any(slot in slots for slots in owed.values()):
                exported[slot] = [
                    slots.get(slot, np.zeros(identity[1], np.float32))
                    for identity, slots in owed.items()
                ]
        return exported

    def load(self, exported, worker_index=0, num_workers=1, variables=()):
        """Takes over what the workers of a saved run owed; call it before the step is traced.

        What old worker w owed goes to worker ``w mod num_workers``, which adds up where several
        come to it: on any number of workers the sum over them stays. On the same number every
        worker has its own bits back.

        Args:
            exported: list of what `export` gave on each worker, in worker order.
            worker_index: `int`, this worker.
            num_workers: `int`, the number of workers now.
            variables: list of ``(path, size, key)`` of those whose identities `exported` has, in
                the order that numbers them; others are numbered as they are traced.
        """
        self._clear()
        self._identities = {}
        for variable in variables:
            self.identity_of(*variable)
        for one in exported[worker_index::num_workers]:
            for identity, slots in _by_identity(one).items():
                mine = self._pending.setdefault(identity, {})
                for slot, value in slots.items():
                    mine[slot] = mine[slot] + value if slot in mine else value

    def _clear(self):
        self._plans, self._vectors, self._flags, self._pending = {}, {}, {}, {}

    def drop_leftovers(self):
        """Drops what the first step after `load` has not taken over, and says so.

        Residuals of tensors that this model does not exchange, as after a change of the model;
        velocities also where the compressor has no momentum any more.
        """
        reasons = {
            RESIDUAL: "gradients of %d tensors that this model does not exchange (%s ...)",
            VELOCITY: "the velocities of %d tensors, for which there is no momentum now (%s ...)",
        }
        for slot, reason in reasons.items():
            left = [i[0] for i, slots in self._pending.items() if np.any(slots.get(slot, 0))]
            if left:
                _logger.warning(
                    f"the compression of the checkpoint held back {reason}: they are dropped",
                    len(left),
                    left[0],
                )
        self._pending = {}


def _by_identity(exported):
    """What `export` returned as ``{identity: {slot: array}}``, with arrays of their own."""
    return {
        tuple(identity): {
            slot: np.array(exported[slot][i], np.float32)
            for slot in (RESIDUAL, VELOCITY)
            if slot in exported
        }
        for i, identity in enumerate(exported.get("tensors", []))
    }
