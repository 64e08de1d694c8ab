"""The key-value store of the cluster, which lives in worker 0, with an answer in bounded time."""

import queue
import threading

import tensorflow as tf

from tfscale.distribute import _tf_private
from tfscale.distribute.lost_workers import explain_lost_worker


class KeyValueStore:
    """Calls the store, and names worker 0 where it does not answer.

    Where a link is cut, TensorFlow's calls never return; each gets a thread of its own, which is
    left behind then.

    Args:
        purpose: `str`, what the workers use it for; appears in messages.
        leader: `str`, the name of worker 0.

    Raises:
        RuntimeError: from every method, if worker 0 has ended or does not answer.
    """

    def __init__(self, purpose, leader):
        self._purpose, self._leader = purpose, leader

    def put(self, key, value):
        """Stores a string."""
        self._ask(_tf_private.put_key, key, value)

    def get(self, key, seconds):
        """Returns the string of `key`, or None if it did not appear within `seconds`."""
        return self._ask(_tf_private.get_key, key, seconds, patience=seconds)

    def delete(self, key):
        """Removes a key and all below it."""
        self._ask(_tf_private.delete_key, key)

    def check(self, key):
        """Raises RuntimeError if the store does not give `key`, which is there.

        To TensorFlow no answer in time and no such key are the same.
        """
        if self.get(key, _tf_private.heartbeat_seconds()) is None:
            raise self._unreachable()

    def _ask(self, function, *arguments, patience=0.0):
        answer = queue.SimpleQueue()

        def call():
            try:
                answer.put((function(*arguments), None))
            except Exception as error:
                answer.put((None, error))

        threading.Thread(target=call, daemon=True).start()
        try:
            # By then the heartbeats, too, have found out.
            result, error = answer.get(timeout=patience + _tf_private.heartbeat_seconds() + 1)
        except queue.Empty:
            raise self._unreachable() from None
        if isinstance(error, tf.errors.OpError):
            lost = explain_lost_worker(error) or f"{self._leader} fails: {error.message}"
            raise RuntimeError(f"no agreement on {self._purpose}: {lost}") from error
        if error is not None:
            raise error
        return result

    def _unreachable(self):
        return RuntimeError(
            f"{self._leader}, through which the workers agree on {self._purpose}, does not answer "
            "any more: it has ended or is stopped, or a link is down, its own or this worker's"
        )
