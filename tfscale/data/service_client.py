"""Pictures made by a data service, in the order in which training needs them.

A step goes to one of the data workers, and its pictures come back when they are done: in any
order, or never, if the worker was killed. Here they are put in order again. What is missing is
made here. As a picture is a function of its step, the result is the same to the bit.
"""

import collections
import itertools
import logging
import math
import queue
import threading

import numpy as np
import tensorflow as tf

from tfscale.data import pipeline, repair, service_address

CALLS = 64  # decode calls in a data worker, of which its threads run as many as it has
ROWS = 32  # rows of a vector: one call of the native ops, which holds one thread
AHEAD = 2, 4  # steps begun in a data worker, fewest and most, for this many rows in all:
BEGUN = 512
REQUESTS = 2, 16  # elements asked for at a time, fewest and most
WINDOW = 8, 64  # steps kept while an earlier one is missing, fewest and most
BYTES = 2 << 30  # that either may take
REGISTER_SECONDS, MENTION_SECONDS = 30.0, 10.0
GONE_SECONDS, GIVE_UP_SECONDS = 30.0, 300.0  # without the dispatcher, and with it
_PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
_NEVER = 2**62

logger = logging.getLogger("tfscale")


def distribute(address, first_step, vectors_of, per_step, probe):
    """Returns the pictures of a run of steps, made by a data service.

    Args:
        address: "host:port" of the service, see `service_address.resolve`.
        first_step: `int`.
        vectors_of: function of a step, an int64 scalar tensor, to a `tf.data.Dataset` of
            (position, image, label, weight, record): vectors of the rows of this step, in
            ascending positions, those of bad records left out. Graph ops only.
        per_step: `int`, rows of a step.
        probe: `repair.Repair.probe`.

    Returns:
        An endless `tf.data.Dataset` of such vectors, for `pipeline.whole_batches`: the steps in
        order, and no step silently absent.

    Raises:
        ConnectionError: if no service answers at the address.
        ValueError: if `vectors_of` uses Python functions or tables of this process.

    Example:
        ```python
        vectors = distribute("10.0.0.7:5050", 0, vectors_of, rows.per_step, mend.probe)
        batches = pipeline.whole_batches(vectors, 0, mend, batch_size)
        ```
    """
    service_address.wait_for(address)
    with tf.device("CPU:0"):
        ahead = _number(AHEAD, BEGUN, per_step)
        dataset = _made_by_service(first_step, vectors_of, ahead)
    _refuse_local(dataset)
    dataset_id = _register(address, dataset)
    spec = dataset.element_spec
    step_bytes = per_step * sum(s.dtype.size * math.prod(s.shape[1:]) for s in spec[1:])

    def made():
        with tf.device("CPU:0"):
            return tf.data.experimental.service.from_dataset_id(
                tf.data.experimental.service.ShardingPolicy.DYNAMIC,
                f"grpc://{address}",
                dataset_id,
                spec,
                max_outstanding_requests=_number(REQUESTS, BYTES, step_bytes),
            ).with_options(pipeline.options())

    def vectors():
        window = _number(WINDOW, BYTES, step_bytes)
        steps = _Ordered(address, first_step, vectors_of, per_step, probe, made, window)
        yield from steps.vectors()

    return tf.data.Dataset.from_generator(vectors, output_signature=spec[1:])


def _number(bounds, total, each):
    low, high = bounds
    return max(low, min(high, total // each))


def _made_by_service(first_step, vectors_of, ahead):
    """Returns the dataset of (step, position, ...) that the data workers share among them.

    An element without rows ends each step. Without it nobody would know whether rows are missing
    because they are bad, or are still to come.
    """

    @tf.autograph.experimental.do_not_convert
    def of_step(step):
        vectors = vectors_of(step)
        end = [tf.zeros([0, *part.shape[1:]], part.dtype) for part in vectors.element_spec]
        loose = vectors.map(lambda *parts: (step, *map(_any_length, parts)))
        end = tf.data.Dataset.from_tensors((step, *end))
        return loose.concatenate(end.map(lambda step, *parts: (step, *map(_any_length, parts))))

    made = tf.data.Dataset.range(first_step, _NEVER).interleave(
        of_step, cycle_length=ahead, num_parallel_calls=ahead, deterministic=False
    )
    return made.with_options(pipeline.options())


def _any_length(part):
    return tf.ensure_shape(part, [None, *part.shape[1:]])


def _refuse_local(dataset):
    """Raises for a dataset that only this process can run: each record would fail silently."""
    try:
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset), external_state_policy=1
        )
    except tf.errors.FailedPreconditionError as error:
        raise ValueError(
            "the pictures are made from something in this process's memory, which a data service "
            f"cannot have: use no cache with it ({error.message})"
        ) from None
    graph = tf.compat.v1.GraphDef.FromString(graph.numpy())
    functions = {f.signature.name: f.node_def for f in graph.library.function}
    for name, nodes in {"the dataset": graph.node, **functions}.items():
        for node in nodes:
            if node.op in _PYTHON_OPS:
                raise ValueError(
                    f"a data service cannot run Python, and the pictures need it ({node.op} "
                    f"{node.name!r} in {name}): use TensorFlow ops only in augment, no "
                    "tf.py_function or tf.numpy_function, and no cache"
                )


def _register(address, dataset):
    """Returns the service's number for a dataset."""
    outcome = queue.Queue()

    def register():
        try:
            with tf.device("CPU:0"):
                outcome.put(
                    tf.data.experimental.service.register_dataset(
                        # Pictures hardly get smaller, and it costs as much time as the transfer.
                        f"grpc://{address}", dataset, compression=None
                    )
                )  # fmt: skip
        except Exception as error:  # noqa: BLE001
            outcome.put(error)

    # TensorFlow tries for ever where something else listens at the address.
    threading.Thread(target=register, daemon=True).start()
    try:
        result = outcome.get(timeout=REGISTER_SECONDS)
    except queue.Empty:
        raise ConnectionError(
            f"what listens at {address} has not answered as a data service for "
            f"{REGISTER_SECONDS:.0f} s: is another program on that port?"
        ) from None
    if isinstance(result, Exception):
        raise result
    return result


class _Ordered:
    """One pass over the steps: reads what the service sends, and hands it on in order."""

    def __init__(self, address, first_step, vectors_of, per_step, probe, made, window):
        self._address, self._step, self._vectors_of = address, first_step, vectors_of
        self._per_step, self._probe, self._made, self._window = per_step, probe, made, window
        self._arrivals, self._closed = queue.Queue(maxsize=2), threading.Event()
        self._pending = collections.defaultdict(list)  # step: vectors
        self._ended = set()  # steps of which all has come
        self._made_here = 0

    def vectors(self):
        threading.Thread(target=self._read, daemon=True, name="data service").start()
        try:
            while True:
                yield from self._next()
                self._step += 1
        finally:
            self._closed.set()

    def _read(self):
        """Passes elements on. It is a thread so that waiting for them can be given up."""
        try:
            for element in self._made():
                if not self._pass_on(element):
                    return
            raise RuntimeError("the data service has ended the endless dataset")
        except Exception as error:  # noqa: BLE001
            self._pass_on(error)

    def _pass_on(self, item):
        while not self._closed.is_set():
            try:
                self._arrivals.put(item, timeout=0.5)
                return True
            except queue.Full:
                pass
        return False

    def _next(self):
        """Returns the vectors of the next step."""
        step = self._step
        while step not in self._ended:
            if len(self._ended) >= self._window:
                self._mention_made_here()
                self._pending.pop(step, None)
                return self._here(step) or self._nothing(step)
            self._take(self._arrival())
        self._ended.remove(step)
        vectors = self._pending.pop(step, [])
        if not vectors and self._here(step):
            raise ValueError(
                f"the data service at {self._address} could read no record of step {step}, and "
                "this process can: its data workers must see the records under the same paths"
            )
        return vectors or self._nothing(step)

    def _take(self, element):
        step, *vector = element
        step = int(step)
        if step < self._step:
            return  # made here by now
        if not vector[0].shape[0]:
            self._ended.add(step)
            return
        self._pending[step].append(tuple(vector))
        if sum(int(v[0].shape[0]) for v in self._pending[step]) == self._per_step:
            self._ended.add(step)

    def _here(self, step):
        """Makes the vectors of a step in this process."""
        with tf.device("CPU:0"):
            vectors = self._vectors_of(tf.constant(step, tf.int64))
            return list(vectors.with_options(pipeline.options()))

    def _nothing(self, step):
        """All records of the step are bad: what is good in place of the first, or POISON.

        Without it, a job with no good record would search for one for ever.
        """
        if self._probe(np.int64(step)):
            return []
        with tf.device("CPU:0"):
            spec = self._vectors_of(tf.constant(step, tf.int64)).element_spec
        poison = [np.zeros([1, *part.shape[1:]], part.dtype.as_numpy_dtype) for part in spec]
        poison[0][:], poison[-1][:] = step * self._per_step, repair.POISON
        return [tuple(poison)]

    def _arrival(self):
        """Returns the next element; says so when it does not come, and gives up in the end."""
        for turn in itertools.count(1):
            try:
                item = self._arrivals.get(timeout=MENTION_SECONDS)
            except queue.Empty:
                self._mention_silence(turn * MENTION_SECONDS)
                continue
            if isinstance(item, Exception):
                advice = (
                    "; it runs without tfscale's C ops: install the package there as here, or set "
                    "TFSCALE_NATIVE=0 here"
                    if "Op type not registered 'Tfscale" in str(item)
                    else ""
                )
                raise RuntimeError(
                    f"the data service at {self._address} failed: {item}{advice}"
                ) from item
            return item

    def _mention_silence(self, seconds):
        there = service_address.answers(self._address)
        reason = (
            "it answers, but no data worker sends anything: they may be gone (add one: python -m "
            f"tfscale.data.service --dispatcher={self._address}), or very slow"
            if there
            else "it does not answer any more: was it stopped?"
        )
        text = (
            f"the data service at {self._address} has sent nothing for {seconds:.0f} s, "
            f"step {self._step} waits for it; {reason}"
        )
        if seconds >= (GIVE_UP_SECONDS if there else GONE_SECONDS):
            raise ConnectionError(text)
        logger.warning("%s", text)

    def _mention_made_here(self):
        self._made_here += 1
        if self._made_here & (self._made_here - 1) == 0:  # 1, 2, 4, ...
            logger.warning(
                "data service at %s: step %d did not come in time and is made here (%d step(s) so "
                "far): a data worker was stopped, or is slower than the others",
                self._address, self._step, self._made_here,
            )  # fmt: skip
