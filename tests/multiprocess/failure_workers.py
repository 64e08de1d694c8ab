"""What the workers of the tests of disagreement, death and departure run."""

import json
import os
import signal
import time
from unittest import mock

import numpy as np
import tensorflow as tf

from tests.multiprocess.communication_workers import create, gradient_step
from tfscale.distribute import _tf_private, agreement, all_reduce
from tfscale.distribute import strategy as strategy_lib


def message_of(function, *arguments):
    """The type and text of what a call raises; None if it returns."""
    try:
        function(*arguments)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def disagree():
    """Agreements and disagreements of every kind on one cluster, which survives them all."""
    strategy = create()
    worker = _tf_private.worker_index(strategy)
    report = {}
    report["values"] = [
        agreement.gather_values(strategy, "rank", {"worker": worker, "round": i}) for i in range(3)
    ]
    big = "x" * (5 << 20)
    report["big"] = [len(v) for v in agreement.gather_values(strategy, "big", big + "y" * worker)]
    agreement.agree(strategy, "arguments", {"batch": 32})
    report["differ"] = message_of(
        agreement.agree, strategy, "arguments", {"batch": 32, "lr": [0.1, 0.2 + worker]}
    )
    agreement.agree(strategy, "arguments", {"batch": 32})
    report["settings"] = message_of(lambda: create(streams=2 + worker))
    report["buckets"] = message_of(lambda: create(bucket_bytes=(1 + worker) << 20))
    report["compression"] = message_of(lambda: create(compression=(None, "int8")[worker]))
    report["heartbeat"] = message_of(
        lambda: strategy_lib.create_strategy(heartbeat_seconds=5 + worker)
    )
    with mock.patch.object(strategy_lib, "_version", lambda name: f"{name} 1.{worker}"):
        report["version"] = message_of(create)
    start = time.monotonic()
    if worker == 0:
        report["alone"] = message_of(agreement.gather_values, strategy, "alone", 1, 2.0)
    report["alone seconds"] = time.monotonic() - start

    with strategy.scope():
        twins = [tf.Variable(tf.zeros([8]), name=name) for name in ("first", "second")]
    order = (lambda v: v) if worker == 0 else (lambda v: v[::-1])
    swapped = gradient_step(strategy, twins, lambda v: [(tf.ones_like(x), x) for x in order(v)])
    report["swapped"] = message_of(swapped)
    slices = tf.IndexedSlices(tf.ones([1]), tf.constant([3]), tf.constant([8]))
    report["swapped sparse"] = message_of(
        gradient_step(strategy, twins, lambda v: [(slices, x) for x in order(v)])
    )
    dtype = (tf.float32, tf.float16)[worker]
    report["dtype"] = message_of(
        gradient_step(strategy, twins, lambda v: [(tf.ones(x.shape, dtype), x) for x in v])
    )
    operation = all_reduce.Hierarchical2DAllReduce()
    other = strategy_lib.create_strategy(cross_device_ops=operation)
    operation.set_compression((None, "bfloat16")[worker])
    with other.scope():
        variable = tf.Variable(tf.zeros([8]), name="weights")
    report["later compression"] = message_of(
        gradient_step(other, [variable], lambda v: [(tf.ones_like(v[0]), v[0])])
    )
    # A gradient that is None on one worker only never reaches the reduction there.
    count = 2 if worker == 0 else 1
    report["missing"] = message_of(
        gradient_step(strategy, twins, lambda v: [(tf.ones_like(x), x) for x in v[:count]])
    )
    right = gradient_step(strategy, twins, lambda v: [(tf.ones_like(x), x) for x in v])
    report["right"] = [[g.numpy().tolist() for g in local] for local in right()]
    return report


def fail_before_the_first_step():
    """Worker 1 fails in its own Python code; worker 0 waits to agree on the gradients."""
    strategy = create()
    with strategy.scope():
        variable = tf.Variable(tf.zeros([8]), name="weights")
    step = gradient_step(strategy, [variable], lambda v: [(tf.ones_like(v[0]), v[0])])
    if _tf_private.worker_index(strategy) == 1:
        raise ValueError("no such directory")
    start = time.monotonic()
    try:
        step()
    finally:
        print(f"waited {time.monotonic() - start:.1f} s", flush=True)


def join_alone():
    """Worker 1 never joins; the pre-flight check, which would say so, is left out."""
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        _tf_private.MultiWorkerMirroredStrategy(resolver, "CPU", 1, timeout_seconds=3)


def lose_a_worker(how):
    """Worker 1 goes away between two steps; worker 0 should end with an error by itself."""
    strategy = create()
    with strategy.scope():
        variable = tf.Variable(tf.zeros([1000]), name="weights")
    step = gradient_step(strategy, [variable], lambda v: [(tf.ones_like(v[0]), v[0])])
    step()
    pids = agreement.gather_values(strategy, "pid", os.getpid())
    print("steps begin", flush=True)
    if _tf_private.worker_index(strategy) == 1:
        time.sleep(2)
        if how == "dies":
            os._exit(3)
        os.kill(pids[0], signal.SIGTERM)  # worker 0 is stuck in its step by now
        print("worker 0 was asked to end", time.time(), flush=True)
    start = time.monotonic()
    try:
        step()
    finally:
        print(f"ended {time.monotonic() - start:.1f} s after the last step began", flush=True)


def leave_early(first, seconds=4):
    """Worker `first` is done and exits seconds before the other: no failure for either."""
    strategy = create()
    strategy.reduce("SUM", tf.constant(1.0), axis=None)
    if _tf_private.worker_index(strategy) != first:
        time.sleep(seconds)
        return float(np.sum(np.ones(10)))
    return 0.0
