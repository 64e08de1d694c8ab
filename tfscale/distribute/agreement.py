"""What workers tell each other outside of collectives: gather values, agree on a value.

The words travel through the key-value store of the cluster's coordination service, not through
TensorFlow's collectives: a worker that asks for something else, or does not come, is named
instead of making the others hang.
"""

import hashlib
import json
import logging
import threading
import time

from tfscale.distribute import _tf_private
from tfscale.distribute.key_value_store import KeyValueStore

_logger = logging.getLogger("tfscale")
_CHUNK = 1 << 20  # a gRPC message may not exceed 4 MiB
_COMPLAIN_AFTER_SECONDS = 10
# Worker 0 takes the store with it when it ends.
_SECONDS_TO_READ = 2

_lock = threading.Lock()
_rounds = {}


def check_timeout(timeout_seconds):
    """Raises ValueError unless a timeout is a finite number above 0."""
    number = isinstance(timeout_seconds, (int, float)) and not isinstance(timeout_seconds, bool)
    if not number or not 0 < timeout_seconds < float("inf"):
        raise ValueError(
            "timeout_seconds must be a number of seconds above 0, got "
            f"timeout_seconds={timeout_seconds!r}"
        )


def gather_values(strategy, name, value, timeout_seconds=120):
    """Returns every worker's `value`; all workers have to call it with the same `name`.

    A name may be used again; the k-th call on one worker meets the k-th call on the others.

    Args:
        strategy: `tf.distribute.Strategy`. With one worker nobody is asked.
        name: `str`, what the value is; appears in messages.
        value: anything that JSON can hold.
        timeout_seconds: `float`, how long to wait for the others.

    Returns:
        `list` of the workers' values, in worker order, as JSON gives them back (tuples become
        lists).

    Raises:
        TimeoutError: if a worker's value did not come in time; names the missing workers.
        RuntimeError: if a worker has ended instead, or does not answer any more; names it.

    Example:
        >>> gather_values(strategy, "records", 6400)
        [6400, 6400]
    """
    if _tf_private.num_workers(strategy) == 1:
        return [json.loads(json.dumps(value))]
    with _Round(strategy, name, value, timeout_seconds) as meeting:
        headers = meeting.headers()
        return [meeting.value_of(worker, header) for worker, header in enumerate(headers)]


def agree(strategy, name, value, timeout_seconds=120):
    """Raises on all workers unless `value` is the same on all of them.

    Only digests travel while the values agree.

    Args:
        strategy: `tf.distribute.Strategy`. With one worker there is nothing to disagree with.
        name: `str`, what the value is; appears in messages.
        value: anything that JSON can hold.
        timeout_seconds: `float`, how long to wait for the others.

    Raises:
        ValueError: on every worker alike, naming the first worker whose value differs from
            worker 0's and the first item that differs.
        TimeoutError: if a worker's value did not come in time; names the missing workers.
        RuntimeError: if a worker has ended instead, or does not answer any more; names it.

    Example:
        >>> agree(strategy, "arguments", {"batch": 256, "seed": 0})
    """
    if _tf_private.num_workers(strategy) == 1:
        return
    with _Round(strategy, name, value, timeout_seconds) as meeting:
        headers = meeting.headers()
        for worker, header in enumerate(headers):
            if header["digest"] == headers[0]["digest"]:
                continue
            path, left, right = first_difference(
                meeting.value_of(0, headers[0]), meeting.value_of(worker, header)
            )
            names = _tf_private.worker_names(strategy)
            raise ValueError(
                f"the workers do not agree on {name}: {path or 'the value'} is {left} on "
                f"{names[0]} but {right} on {names[worker]}. Every worker must run the same "
                "program with the same arguments and data."
            )


def first_difference(left, right, path=""):
    """Returns ``(path, left item, right item)`` of the first difference; None if there is none.

    Args:
        left, right: values as JSON gives them: dicts, lists, strings, numbers, booleans, None.
        path: `str`, prefix of the path, e.g. ``"model"`` gives ``"model.layers[2]"``.

    Example:
        >>> first_difference({"a": [1, 2]}, {"a": [1, 3]})
        ('a[1]', '2', '3')
    """
    if isinstance(left, dict) and isinstance(right, dict):
        pairs = [
            (f"{path}.{key}" if path else key, left.get(key, _ABSENT), right.get(key, _ABSENT))
            for key in sorted({*left, *right})
        ]
    elif isinstance(left, list) and isinstance(right, list):
        pairs = [
            (f"{path}[{i}]", left[i] if i < len(left) else _ABSENT, other)
            for i, other in enumerate(right + [_ABSENT] * (len(left) - len(right)))
        ]
    elif left == right and isinstance(left, bool) == isinstance(right, bool):
        return None
    else:
        return path, _shown(left), _shown(right)
    for name, a, b in pairs:
        found = first_difference(a, b, name)
        if found:
            return found
    return None


_ABSENT = object()


def _shown(value):
    if value is _ABSENT:
        return "absent"
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."


class _Round:
    """One meeting of all workers under a name."""

    def __init__(self, strategy, name, value, timeout_seconds):
        self._strategy = strategy
        self._names = _tf_private.worker_names(strategy)
        self._me = _tf_private.worker_index(strategy)
        self._name = name
        self._store = KeyValueStore(name, self._names[0])
        self._timeout = timeout_seconds
        self._deadline = time.monotonic() + timeout_seconds
        with _lock:
            self._round = _rounds[name] = _rounds.get(name, -1) + 1
        text = json.dumps(value, sort_keys=True)
        self._chunks = [text[i : i + _CHUNK] for i in range(0, len(text), _CHUNK)] or [""]
        self._digest = hashlib.sha256(text.encode()).hexdigest()

    def __enter__(self):
        for i, chunk in enumerate(self._chunks):
            self._store.put(self._key(self._me, i), chunk)
        # The header comes last: who sees it can read the rest.
        header = {"chunks": len(self._chunks), "digest": self._digest}
        self._store.put(self._key(self._me, "header"), json.dumps(header))
        return self

    def __exit__(self, kind, *unused):
        if kind is None and self._round:
            # Whoever came to this round has read all of the one before.
            self._store.delete(self._key(self._me, round_=self._round - 1))

    def _key(self, worker, part=None, round_=None):
        round_ = self._round if round_ is None else round_
        key = f"tfscale/{self._name}/{round_}/{worker}"
        return key if part is None else f"{key}/{part}"

    def headers(self):
        """Every worker's header, in worker order."""
        found, complained = {}, False
        start = time.monotonic()
        while True:
            for worker in range(len(self._names)):
                if worker not in found:
                    text = self._store.get(self._key(worker, "header"), self._slice())
                    if text is not None:
                        found[worker] = json.loads(text)
            if len(found) == len(self._names):
                return [found[worker] for worker in range(len(self._names))]
            if failed := self._failed_workers(found):
                raise RuntimeError(
                    f"{', '.join(self._names[i] for i in failed)} ended before agreeing on "
                    f"{self._name}, or does not answer any more; look at its log for the reason."
                )
            missing = [name for i, name in enumerate(self._names) if i not in found]
            waited = time.monotonic() - start
            if time.monotonic() >= self._deadline:
                raise TimeoutError(
                    f"no word on {self._name} from {', '.join(missing)} within "
                    f"{self._timeout:g} s. Each worker has to come to the same point of the same "
                    "program; look at the log of the missing ones."
                )
            if waited > _COMPLAIN_AFTER_SECONDS and not complained:
                complained = True
                _logger.warning(
                    "waiting for %s to agree on %s (%d s so far, %d s at most)",
                    ", ".join(missing),
                    self._name,
                    waited,
                    self._timeout,
                )

    def _failed_workers(self, found):
        """Those not in `found` that are lost, which only worker 0 asks and tells the others.

        TensorFlow answers from worker 0, without letting go of Python's interpreter lock: a worker
        whose link is cut would stand still for ever.
        """
        key = f"tfscale/{self._name}/{self._round}/failed"
        if self._me:
            self._store.check(self._key(self._me, "header"))
            failed = json.loads(self._store.get(key, 0.001) or "[]")
            return [i for i in failed if i not in found]
        failed = [i for i in _tf_private.failed_workers(self._strategy) if i not in found]
        if failed:
            self._store.put(key, json.dumps(failed))
            time.sleep(_SECONDS_TO_READ)
        return failed

    def _slice(self):
        return min(1.0, max(0.01, self._deadline - time.monotonic()))

    def value_of(self, worker, header):
        """The value that a worker brought; its header is known, so it is there."""
        parts = []
        for i in range(header["chunks"]):
            part = self._store.get(self._key(worker, i), max(5.0, self._slice()))
            if part is None:
                self._store.check(self._key(self._me, "header"))
                raise TimeoutError(f"{self._names[worker]} withdrew its word on {self._name}")
            parts.append(part)
        return json.loads("".join(parts))
