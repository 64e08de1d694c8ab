"""What the workers of the communication tests run; each function is one worker's whole program."""

import numpy as np


def first_light():
    """Sums and group collectives on a fresh cluster."""
    import signal

    import tensorflow as tf

    from tfscale.distribute import _tf_private, strategy

    s = strategy.create_strategy("multi_worker_mirrored")
    devices = _tf_private.local_devices(s)
    workers, worker = _tf_private.num_workers(s), _tf_private.worker_index(s)
    groups = [_tf_private.collective_group(s, "test", workers, d, 0) for d in devices]

    @tf.function
    def columns():
        outputs = []
        for i, (d, group) in enumerate(zip(devices, groups, strict=True)):
            with tf.device(d):
                x = tf.range(workers * 2, dtype=tf.float32) + 100.0 * worker + 1000.0 * i
                outputs.append(
                    (
                        group.all_reduce(x),
                        group.all_gather(x[:1]),
                        group.all_to_all(tf.reshape(x, [workers, 2])),
                    )
                )
        return outputs

    outputs = tf.nest.map_structure(lambda t: t.numpy(), columns())
    total = s.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([3])))
    total = np.stack([t.numpy() for t in s.experimental_local_results(total)])
    return outputs, total, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
