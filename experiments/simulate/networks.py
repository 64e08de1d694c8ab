"""Networks as the cost model sees them: bytes of each gradient, and when it is ready."""

import dataclasses
import itertools
import math

from experiments.allreduce.shapes import bottleneck_kernels, bottleneck_resnet

# Of forward and backward; backward computes two products where forward computes one.
_BACKWARD_SHARE = 2 / 3
# Tensors of a network of which only the number of parameters is known.
_EVEN_TENSORS = 160


@dataclasses.dataclass(frozen=True)
class Network:
    """Trainable tensors in model order, and the work that each one's layer takes.

    Attributes:
        name: `str`.
        shapes: tuple of shapes.
        work: tuple of numbers, in any unit: share of the computation that ends in the tensor.
        exact: `bool`; False where the tensors are made up from a number of parameters.
    """

    name: str
    shapes: tuple
    work: tuple
    exact: bool = True

    @property
    def parameters(self):
        """Number of trainable parameters."""
        return sum(math.prod(shape) for shape in self.shapes)

    def gradient_bytes(self):
        """Returns float32 bytes of each gradient, the last layer first."""
        return [4 * math.prod(shape) for shape in reversed(self.shapes)]

    def ready_seconds(self, step_seconds):
        """Returns when each gradient is ready, the last layer first.

        The forward pass takes a third of the step; the backward pass is divided among the layers
        by their work.
        """
        forward = step_seconds * (1 - _BACKWARD_SHARE)
        total = sum(self.work)
        done = itertools.accumulate(reversed(self.work))
        return [forward + step_seconds * _BACKWARD_SHARE * d / total for d in done]


def resnet(name, depths):
    """A bottleneck ResNet v1.5 at 224 pixels, 1000 classes: work is multiply-adds."""
    work = []
    for kernel, pixels in bottleneck_kernels(depths):
        work += [math.prod(kernel) * pixels**2, 0, 0]  # its norm's two tensors come with it
    return Network(name, tuple(bottleneck_resnet(depths)), (*work, 2048 * 1000, 0))


def vgg16():
    """VGG-16 at 224 pixels, 1000 classes: most parameters sit in the first dense layer."""
    shapes, work, channels, size = [], [], 3, 224
    for convolutions, filters in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(convolutions):
            shapes += [(3, 3, channels, filters), (filters,)]
            work += [9 * channels * filters * size**2, 0]
            channels = filters
        size //= 2
    for inputs, outputs in ((7 * 7 * 512, 4096), (4096, 4096), (4096, 1000)):
        shapes += [(inputs, outputs), (outputs,)]
        work += [inputs * outputs, 0]
    return Network("vgg16", tuple(shapes), tuple(work))


def even(parameters, name="network"):
    """A network of which only the number of parameters is known: equal tensors, equal work."""
    count = min(_EVEN_TENSORS, parameters)
    edges = [parameters * i // count for i in range(count + 1)]
    shapes = tuple((b - a,) for a, b in itertools.pairwise(edges))
    return Network(name, shapes, (1,) * count, exact=False)


NETWORKS = {
    "resnet50": lambda: resnet("resnet50", (3, 4, 6, 3)),
    "resnet101": lambda: resnet("resnet101", (3, 4, 23, 3)),
    "resnet152": lambda: resnet("resnet152", (3, 8, 36, 3)),
    "vgg16": vgg16,
    "bert_base": lambda: even(110_000_000, "bert_base"),
    "bert_large": lambda: even(340_000_000, "bert_large"),
}


def network(name=None, parameters=None):
    """Returns the network of a name, or one of that many parameters.

    Raises:
        ValueError: for an unknown name, or neither or both of the arguments.
    """
    if (name is None) == (parameters is None):
        raise ValueError("give one of --model=NAME and --parameters=NUMBER")
    if parameters is not None:
        return even(parameters, f"{parameters / 1e6:g} M parameters")
    if name not in NETWORKS:
        raise ValueError(
            f"unknown model {name!r}; choose one of {', '.join(NETWORKS)}, or say "
            "--parameters=NUMBER for another one"
        )
    return NETWORKS[name]()
