"""The scores of a run, epoch by epoch, as lines of JSON that another process can follow.

    {"epoch": 2, "epochs": 15, "metrics": {"loss": 0.41, "val_accuracy": 0.93}}

`epoch` counts from 1; `epochs` is the number that the run will have. A value that is not finite
is null. Needs the standard library only.
"""

import json
import math
import os
from pathlib import Path

FILE_NAME = "epochs.jsonl"


def append(path, epoch, epochs, metrics):
    """Adds the line of one epoch, which readers see whole or not at all.

    Args:
        path: of the file; its folder is made.
        epoch: `int`, from 1.
        epochs: `int`, how many the run will have.
        metrics: mapping of `str` to `float`.

    Example:

    >>> append("/tmp/run/epochs.jsonl", 1, 3, {"val_accuracy": 0.9})
    """
    values = {name: float(value) for name, value in metrics.items()}
    finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
    line = json.dumps({"epoch": epoch, "epochs": epochs, "metrics": finite})
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab", buffering=0) as file:
        file.write(f"{line}\n".encode())


def keep_epochs(path, count):
    """Removes the lines of epochs after `count`, which a resumed run makes again.

    Raises:
        ValueError: a line is not what `append` writes; names the file and the line.
    """
    try:
        lines = Path(path).read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    # A run that was killed may have left half a line.
    whole = [line for line in lines if line.endswith(b"\n")]
    partial = Path(f"{path}.partial")
    partial.write_bytes(b"".join(line for line in whole if _read(path, line.rstrip())[0] <= count))
    os.replace(partial, path)


class EpochReader:
    """Reads the lines of a file that is still written.

    Where `keep_epochs` has made the file anew, its lines are read once more from the first.

    Args:
        path: of the file, which may not be there yet.

    Example:

    >>> reader = EpochReader("/tmp/run/epochs.jsonl")
    >>> reader.new()
    [(1, 3, {'val_accuracy': 0.9})]
    >>> reader.new()
    []
    """

    def __init__(self, path):
        self._path = path
        self._offset = 0
        self._file = None

    def new(self, ended=False):
        """Returns what was added since the last call: ``[(epoch, epochs, metrics), ...]``.

        Args:
            ended: `bool`, nobody writes any more, so that a last line needs no line break.

        Raises:
            ValueError: the next line is not what `append` writes, or the file cannot be read;
                names the file and the line. Those before it have been returned.
        """
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._file or status.st_size < self._offset:
                    self._file, self._offset = status.st_ino, 0
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ValueError(f"{self._path} cannot be read: {error.strerror}") from None
        whole = data if ended else data[: data.rfind(b"\n") + 1]
        epochs = []
        for line in whole.splitlines(keepends=True):
            try:
                epochs.append(_read(self._path, line.rstrip(b"\r\n")))
            except ValueError:
                if epochs:
                    break  # The next call says so.
                raise
            self._offset += len(line)
        return epochs


def _read(path, line):
    try:
        record = json.loads(line)
        metrics = {
            name: math.nan if value is None else float(value)
            for name, value in record["metrics"].items()
        }
        return int(record["epoch"]), int(record["epochs"]), metrics
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} has the line {line[:200]!r}, which is no epoch's; wanted "
            '{"epoch": 1, "epochs": 3, "metrics": {"loss": 0.5}}'
        ) from error
