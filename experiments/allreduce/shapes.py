"""The gradients that the benchmark exchanges."""

import math


def bottleneck_kernels(depths):
    """Returns the kernels of a bottleneck ResNet v1.5 at 224 pixels, in model order.

    Args:
        depths: blocks of each of the four stages; ``(3, 4, 6, 3)`` is ResNet-50.

    Returns:
        list of ``(shape of the kernel, height of its output)``, without the dense layer.
    """
    kernels = [((7, 7, 3, 64), 112)]
    channels, size = 64, 56
    for stage, (blocks, width) in enumerate(zip(depths, (64, 128, 256, 512), strict=True)):
        for block in range(blocks):
            inner = size // 2 if stage and not block else size
            if not block:  # The projection of the shortcut.
                kernels.append(((1, 1, channels, 4 * width), inner))
            kernels.append(((1, 1, channels, width), size))
            kernels.append(((3, 3, width, width), inner))
            kernels.append(((1, 1, width, 4 * width), inner))
            channels, size = 4 * width, inner
    return kernels


def bottleneck_resnet(depths):
    """Returns the shapes of a ResNet's trainable tensors: kernels, each norm's gamma and beta."""
    shapes = []
    for kernel, _ in bottleneck_kernels(depths):
        shapes += [kernel, (kernel[-1],), (kernel[-1],)]
    return [*shapes, (2048, 1000), (1000,)]


def resnet50():
    """Returns the shapes of ResNet-50's 161 trainable tensors, 25.6 M parameters, in model order.

    Example:
        >>> len(resnet50()), sum(math.prod(shape) for shape in resnet50())
        (161, 25557032)
    """
    return bottleneck_resnet((3, 4, 6, 3))


def small():
    """Returns a few shapes of 0.3 M parameters, small ones among them: for a quick look."""
    return [(3, 3, 3, 16), (16,), (3, 3, 16, 256), (256,), (512, 512), (512,), (512, 10), (10,)]


def one():
    """Returns one shape of as many parameters as ResNet-50: nothing to fuse, join or divide."""
    return [(elements(resnet50()),)]


SETS = {"resnet50": resnet50, "small": small, "one": one}


def elements(shapes):
    """Returns the number of parameters."""
    return sum(math.prod(shape) for shape in shapes)
