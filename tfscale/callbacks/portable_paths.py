"""Paths of a model's variables that are the same in every process that builds the model.

Keras numbers the layers without a name over all of a process: ``dense_3/kernel`` of a process that
built another model before is ``dense/kernel`` in one that did not. Here the numbers begin anew.
"""

import re

_NUMBERED = re.compile(r"(.*?)(?:_(\d+))?$")


def portable_paths(paths):
    """Returns the paths with numbers that begin anew, each one different from the others.

    What has the same parent and differs in its number only keeps its order, and the first one has
    no number. Of equal paths the first one stays, the others get ``:1``, ``:2`` ...

    Args:
        paths: list of `str`: those of all variables of a model, trainable or not, so that a layer
            that is frozen changes nothing.

    Example:
        >>> portable_paths(["dense_4/kernel", "dense_3/kernel", "dense_3/bias"])
        ['dense_1/kernel', 'dense/kernel', 'dense/bias']
    """
    numbers = {}  # (parent, name without number) -> numbers; -1 for none
    for path in paths:
        for parent, name, number in _parts(path):
            numbers.setdefault((parent, name), set()).add(number)
    places = {
        key: {number: place for place, number in enumerate(sorted(found))}
        for key, found in numbers.items()
    }
    seen, portable = {}, []
    for path in paths:
        renumbered = "/".join(
            name + (f"_{place}" if (place := places[parent, name][number]) else "")
            for parent, name, number in _parts(path)
        )
        again = seen[renumbered] = seen.get(renumbered, -1) + 1
        portable.append(renumbered + (f":{again}" if again else ""))
    return portable


def portable_identities(state, variables):
    """Returns ``{(path that every process has, size): identity in the state}``.

    Args:
        state: `CompressionState`.
        variables: list of ``(path, size, key)``: all variables of a model.
    """
    paths = portable_paths([path for path, *_ in variables])
    return {
        (path, variable[1]): state.identity_of(*variable)
        for path, variable in zip(paths, variables, strict=True)
    }


def renamed(exported, names):
    """Returns what a state exported, with other identities; those that `names` lacks stay."""
    tensors = [list(names.get(tuple(i), i)) for i in exported.get("tensors", [])]
    return exported | {"tensors": tensors} if tensors else {}


def _parts(path):
    """``(path of the parent, name without its number, number)`` of each part of a path."""
    parent = ""
    for part in path.split("/"):
        # Zeros in front are part of the name: "_01" and "_1" are two.
        name, number = _NUMBERED.match(part).groups()
        if number is not None and number != str(int(number)):
            name, number = part, None
        yield parent, name, -1 if number is None else int(number)
        parent = f"{parent}/{part}"
