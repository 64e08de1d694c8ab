"""With which settings a run was started, and with which it went on: ``config.json``."""

import dataclasses
import json

from experiments import outputs
from experiments.declared import LOCAL_FIELDS

# Fields that change nothing that is trained or evaluated; `save_every` is none of them, for a save
# averages the replicas' own statistics.
_NEUTRAL = (
    *LOCAL_FIELDS, "cache_budget", "data_service", "start_timeout", "export", "dry_run", "trial",
    "assumed_workers", "assumed_devices_per_worker", "assumed_images_per_second", "assumed_link",
)  # fmt: skip


class RunHistory:
    """The settings of a run from its start on, in a file of its folder.

    The file holds a list of ``{"from_step": int, "settings": {field: value}}``: a run that went on
    with others than before has several.

    Args:
        path: `Path` of the file; only worker 0 needs one, which writes it.
        run: `RunConfig`, of this process.
        step: `int`, at which it goes on; 0 for a new run, whatever the file holds.

    Attributes:
        change: `str` that names each setting that is another than at the start, with both values;
            None where there is none, or where nothing is known of the start.

    Raises:
        ValueError: if the file is not one of this kind.

    Example:
        >>> history = RunHistory(Path("runs/a/config.json"), run, resume.initial_step)
        >>> history.change
        'this run was started with other settings: epochs=9 (was 3)'
    """

    def __init__(self, path, run, step):
        self._path, self._step = path, step
        # As JSON gives them back: tuples become lists.
        self._settings = json.loads(json.dumps(dataclasses.asdict(run)))
        # What was trained after the checkpoint is no part of the run any more.
        self._written = _read(path) if step and path.exists() else []
        self._entries = [entry for entry in self._written if entry["from_step"] < step]
        self.change = None
        knows_start = self._entries and self._entries[0]["from_step"] == 0
        if knows_start and (changes := self._changes(self._entries[0])):
            self.change = f"this run was started with other settings: {', '.join(changes)}"

    def keep(self):
        """Writes the settings, unless they are the last ones of the file: they are trained with."""
        if not self._entries or self._changes(self._entries[-1]):
            self._entries.append({"from_step": self._step, "settings": self._settings})
        if self._entries != self._written:
            outputs.write_json(self._path, self._entries)
            self._written = list(self._entries)

    def _changes(self, entry):
        before = entry["settings"]
        return [
            f"{name}={_shown(value)} (was {_shown(before[name])})"
            for name, value in self._settings.items()
            # One that is not there came with a later version of this program.
            if name not in _NEUTRAL and name in before and before[name] != value
        ]


def _shown(value):
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _read(path):
    try:
        entries = list(json.loads(path.read_text()))
        for entry in entries:
            entry["settings"].keys(), int(entry["from_step"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path} does not hold the settings of a run; remove it, and the run goes on"
        ) from error
    return entries
