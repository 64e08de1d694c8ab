"""Reading ``TF_CONFIG``: every bad form is refused with its offending piece and what is allowed.

TensorFlow meets a mistake here late: it waits in silence, or trains alone. That costs hours.
"""

import difflib
import json
import logging

from tfscale.addresses import join_address, split_address

_LOG = logging.getLogger("tfscale")
ROLES = ("chief", "worker", "evaluator")
_EXAMPLE = (
    '{"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


def parse(text):
    """Parses the JSON text of a ``TF_CONFIG``.

    Args:
        text: `str`; blank text and ``{}`` mean "not distributed".

    Returns:
        `None` if not distributed, else ``(tasks, task_type, task_index)`` with `tasks` a `dict` of
        each of `ROLES` to its addresses (a `tuple` of ``"host:port"``, empty if absent).

    Raises:
        ValueError: names ``TF_CONFIG``, the offending piece and the allowed values.
    """
    config = _load(text) if text.strip() else {}
    if config == {}:
        return None
    tasks = _read_cluster(config)
    return tasks, *_read_task(config, tasks)


def _error(message):
    return ValueError(f"TF_CONFIG: {message}")


def _shorten(value, limit=80):
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _load(text):
    def pairs_to_dict(pairs):
        keys = [key for key, _ in pairs]
        for key in keys:
            if keys.count(key) > 1:
                raise _error(f"the key {key!r} stands twice in {_shorten(dict(pairs))}")
        return dict(pairs)

    try:
        config = json.loads(text, object_pairs_hook=pairs_to_dict)
    except json.JSONDecodeError as error:
        start = max(0, error.pos - 20)
        near = text[start : error.pos + 20]
        before = text[: error.pos].rstrip()
        hint = "."
        if text[error.pos : error.pos + 1] == "'":
            hint = ": JSON wants double quotes, so print it with json.dumps, not as a Python dict."
        elif before.endswith(",") or text[error.pos :].startswith(","):
            hint = ": JSON allows no comma before a closing brace or bracket."
        raise _error(
            f"not JSON at line {error.lineno}, column {error.colno}, near {near!r} "
            f"({error.msg}){hint} The text: {_shorten(text)} Example: {_EXAMPLE}"
        ) from None
    except ValueError as error:
        # Python refuses to read numbers of thousands of digits.
        if str(error).startswith("TF_CONFIG"):
            raise
        raise _error(f"it cannot be read ({error}): {_shorten(text)}") from None
    except RecursionError:
        raise _error(f"nested too deeply: {_shorten(text)}") from None
    if not isinstance(config, dict):
        raise _error(
            f"must be a JSON object with 'cluster' and 'task', not {_shorten(config)} "
            f"({_json_type(config)}). Example: {_EXAMPLE}"
        )
    return config


def _json_type(value):
    names = {dict: "object", list: "list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "number")


def _suggest(word, allowed):
    close = difflib.get_close_matches(str(word).lower(), allowed, n=1, cutoff=0.55)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _read_cluster(config):
    """The addresses of each role, as ``{"chief": (...), "worker": (...), "evaluator": (...)}``."""
    if "cluster" not in config:
        if any(str(key).lower() in ("sparsecluster", "sparse_cluster") for key in config):
            raise _error(
                "it has a sparse cluster block, in which a worker knows only itself. All-reduce "
                "needs the addresses of all workers: set enableDynamicWorker to false in the "
                "TFJob so that the operator writes 'cluster'"
            )
        near = "".join(_suggest(key, ["cluster"]) for key in config if key != "task")
        raise _error(
            f"no 'cluster', only {sorted(config)}{near}. Example: {_EXAMPLE}. To train in one "
            "process, unset TF_CONFIG"
        )
    cluster = config["cluster"]
    if not isinstance(cluster, dict):
        raise _error(
            f"'cluster' must be an object of task type to addresses, not {_shorten(cluster)} "
            f"({_json_type(cluster)}). Example: {_EXAMPLE}"
        )
    tasks = dict.fromkeys(ROLES, ())
    if cluster.get("chief") and cluster.get("master"):
        raise _error("'cluster' has both 'chief' and 'master', which are the same role; keep one")
    for role, entry in cluster.items():
        if role == "ps":
            if entry:
                raise _error(
                    f"'cluster' has parameter servers, 'ps': {_shorten(entry)}. Synchronous "
                    "training does not use them and would wait for ever: remove 'ps'"
                )
            continue
        if role == "master":
            _LOG.info("TF_CONFIG: the role 'master' is read as 'chief'.")
            role = "chief"
        if role not in ROLES:
            raise _error(
                f"'cluster' has the task type {role!r}{_suggest(role, ROLES)}; allowed are "
                f"{', '.join(ROLES)}"
            )
        tasks[role] = tasks[role] + _read_addresses(role, entry)
    if len(tasks["chief"]) > 1:
        raise _error(
            f"'cluster' has {len(tasks['chief'])} chiefs, {', '.join(tasks['chief'])}; allowed is "
            "one: list the others under 'worker'"
        )
    if not tasks["chief"] and not tasks["worker"]:
        raise _error(
            "'cluster' has neither a 'chief' nor a 'worker', so nobody trains. "
            f"Example: {_EXAMPLE}. To train in one process, unset TF_CONFIG"
        )
    _refuse_duplicates(tasks)
    return tasks


def _read_addresses(role, entry):
    if isinstance(entry, dict):
        entry = _dense(role, entry)
    if not isinstance(entry, list):
        raise _error(
            f"'cluster' has {role!r}: {_shorten(entry)} ({_json_type(entry)}); it must be a list "
            'of addresses, such as ["10.0.0.1:2222"]'
        )
    addresses = []
    for index, address in enumerate(entry):
        if not isinstance(address, str):
            raise _error(
                f"{role} {index} has the address {_shorten(address)} ({_json_type(address)}); it "
                "must be text, host:port"
            )
        try:
            addresses.append(join_address(*split_address(address)))
        except ValueError as error:
            raise _error(f"{role} {index} has the address {address!r}, which {error}") from None
    return tuple(addresses)


def _dense(role, entry):
    """The values of ``{"0": a, "1": b}`` in the order of their numbers."""
    if not all(key.isascii() and key.isdigit() for key in entry):
        raise _error(
            f"'cluster' has {role!r}: {_shorten(entry)}; the keys of an object must be the "
            f"numbers 0 to {max(0, len(entry) - 1)}"
        )
    by_number = {int(key): address for key, address in entry.items()}
    missing = sorted(set(range(len(entry))) - set(by_number))
    if missing:
        raise _error(
            f"'cluster' has {role!r} as a sparse block with the numbers {sorted(by_number)}, but "
            f"not {missing[0]}. All-reduce needs the addresses of all workers, 0 to n-1: set "
            "enableDynamicWorker to false if a TFJob wrote this"
        )
    return [by_number[number] for number in range(len(entry))]


def _refuse_duplicates(tasks):
    seen = {}
    for role in ROLES:
        for index, address in enumerate(tasks[role]):
            first = seen.setdefault(address.lower(), f"{role} {index}")
            if first != f"{role} {index}":
                raise _error(
                    f"{first} and {role} {index} have the same address {address!r}; each task "
                    "needs its own host or port"
                )


def _read_task(config, tasks):
    if "task" not in config:
        raise _error(
            f"no 'task', only {sorted(config)}, so this process cannot know which worker it is. "
            f"Example: {_EXAMPLE}"
        )
    task = config["task"]
    if not isinstance(task, dict):
        raise _error(f"'task' must be an object with 'type' and 'index', not {_shorten(task)}")
    for key in ("type", "index"):
        if key not in task:
            raise _error(f"'task' has no {key!r}: {_shorten(task)}. Example: {_EXAMPLE}")
    role, index = task["type"], task["index"]
    if role == "ps":
        raise _error("'task' is a parameter server ('ps'), which synchronous training does not use")
    if role == "master":
        role = "chief"
    present = [name for name in ROLES if tasks[name]]
    # An operator may start an evaluator without listing it, since nobody talks to it.
    unlisted_evaluator = role == "evaluator" and not tasks["evaluator"]
    if role not in present and not unlisted_evaluator:
        raise _error(
            f"'task' has the type {_shorten(role)!r}{_suggest(role, present)}, which the cluster "
            f"does not list; it lists {', '.join(present)}"
        )
    if isinstance(index, bool) or not isinstance(index, int):
        raise _error(
            f"'task' has the index {json.dumps(index)} ({_json_type(index)}); it must be a whole "
            "number without quotes"
        )
    count = len(tasks[role])
    if index < 0 or (index >= count and not unlisted_evaluator):
        raise _error(
            f"'task' is {role} {index}, but the cluster lists {count} "
            f"{role}{'s' if count != 1 else ''}; allowed are indices 0 to {max(0, count - 1)}"
        )
    return role, index
