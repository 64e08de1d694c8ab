"""Tables of text, for people."""

import math


def aligned(cells):
    """Returns rows of cells as lines: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = []
    for row in cells:
        first = row[0].ljust(widths[0])
        rest = (c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))
        lines.append("  ".join([first, *rest]).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def megabytes(size):
    """Returns a number of bytes in MB with at least three digits that count.

    Example:
        >>> megabytes(153_300_000), megabytes(12_340), megabytes(0)
        ('153.3', '0.0123', '0.0')
    """
    if not size:
        return "0.0"
    value = size / 1e6
    return f"{value:.{max(1, 2 - math.floor(math.log10(value)))}f}"
