"""Damage to an index: it is refused by name, or says the same, or the check says what is wrong."""

import pathlib
import shutil

from tfscale.data import check, records
from tfscale.data import index as index_lib


def violations(source, folder, damage):
    """Damages the index of a copy of some records, and returns what breaks the law.

    Args:
        source: `index.RecordIndex` of whole records.
        folder: `pathlib.Path`, must not exist; removed again.
        damage: function of the index's `bytes` to others.

    Returns:
        `list` of `str`; empty if the law was kept.
    """
    shutil.copytree(source.directory, folder)
    path = pathlib.Path(index_lib.index_path(folder, source.split))
    path.write_bytes(damage(path.read_bytes()))
    try:
        found = records.find(folder, source.split)
    except ValueError as error:
        named = str(path) in str(error) or any(s.name in str(error) for s in source.shards)
        return [] if named else [f"index: the error does not name it: {error}"]
    except Exception as error:  # noqa: BLE001 - any other error breaks the law
        return [f"index: {type(error).__name__}: {str(error)[:300]}"]
    else:
        same = found.shards == source.shards and found.label_counts == source.label_counts
        if same:
            return []
        try:
            (report,) = check.check(str(folder), source.split, log=lambda text: None)
        except ValueError as error:
            return [] if str(folder) in str(error) else [f"index: check: {error}"]
        except Exception as error:  # noqa: BLE001
            return [f"index: check: {type(error).__name__}: {str(error)[:300]}"]
        return [] if report.findings else ["index: it says something else, and nothing is found"]
    finally:
        shutil.rmtree(folder)
