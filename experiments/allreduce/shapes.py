"""The gradients that the benchmark exchanges."""

import math


def resnet50():
    """Returns the shapes of ResNet-50's 161 trainable tensors, 25.6 M parameters, in model order.

    Example:
        >>> len(resnet50()), sum(math.prod(shape) for shape in resnet50())
        (161, 25557032)
    """
    shapes = [(7, 7, 3, 64), (64,), (64,)]
    channels = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            if block == 0:  # The projection of the shortcut.
                shapes += [(1, 1, channels, 4 * width), (4 * width,), (4 * width,)]
            shapes += [(1, 1, channels, width), (width,), (width,)]
            shapes += [(3, 3, width, width), (width,), (width,)]
            shapes += [(1, 1, width, 4 * width), (4 * width,), (4 * width,)]
            channels = 4 * width
    return [*shapes, (2048, 1000), (1000,)]


def small():
    """Returns a few shapes of 0.3 M parameters, small ones among them: for a quick look."""
    return [(3, 3, 3, 16), (16,), (3, 3, 16, 256), (256,), (512, 512), (512,), (512, 10), (10,)]


SETS = {"resnet50": resnet50, "small": small}


def elements(shapes):
    """Returns the number of parameters."""
    return sum(math.prod(shape) for shape in shapes)
