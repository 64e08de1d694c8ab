"""What a run needs of the memory of a device, before it is started."""

import math


def lines(run, topology, phases, model, optimizer):
    """The memory as lines of the plan, of a `RunConfig` on the replicas of a `Topology`."""
    found = bytes_of(run, topology, phases, model, optimizer)
    parts = ", ".join(f"{name} {_size(size)}" for name, size in found.items())
    return [
        f"memory of a device: {_size(sum(found.values()))} = {parts}",
        "  activations are estimated: the output of every layer, once, in its own type, for the "
        "examples that are computed at a time; XLA keeps fewer, cuDNN's workspace comes on top",
    ]


def bytes_of(run, topology, phases, model, optimizer):
    """Bytes of one device: what of them is exact, and the activations, which are estimated."""
    import tensorflow as tf

    trainable = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    largest = largest_of(phases)
    each = -(-largest.global_batch_size // topology.num_replicas)
    outputs = [tf.nest.flatten(layer.output)[0] for layer in model.layers]
    activations = sum(math.prod(t.shape[1:]) * tf.as_dtype(t.dtype).size for t in outputs)
    variables = [variable for variable in optimizer.variables if len(variable.shape)]
    copies = 0 if run.precision == "float32" else 2
    return {
        "weights": 4 * model.count_params() + copies * trainable,
        "gradients": 4 * trainable * (2 if run.micro_batches > 1 else 1),
        "slots": sum(4 * math.prod(variable.shape) for variable in variables),
        "activations": activations * -(-each // run.micro_batches),
        "pictures": 3 * largest.image_size**2 * each,
    }


def largest_of(phases):
    """The phase that needs most."""
    return max(phases, key=lambda phase: phase.image_size**2 * phase.global_batch_size)


def _size(size):
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
