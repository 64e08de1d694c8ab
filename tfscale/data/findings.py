"""What a check of records finds: faults with their places, and how often each class occurs."""

import dataclasses

import numpy as np

TABLE = 40  # classes that are listed one by one
RARE = 0.1  # of the median


@dataclasses.dataclass(frozen=True)
class Finding:
    """One fault.

    Args:
        split: `str`.
        file: `str`, its path.
        text: `str`, one line for people: the place and the reason.
        number: `int`, of the record in the file; None for what is of no one record.
        offset, size: `int`, the bytes concerned; None for those of the whole file.
    """

    split: str
    file: str
    text: str
    number: int | None = None
    offset: int | None = None
    size: int | None = None

    def __str__(self):
        return self.text


def class_lines(counts, class_names, num_classes):
    """Describes how often each class occurs.

    All of up to `TABLE` classes are listed; of more, the range, and those that never occur or
    are rarer than `RARE` of the median.

    Args:
        counts: `dict` of label to records.
        class_names: sequence of `str`, by label; empty if unknown.
        num_classes: `int`.

    Returns:
        `list` of `str`.

    Example:
        >>> class_lines({0: 2, 1: 30}, ("owl", "ape"), 2)
        ['  label  count  name', '      0      2  owl', '      1     30  ape']
    """
    number = np.array([counts.get(label, 0) for label in range(num_classes)], np.int64)

    def rows(labels):
        wide = max(5, len(str(num_classes)), len(str(number.max())))
        return [f"  {'label':>{wide}}  {'count':>{wide}}  name".rstrip()] + [
            f"  {label:>{wide}}  {number[label]:>{wide}}  {_name(class_names, label)}".rstrip()
            for label in labels
        ]

    if num_classes <= TABLE:
        return rows(range(num_classes))
    median = float(np.median(number))
    lines = [
        f"  {num_classes} classes of {number.min()} to {number.max()} records, median {median:g}"
    ]
    rare = np.flatnonzero((number < RARE * median) | (number == 0))
    if len(rare):
        empty = int((number == 0).sum())
        lines.append(f"  {empty} never occur, {len(rare) - empty} are rarer than a tenth of that:")
        lines += rows(rare)
    return lines


def _name(class_names, label):
    return class_names[label] if label < len(class_names) else ""


def label_claims(claimed, counted, unknown):
    """Compares the labels that an index counted with those that are there.

    Args:
        claimed, counted: `dict` of label to records.
        unknown: `int`, records whose label is not known, as they are bad.

    Returns:
        `str`, or None if they agree as far as can be known.

    Example:
        >>> label_claims({0: 3, 1: 2}, {0: 3, 1: 1}, unknown=1)
        >>> label_claims({0: 3}, {0: 2, 7: 1}, unknown=0)
        'label 0: 3 in the index, 2 in the files; label 7: 0 in the index, 1 in the files'
    """
    differ = [k for k in sorted({*claimed, *counted}) if claimed.get(k, 0) != counted.get(k, 0)]
    missing = sum(max(0, claimed.get(k, 0) - counted.get(k, 0)) for k in differ)
    if all(claimed.get(k, 0) > counted.get(k, 0) for k in differ) and missing <= unknown:
        return None
    text = "; ".join(
        f"label {k}: {claimed.get(k, 0)} in the index, {counted.get(k, 0)} in the files"
        for k in differ[:8]
    )
    return text + (f"; and {len(differ) - 8} labels more" if len(differ) > 8 else "")
