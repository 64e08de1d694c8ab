"""The folder and the storage of a search: what several searches share, and what is refused."""

import re
import sqlite3
import sys
from pathlib import Path

import optuna
import pytest

from tfscale.tuning import Settings, search, uniform
from tfscale.tuning import report as reports
from tfscale.tuning.__main__ import main
from tfscale.tuning.owner import Owner
from tfscale.tuning.report import existing
from tfscale.tuning.store import Store

PROGRAM = str(Path(__file__).resolve().parent / "tuning_program.py")


@pytest.mark.parametrize("name", ["a b", "a%20b", "a?b=c", "a{b}#"])
def test_the_storage_lies_in_the_folder_whatever_its_name(tmp_path, name):
    settings = Settings(folder=str(tmp_path / name))
    settings.home.mkdir()
    Store(settings, {"space": name})
    assert (tmp_path / name / "trials.db").exists()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert Store(settings, {"space": name}).study.user_attrs["record"] == {"space": name}


def test_a_storage_that_cannot_be_opened_is_named(tmp_path):
    (tmp_path / "trials.db").mkdir()
    with pytest.raises(ValueError, match="the storage /.*/trials.db cannot be opened: Operat"):
        Store(Settings(folder=str(tmp_path)), {})


@pytest.mark.parametrize("module", ["psycopg2", "pymysql"])
def test_a_driver_that_is_missing_is_named(tmp_path, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    url = f"{'mysql' if module == 'pymysql' else 'postgresql'}+{module}://me:secret@host/db"
    with pytest.raises(ValueError, match=rf"//me:\*+@host/db cannot be .*; pip install {module}"):
        Store(Settings(folder=str(tmp_path), storage=url), {})


def test_a_damaged_storage_names_the_way_out(tmp_path, capsys, monkeypatch):
    settings, file = Settings(folder=str(tmp_path)), tmp_path / "trials.db"
    Store(settings, {})
    whole = file.read_bytes()
    out = "it is damaged: put a copy of it back, or move it away.*another --folder; .*/trial-"
    for damaged in (whole[: len(whole) // 2], b"\x01" * 5000):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=out):
            Store(settings, {})
    for said, then in [
        ("database disk image is malformed", out),
        ("disk I/O error", "has its disk space left.* same command goes on"),
        ("server closed the connection", "; the same command goes on with the search"),
    ]:

        def fail(settings, said=said):
            raise optuna.exceptions.StorageInternalError from sqlite3.DatabaseError(said)

        monkeypatch.setattr(reports, "existing", fail)
        assert main([f"--folder={tmp_path}", "--report"]) == 1
        assert re.search(f"trials.db fails: {said}.*{then}", capsys.readouterr().err)


def test_searches_of_other_storages_do_not_run_in_one_folder(tmp_path):
    with Owner(tmp_path, "one"), Owner(tmp_path, "one"):  # Two processes of one search.
        with pytest.raises(ValueError, match="in use by a search on another storage.*--folder"):
            Owner(tmp_path, "two").__enter__()
        with Owner(Settings(folder=str(tmp_path), name="two").home, "two"):
            pass
    with Owner(tmp_path, "two"):
        pass
    assert not any((tmp_path / ".searches").iterdir())


@pytest.mark.parametrize(
    "directions, trials",
    [(["maximize", "minimize"], 0), (["minimize"], 0), (["maximize"], 1)],
)
def test_a_study_that_another_program_made_is_refused(tmp_path, directions, trials):
    url = f"sqlite:///{tmp_path}/trials.db"
    study = optuna.create_study(storage=url, study_name="search", directions=directions)
    for _ in range(trials):
        study.tell(study.ask(), 0.5)
    settings = Settings(folder=str(tmp_path))
    said = rf"has a study 'search'.*direction: {', '.join(directions)}; its trials: {trials}"
    with pytest.raises(ValueError, match=said):
        Store(settings, {})
    with pytest.raises(ValueError, match="holds no search named 'search'"):
        existing(settings)
    assert "record" not in study.user_attrs
    Store(Settings(folder=str(tmp_path), name="another"), {})


def test_a_folder_that_is_a_file_is_named(tmp_path):
    folder = str(tmp_path / "file")
    Path(folder).touch()
    with pytest.raises(ValueError, match=f"--folder={folder}: .* cannot be made: File exists"):
        search({"x": uniform(0, 1)}, [PROGRAM], (), Settings(folder), fields={"x": float})
