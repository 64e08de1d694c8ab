"""A group of workers in one process, one thread a member, which counts the bytes that they send."""

import threading

import numpy as np
import tensorflow as tf


class MemberGroup:
    """What `CollectiveGroup` is to one member; see `all_reduce_by`."""

    def __init__(self, members, rank, size):
        self.rank, self.size = rank, size
        self.bytes_sent = 0.0
        self._members = members

    def all_reduce(self, x):
        self.bytes_sent += 2 * (self.size - 1) / self.size * _bytes(x)  # a ring
        total = tf.identity(self._exchange(x)[0])
        for row in self._members.latest[1:]:
            total = total + row
        return total

    def all_gather(self, x):
        self.bytes_sent += (self.size - 1) * _bytes(x)  # each part is passed on by all but one
        return tf.concat(self._exchange(x), 0)

    def exchange(self, x):
        return self.all_gather(x)  # as many bytes, straight to each

    def all_to_all(self, x):
        assert x.shape[0] == self.size
        self.bytes_sent += (self.size - 1) / self.size * _bytes(x)
        return tf.stack([row[self.rank] for row in self._exchange(x)])

    def _exchange(self, x):
        return self._members.exchange(self.rank, x)


class _Members:
    def __init__(self, size):
        self._barrier = threading.Barrier(size, timeout=30)
        self._rows = [None] * size
        self.latest = None

    def exchange(self, rank, x):
        self._rows[rank] = x
        self._barrier.wait()
        rows = list(self._rows)
        assert len({(row.shape, row.dtype) for row in rows}) == 1
        self._barrier.wait()
        self.latest = rows
        return rows

    def abort(self):
        self._barrier.abort()


class EchoGroup:
    """A group whose other members say just what this one says; for graphs and for counting."""

    def __init__(self, size, rank=0):
        self.size, self.rank = size, rank

    def all_reduce(self, x):
        return x * self.size

    def all_gather(self, x):
        return tf.concat([x] * self.size, 0)

    def exchange(self, x):
        return self.all_gather(x)

    def all_to_all(self, x):
        return tf.stack([x[self.rank]] * self.size)


def all_reduce_by(compressor, rows, states=None):
    """Runs one all-reduce of every member, as it is written, each in its own thread.

    Args:
        rows: list with each member's float32 ``[n]``.
        states: list with each member's tuple of states; zeros by default.

    Returns:
        ``(list of each member's Reduced, as NumPy, list of the bytes that each sent)``.
    """
    size = len(rows)
    states = states or [zero_state(compressor, len(rows[0]))] * size
    members = _Members(size)
    groups = [MemberGroup(members, rank, size) for rank in range(size)]
    results, errors = [None] * size, []

    def member(rank):
        try:
            state = tuple(tf.constant(s) for s in states[rank])
            reduced = compressor.all_reduce(tf.constant(rows[rank]), groups[rank], state)
            results[rank] = tf.nest.map_structure(lambda t: t.numpy(), reduced)
        except Exception as error:
            errors.append(error)
            members.abort()

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results, [group.bytes_sent for group in groups]


def zero_state(compressor, n):
    return tuple(np.zeros(n, np.float32) for _ in compressor.slots)


def kept(old, reduced):
    """The state that a caller keeps: the old one unless all that travelled was finite."""
    return reduced.state if reduced.finite else old


def _bytes(x):
    return x.shape.num_elements() * x.dtype.size
