"""One worker of the tests of cut links and stopped processes, on a host of the network lab.

    python -m tests.multiprocess.link_failure_workers train|agree STEPS HEARTBEAT_SECONDS

Prints ``step i`` as it goes, then ``weights ...`` or ``raised SECONDS TYPE`` and, on the lines
after, what a user is told, and would be if this worker had first heard of the end of worker 2.
"""

import itertools
import sys
import time

import numpy as np
import tensorflow as tf

from tests.multiprocess.communication_workers import gradient_step
from tfscale.distribute import _tf_private, agreement
from tfscale.distribute import strategy as strategy_lib
from tfscale.distribute.lost_workers import explain_lost_worker

SHAPES = [(300, 400), (7,)]
END_OF_WORKER_2 = (
    "Collective ops is aborted by: recvmsg:Connection reset by peer\nAdditional GRPC error "
    "information from remote target /job:worker/replica:0/task:2 while calling "
    "/tensorflow.WorkerService/RecvBuf:\n:UNKNOWN:Error received from peer"
)


def train(strategy, steps):
    """Adds gradients that are whole numbers, so that the weights are known to the bit."""
    rank = tf.constant(_tf_private.worker_index(strategy) + 1.0)
    with strategy.scope():
        variables = [tf.Variable(tf.zeros(shape), name=str(shape)) for shape in SHAPES]
        count = tf.Variable(0.0, trainable=False, name="count")
    step = gradient_step(
        strategy, variables, lambda vs: [(tf.fill(v.shape, rank * (count + 1)), v) for v in vs]
    )
    weights = [np.zeros(shape, np.float32) for shape in SHAPES]
    for i in range(steps):
        count.assign(float(i))
        for weight, gradient in zip(weights, step()[0], strict=True):
            weight += gradient.numpy()
        print("step", i, flush=True)
    workers = _tf_private.num_workers(strategy)
    expected = np.float32(sum(range(1, workers + 1)) * sum(range(1, steps + 1)))
    right = all(np.array_equal(w, np.full_like(w, expected)) for w in weights)
    print("weights", "right" if right else f"{weights[0]} for {expected}", flush=True)


def agree(strategy, steps):
    """Agrees on one number after the other."""
    for i in itertools.islice(itertools.count(), steps):
        agreement.agree(strategy, "a number", i)
        print("step", i, flush=True)


def main(what, steps, heartbeat_seconds):
    strategy = strategy_lib.create_strategy(heartbeat_seconds=float(heartbeat_seconds))
    try:
        {"train": train, "agree": agree}[what](strategy, int(steps))
        agreement.gather_values(strategy, "finished", True)
    except (tf.errors.OpError, RuntimeError) as error:
        print(f"raised {time.time()} {type(error).__name__}", flush=True)
        # A TensorFlow error is for the caller to explain; ours have done it.
        told = explain_lost_worker(error) if isinstance(error, tf.errors.OpError) else error
        print(f"told {told}", flush=True)
        print(f"of 2 {explain_lost_worker(END_OF_WORKER_2)}", flush=True)
        print(error, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
