"""What the workers of the compression tests run; each function is one worker's whole program."""

import numpy as np
import tensorflow as tf

from tests.multiprocess.communication_workers import create, local_values
from tfscale.distribute import _tf_private, agreement, all_reduce
from tfscale.distribute.compression import Int8, TopK, Uncompressed

SHAPES = ((3,), (40, 50), (7, 9), (130, 127), (6000,))
STEPS = 4


def gradient(step, replica, index):
    """The gradient of one replica: its scale differs from tensor to tensor."""
    generator = np.random.default_rng([step, replica, index])
    return (10.0 ** (index - 2) * generator.standard_normal(SHAPES[index])).astype(np.float32)


class Exchanges:
    """Sums gradients into variables, in a graph that is traced again when it has to be."""

    def __init__(self, strategy):
        self.strategy = strategy
        self.operation = _tf_private.cross_device_ops_of(strategy).owner
        with strategy.scope():
            self._variables = [
                tf.Variable(tf.zeros(shape), name=f"layer_{i}/kernel")
                for i, shape in enumerate(SHAPES)
            ]
        self._traced = None

    def step(self, gradient_of):
        """One step with the gradients ``gradient_of(replica, index)``; returns their sums."""
        if self._traced != self.operation.generation:
            self._function, self._traced = self._trace(), self.operation.generation
        devices = _tf_private.local_devices(self.strategy)
        first = _tf_private.worker_index(self.strategy) * len(devices)
        values = []
        for index in range(len(SHAPES)):
            values.append([])
            for i, device in enumerate(devices):
                with tf.device(device):
                    values[-1].append(tf.constant(gradient_of(first + i, index)))
        results = self._function([_tf_private.regroup(v) for v in values])
        if self.operation.wants_measurement:
            self.operation.after_step(self.strategy)
        for result in results:
            locals_ = local_values(result)
            assert all(np.array_equal(v, locals_[0], equal_nan=True) for v in locals_)
        return [local_values(result)[0] for result in results]

    def _trace(self):
        def merge(strategy, values):
            pairs = list(zip(values, self._variables, strict=True))
            return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)

        def replica(values):
            values = [tf.identity(value) for value in values]
            return tf.distribute.get_replica_context().merge_call(merge, args=(values,))

        return tf.function(lambda values: self.strategy.run(replica, args=(values,)))

    def owed(self):
        """The sum over the workers of what they hold back, for each variable."""
        exported = self.operation.state.export()
        mine = [residual.tolist() for residual in exported.get("residual", [])]
        total = [np.zeros(np.prod(shape, dtype=int)) for shape in SHAPES]
        for worker in agreement.gather_values(self.strategy, "owed", mine):
            for residual in worker:
                # All variables differ in size.
                (i,) = [i for i, s in enumerate(SHAPES) if np.prod(s) == len(residual)]
                total[i] += residual
        return total


def check_conservation(settings):
    """What was sent plus what is owed is what was given, through every change of compression."""
    facts = {}  # sums that all workers must have alike
    for setting in settings:
        exchanges = Exchanges(create(**setting))
        replicas = exchanges.strategy.num_replicas_in_sync
        given = [np.zeros(np.prod(shape, dtype=int)) for shape in SHAPES]
        sent = [np.zeros_like(g) for g in given]

        def run(number, exchanges=exchanges, given=given, sent=sent, replicas=replicas):
            grads = lambda r, i: gradient(number, r, i)  # noqa: E731
            for i, total in enumerate(exchanges.step(grads)):
                sent[i] += np.float64(total).ravel()
                given[i] += sum(np.float64(grads(r, i)).ravel() for r in range(replicas))

        def check(exchanges=exchanges, given=given, sent=sent):
            owed = exchanges.owed()
            for i in range(len(SHAPES)):
                scale = np.abs(given[i]).max()
                np.testing.assert_allclose(sent[i] + owed[i], given[i], atol=3e-6 * scale)
            return sum(np.abs(o).sum() for o in owed)

        for number in range(STEPS):
            run(number)
        assert check() > 0, setting
        # Another compressor takes over what is owed; without compression it is paid at once.
        for number, compression in enumerate((TopK(0.1, min_elements=100), Int8(), None)):
            exchanges.operation.set_compression(compression)
            run(STEPS + number)
            left = check()
        assert left == 0.0, setting
        run(STEPS + 3)
        assert check() == 0.0
        facts[len(facts)] = [float(s.sum()) for s in sent]
    return facts


def check_overflow(compression):
    """An infinite or NaN gradient of one replica shows everywhere, and leaves the state alone."""
    exchanges = Exchanges(create(compression=compression))
    last = exchanges.strategy.num_replicas_in_sync - 1
    exchanges.step(lambda r, i: gradient(0, r, i))
    before = exchanges.operation.state.export()
    for bad in (np.inf, np.nan):

        def spoilt(replica, index, bad=bad):
            value = gradient(1, replica, index)
            if replica == last and index == 3:
                value[5, 7] = bad
            return value

        totals = exchanges.step(spoilt)
        assert not np.all(np.isfinite(totals[3])), compression
        after = exchanges.operation.state.export()
        assert after["tensors"] == before["tensors"]
        for slot in ("residual", "velocity"):
            for old, new in zip(before.get(slot, []), after.get(slot, []), strict=True):
                np.testing.assert_array_equal(old, new)
    totals = exchanges.step(lambda r, i: gradient(2, r, i))
    assert all(np.all(np.isfinite(total)) for total in totals)


def check_momentum():
    """The velocity of a dense exchange is heavy-ball momentum, also on top of small tensors."""
    exchanges = Exchanges(create(compression=Uncompressed(momentum=0.9)))
    replicas = exchanges.strategy.num_replicas_in_sync
    velocity = [np.zeros(shape) for shape in SHAPES]
    for number in range(3):
        totals = exchanges.step(lambda r, i, n=number: gradient(n, r, i))
        for i, total in enumerate(totals):
            summed = sum(np.float64(gradient(number, r, i)) for r in range(replicas))
            velocity[i] = 0.9 * velocity[i] + summed
            scale = np.abs(velocity[i]).max()
            np.testing.assert_allclose(total, velocity[i], rtol=1e-5, atol=1e-6 * scale)


def check_momentum_through_a_change():
    """What is held back enters the sum once, and no velocity, when a dense phase pays it.

    The sums of heavy-ball momentum are linear in the gradients, so those that all steps should
    have had together are those that were sent and what is owed.
    """
    topk = TopK(0.05, momentum=0.9, min_elements=100)
    exchanges = Exchanges(create(compression=topk))
    replicas = exchanges.strategy.num_replicas_in_sync
    velocity = [np.zeros(np.prod(shape, dtype=int)) for shape in SHAPES]
    due = [np.zeros_like(v) for v in velocity]
    for number in range(6):
        if number == 3:
            exchanges.operation.set_compression(Uncompressed(momentum=0.9))
        totals = exchanges.step(lambda r, i, n=number: gradient(n, r, i))
        owed = exchanges.owed()
        for i, total in enumerate(totals):
            summed = sum(np.float64(gradient(number, r, i)).ravel() for r in range(replicas))
            velocity[i] = 0.9 * velocity[i] + summed
            due[i] += velocity[i] - np.float64(total).ravel()
            scale = np.abs(velocity[i]).max()
            np.testing.assert_allclose(due[i], owed[i], atol=1e-5 * scale, err_msg=str(number))
        assert any(map(np.any, owed)) == (number < 3)


def check_adaptive():
    """Plans are made after some steps, the same on all workers, and change no sum."""
    exchanges = Exchanges(create(bucket_bytes="adaptive"))
    replicas = exchanges.strategy.num_replicas_in_sync
    generations = []
    for number in range(9):
        totals = exchanges.step(lambda r, i, n=number: gradient(n, r, i))
        generations.append(exchanges.operation.generation)
        for i, total in enumerate(totals):
            summed = sum(np.float64(gradient(number, r, i)) for r in range(replicas))
            np.testing.assert_allclose(total, summed, rtol=1e-5, atol=1e-5 * np.abs(summed).max())
    assert generations[0] == 0 and generations[-1] == 1, generations
    assert not exchanges.operation.wants_measurement
    plan = all_reduce.plan_of(exchanges.strategy)
    resumed = Exchanges(create(bucket_bytes="adaptive"))
    resumed.operation.use_plan(plan)
    resumed.step(lambda r, i: gradient(0, r, i))
    assert not resumed.operation.wants_measurement
    assert all_reduce.plan_of(resumed.strategy)["plans"][-1] == plan["plans"][-1]
    resumed.operation.record_timeline()
    resumed.step(lambda r, i: gradient(0, r, i))
    rows = resumed.operation.timeline()
    assert sum(row["bytes"] for row in rows) == 4 * sum(np.prod(s, dtype=int) for s in SHAPES)
    assert all(row["ready"] <= row["start"] <= row["end"] for row in rows)
    return plan


def check_all(settings):
    facts = check_conservation(settings)
    for compression in ("int8", "topk", TopK(0.05, momentum=0.9)):
        check_overflow(compression)
    check_momentum()
    check_momentum_through_a_change()
    return facts, check_adaptive()


def check_other_grids():
    """What was held back on one arrangement of workers is paid on another, once, all of it."""
    topk = TopK(0.02, min_elements=50)
    workers = 4

    def owed_of(exported):
        total = [np.zeros(np.prod(shape, dtype=int)) for shape in SHAPES]
        for one in exported:
            for (path, *_), residual in zip(
                one.get("tensors", []), one.get("residual", []), strict=True
            ):
                total[int(path.split("/")[0].split("_")[1])] += np.float64(residual)
        return total

    def gathered(exchanges):
        exported = exchanges.operation.state.export()
        lists = exported | {"residual": [r.tolist() for r in exported.get("residual", [])]}
        return agreement.gather_values(exchanges.strategy, "all that is held back", lists)

    zeros = lambda r, i: np.zeros(SHAPES[i], np.float32)  # noqa: E731
    grids = (None, (2, 2), (4, 1), (1, 4))
    exchanges = Exchanges(create(compression=topk))
    me = _tf_private.worker_index(exchanges.strategy)
    exchanges.step(lambda r, i: gradient(0, r, i))
    exported = gathered(exchanges)
    # The same again, from three workers: another number of them.
    for grid, saved in [*((g, exported) for g in grids), ((2, 2), exported[:3])]:
        before = owed_of(saved)
        assert all(np.any(b) for b in before[1:2])
        exchanges = Exchanges(create(compression=topk, worker_grid=grid, bucket_bytes=20_000))
        state = exchanges.operation.state
        state.load(saved, me, workers)
        # All of it is there before a step, and after one that was too large for its precision.
        sent = [np.zeros_like(b) for b in before]
        spoilt = lambda r, i: np.full(SHAPES[i], np.inf if i == 1 and r == 3 else 0, np.float32)  # noqa: E731,E501
        for gradients in (None, spoilt, zeros, zeros):
            if gradients is not None:
                totals = exchanges.step(gradients)
                if gradients is zeros:
                    sent = [s + np.float64(t).ravel() for s, t in zip(sent, totals, strict=True)]
            # A checkpoint at any of these moments holds what is not yet sent.
            left = owed_of(gathered(exchanges))
            for b, s, o in zip(before, sent, left, strict=True):
                scale = np.abs(b).max() + 1e-30
                np.testing.assert_allclose(s + o, b, atol=3e-6 * scale, err_msg=str(grid))
        pending = [slots for slots in state._pending.values() if np.any(slots.get("residual", 0))]
        assert not pending, (grid, pending)
    # Momentum cannot be kept out of what others of the row are given.
    momentum = TopK(0.02, min_elements=50, momentum=0.9)
    exchanges = Exchanges(create(compression=momentum, worker_grid=(2, 2)))
    exchanges.operation.state.load(exported, me, workers)
    try:
        exchanges.step(zeros)
    except ValueError as error:
        assert "cannot take over, on a worker_grid" in str(error), error
    else:
        raise AssertionError("no error")
    # From a grid to the ring.
    grid = Exchanges(create(compression=topk, worker_grid=(2, 2)))
    grid.step(lambda r, i: gradient(2, r, i))
    saved = gathered(grid)
    for to in (None, (1, 4)):
        exchanges = Exchanges(create(compression=topk, worker_grid=to))
        exchanges.operation.state.load(saved, me, workers)
        totals = exchanges.step(zeros)
        left = owed_of(gathered(exchanges))
        for b, t, o in zip(owed_of(saved), totals, left, strict=True):
            np.testing.assert_allclose(np.float64(t).ravel() + o, b, atol=3e-6 * np.abs(b).max())
