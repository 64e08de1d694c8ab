"""TensorFlow's distribution of crop windows in NumPy, for peers that bring no sampler."""

import json

import numpy as np

ROUNDS = 8  # windows of each picture in `mean_area`


def sample(height, width, generator, attempts=10):
    """Returns (top, left, height, width): aspect uniform, then the height that keeps the area."""
    whole = height * width
    for _ in range(attempts):
        aspect = generator.uniform(3 / 4, 4 / 3)
        low = round((0.08 * whole / aspect) ** 0.5)
        high = min(round((whole / aspect) ** 0.5), height, int((width + 0.499) / aspect))
        rows = int(generator.integers(min(low, high), high + 1))
        columns = round(rows * aspect)
        if 0.08 * whole <= rows * columns <= whole and columns <= width and rows >= 1:
            top = int(generator.integers(height - rows + 1))
            left = int(generator.integers(width - columns + 1))
            return top, left, rows, columns
    return 0, 0, height, width


def mean_area(listing):
    """Returns the mean share of a picture's area in such windows, over the pictures of a list."""
    with open(listing) as file:
        shapes = [entry[2:] for entry in json.load(file)] * ROUNDS
    generator = np.random.default_rng(0)
    cuts = [sample(*shape, generator) for shape in shapes]
    shares = [
        rows * columns / (height * width)
        for (_, _, rows, columns), (height, width) in zip(cuts, shapes, strict=True)
    ]
    return float(np.mean(shares))
