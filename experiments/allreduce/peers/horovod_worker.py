"""One worker of Horovod on gloo; runs in the environment of Horovod.

Each gradient is an `hvd.allreduce` of its own, which Horovod fuses into messages, as under its
`DistributedGradientTape`.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import horovod.tensorflow as hvd
import tensorflow as tf

from experiments.allreduce.peers import measuring


def main():
    settings = measuring.settings()
    tf.config.threading.set_intra_op_parallelism_threads(settings["threads"])
    hvd.init()
    rank, workers = hvd.rank(), hvd.size()
    if (rank, workers) != (settings["rank"], settings["workers"]):
        raise SystemExit(f"Horovod made this worker {rank} of {workers}, expected {settings}")
    half = settings["method"] == "horovod+fp16"
    compression = hvd.Compression.fp16 if half else hvd.Compression.none
    # The same on all workers but for a factor, so that every sum is known.
    gradients = [
        tf.Variable((tf.random.stateless_uniform(shape, [0, i]) + 0.5) * (rank + 1))
        for i, shape in enumerate(settings["shapes"])
    ]

    @tf.function
    def all_reduce():
        return [
            hvd.allreduce(gradient, op=hvd.Sum, compression=compression, name=f"gradient_{i}")
            for i, gradient in enumerate(gradients)
        ]

    def barrier():
        hvd.allreduce(tf.zeros([]), name="barrier").numpy()

    measured = measuring.measure(all_reduce, barrier, settings["repeats"])
    for gradient, total in zip(gradients, all_reduce(), strict=True):
        expected = float(tf.reshape(gradient, [-1])[0]) / (rank + 1)
        expected *= workers * (workers + 1) / 2
        first = tf.reshape(total, [-1])[0]
        measuring.expect(first, expected, f"the sum of a gradient of {gradient.shape}")
    measuring.report(measured)
    hvd.shutdown()


if __name__ == "__main__":
    main()
