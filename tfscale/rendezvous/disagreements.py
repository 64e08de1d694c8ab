"""What workers declared and where it differs, in words."""

import os

_LONG = 120


def some(items, limit=5):
    """Joins at most `limit` items: ``a, b and 3 more``."""
    items = list(items)
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + more


def declared_differences(declarations):
    """One sentence per name on which workers differ.

    Args:
        declarations: `dict` of worker index to a `dict` of name to value, both `str`.

    Returns:
        `list` of `str`, in the order in which worker 0 declared the names.

    Example:

    >>> declared_differences({0: {"devices": "2"}, 1: {"devices": "3"}, 2: {"devices": "3"}})
    ['devices: worker 0 has 2, workers 1, 2 have 3']
    """
    names = {name: None for declared in declarations.values() for name in declared}
    sentences = []
    for name in names:
        workers_of = {}
        for worker in sorted(declarations):
            workers_of.setdefault(declarations[worker].get(name), []).append(worker)
        if len(workers_of) == 1:
            continue
        values = [value for value in workers_of if value]
        common = len(os.path.commonprefix(values)) if len(values) > 1 else 0
        parts = []
        for value, workers in workers_of.items():
            plural = len(workers) > 1
            parts.append(
                f"worker{'s' if plural else ''} {some(map(str, workers))} "
                f"ha{'ve' if plural else 's'} {_show(value, common)}"
            )
        sentences.append(f"{name}: {', '.join(parts)}")
    return sentences


def list_difference(config, hello):
    """How another worker's ``TF_CONFIG`` differs from the leader's `config`."""
    ours, theirs = list(config.workers), hello["workers"]
    who = f"worker {hello['worker']} (process {hello['pid']} on {hello['host']})"
    if len(ours) != len(theirs):
        return (
            f"TF_CONFIG: worker 0 lists {len(ours)} workers ({some(ours)}), {who} lists "
            f"{len(theirs)} ({some(theirs)})"
        )
    for index, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        if our != their:
            return (
                f"TF_CONFIG: worker 0 has the address {our} for worker {index}, {who} has {their}"
            )
    return f"TF_CONFIG: only one of worker 0 and {who} lists a chief"


def two_processes(first, second):
    """Two processes that claim the same place; each a `dict` with worker, pid and host."""
    return (
        f"two processes say that they are worker {first['worker']}: process {first['pid']} on "
        f"{first['host']} and process {second.get('pid')} on {second.get('host')}; give each its "
        "own task index in TF_CONFIG, or end the older one"
    )


def _show(value, common):
    """A value, cut to the part where the values differ if it is long."""
    if not value:
        return "none" if value is None else "nothing"
    if len(value) <= _LONG:
        return value
    start = max(0, min(common - _LONG // 3, len(value) - _LONG))
    before = "..." if start else ""
    after = "..." if start + _LONG < len(value) else ""
    return f"{before}{value[start : start + _LONG]}{after}"
