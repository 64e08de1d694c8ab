"""Spaces: ranges as Python and as text, checked against a run's fields; the command line."""

import re
import shlex
import typing
from pathlib import Path

import pytest

from experiments.run_config import RunConfig
from tests.tuning_program import Run
from tfscale.config_types import read_value
from tfscale.tuning import Settings, choice, integer, log_uniform, uniform
from tfscale.tuning.__main__ import main
from tfscale.tuning.options import parse
from tfscale.tuning.program import Program
from tfscale.tuning.ranges import Range, flag_text, read_range
from tfscale.tuning.run_fields import read_fields
from tfscale.tuning.space import Space, read_space

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = str(ROOT / "tests" / "tuning_program.py")
FIELDS = typing.get_type_hints(RunConfig)


@pytest.mark.parametrize(
    "text, item",
    [
        ("0.8:0.95", uniform(0.8, 0.95)),
        ("0:0.2:0.05", uniform(0.0, 0.2, 0.05)),
        ("-1:1", uniform(-1.0, 1.0)),
        ("log:1:64", log_uniform(1.0, 64.0)),
        ("log:1e-5:1e-3", log_uniform(1e-5, 1e-3)),
        ("int:0:5", integer(0, 5)),
        ("int:0:10:5", integer(0, 10, 5)),
        ("logint:32:1e3", integer(32, 1000, log=True)),
        ("lars,sgd", choice("lars", "sgd")),
    ],
)
def test_a_range_is_its_text(text, item):
    assert read_range(text) == item
    assert read_range(str(item)) == item


@pytest.mark.parametrize(
    "text, said",
    [
        ("0.8", "no range; wanted LOW:HIGH"),
        ("", "no range"),
        ("a:b", "no range"),
        ("1:2:3:4", "no range"),
        ("log:1", "no range"),
        ("a,,b", "no range"),
        ("2:1", "low end must be below"),
        ("1:1", "low end must be below"),
        ("log:0:1", "begins above 0"),
        ("log:1:8:2", "no steps"),
        ("0:1:-1", "step must be above 0"),
        ("0:1:0.3", "the last step is at 0.9"),
        ("int:0.5:2", "low is 0.5, which is no whole number"),
        ("0:inf", "no finite number"),
        ("a,a", "a is there twice"),
        ("0.1,x,0.10", "0.1 and 0.10 are one number"),
        ("0:1:1e-300", "0:1:1e-300: the step is too small"),
        ("-1:0:1e-310", "the step is too small"),
        ("-1e308:1e308", "too far apart"),
    ],
)
def test_what_is_no_range_is_said_to_be_none(text, said):
    with pytest.raises(ValueError, match=said):
        read_range(text)


@pytest.mark.parametrize(
    "value, annotation",
    [
        (0.1 + 0.2, float),
        (1e-300, float),
        (3, int),
        (True, bool),
        (None, int | None),
        ((2, 9.0), tuple[int, float] | None),
        ((), tuple[int, ...]),
        ("lars", typing.Literal["lars", "sgd"]),
        (3, float),
    ],
)
def test_a_value_reaches_the_run_to_the_last_bit(value, annotation):
    assert read_value(flag_text(value), annotation) == value


def test_a_space_fits_the_fields_of_the_run():
    space = Space(
        {
            "base_learning_rate": log_uniform(1, 64),
            "global_batch_size": "log:32:512",
            "warmup_epochs": integer(0, 5),
            "optimizer": "lars,sgd",
            "norm_group_size": choice(1, 2, None),
            "rand_augment": choice(None, (2, 9.0)),
            "flip": "true,false",
            "bucket_bytes": choice("adaptive", 1 << 20),
        },
        FIELDS,
    )
    assert space.describe() == {
        "base_learning_rate": "log:1:64",
        "global_batch_size": "logint:32:512",  # the field takes whole numbers only
        "warmup_epochs": "int:0:5",
        "optimizer": "lars,sgd",
        "norm_group_size": "1,2,none",
        "rand_augment": "none,2,9.0",
        "flip": "true,false",
        "bucket_bytes": "adaptive,1048576",
    }


@pytest.mark.parametrize(
    "space, said",
    [
        ({"base_learnig_rate": "1:2"}, "no field 'base_learnig_rate'; did you mean 'base_learning"),
        ({"zzz": "1:2"}, "no field 'zzz'; it has dataset, data_dir"),
        ({"momentum": "high,low"}, "space, momentum: 'high' does not fit; the field is a number"),
        ({"optimizer": "lars,adam"}, "'adam' does not fit; the field is one of lars, sgd"),
        ({"epochs": uniform(1, 5)}, "epochs: the range 1:5 gives numbers, .* use integer"),
        ({"epochs": "1:2.5"}, "epochs: .*high is 2.5, which is no whole number"),
        ({"optimizer": "1:2"}, "gives numbers, and the field is one of lars, sgd; use choice"),
        ({"flip": "0:1"}, "the field is true or false; use choice"),
        ({"epochs": choice(1, 2.5)}, "'2.5' does not fit; the field is a whole number"),
        ({"flip": choice("yes", "no")}, "'yes' would reach the run as True"),
        ({"momentum": "0.8"}, "space, momentum: '0.8' is no range"),
        ({"momentum": 0.8}, "space, momentum: 0.8 is no range; wanted uniform"),
        ({"seed": "0:9"}, "seed is fixed by a flag of the program"),
        ({"model_dir": "a,b"}, "each trial gets a model_dir of its own"),
        ({}, "the space is empty"),
    ],
)
def test_a_mistake_in_a_space_names_the_field(space, said):
    with pytest.raises(ValueError, match=said):
        Space(space, FIELDS, fixed={"seed"})


def test_a_function_is_checked_when_it_draws():
    given = {"momentum": 0.5}
    space = Space(lambda trial: given, FIELDS)
    assert space.draw(None) == {"momentum": 0.5}
    for wrong, said in [
        ({"momentun": 0.5}, "did you mean 'momentum'"),
        ({"momentum": "high"}, "'high' does not fit"),
        ({"momentum": float("nan")}, "no finite number"),
        ({"epochs": 2.5}, "the field is a whole number"),
        ({}, "wanted a dict"),
        (None, "wanted a dict"),
    ]:
        given = wrong
        with pytest.raises(ValueError, match=said):
            space.draw(None)


def broken(trial):
    return {"momentum": {}["a"]}


def changing(trial):
    trial.suggest_float("momentum", 0, 1)
    return {"momentum": trial.suggest_int("momentum", 0, 1)}


@pytest.mark.parametrize(
    "function, said",
    [
        (broken, r"space test.*:broken failed at line \d+ of .*_space.py: KeyError: 'a'"),
        (changing, r"changing failed at line \d+ of .*_space.py: ValueError: Cannot set different"),
    ],
)
def test_a_function_that_fails_is_named(function, said):
    import optuna

    trial = optuna.create_study().ask()
    with pytest.raises(ValueError, match=said):
        Space(function, FIELDS).draw(trial)


@pytest.mark.parametrize("space", [3, ["momentum"], "momentum=0:1"])
def test_what_is_no_space_is_named(space):
    with pytest.raises(ValueError, match="neither a dict of field to range nor a function"):
        Space(space, FIELDS)


def test_choices_of_a_text_field_may_be_one_number():
    assert Space({"x": "1.1,1.10"}, {"x": str}).describe() == {"x": "1.1,1.10"}


def test_a_space_of_unknown_fields_is_text():
    space = Space({"lr": "log:1:2", "kind": "a,b"}).describe()
    assert space == {"lr": "log:1:2", "kind": "a,b"}


@pytest.mark.parametrize("flags", [[], ["--config=default", "--epochs=2"]])
def test_the_fields_are_read_from_the_program(flags, monkeypatch):
    monkeypatch.chdir(ROOT)
    program = Program((PROGRAM,), flags)
    environ = program.environment({"PATH": "/usr/bin"})
    assert read_fields(program, environ) == typing.get_type_hints(Run)


def test_a_program_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = Program((PROGRAM,), ["--epoch=2"])
    with pytest.raises(ValueError, match="no flag --epoch; did you mean --epochs"):
        read_fields(program, program.environment({}))
    # One without CONFIGS might begin to train when it is imported.
    Path("plain.py").write_text("raise SystemExit('it was run')")
    program = Program(("plain.py",))
    assert read_fields(program, program.environment({})) is None
    Path("broken.py").write_text("CONFIGS = nothing")
    program = Program(("broken.py",))
    with pytest.raises(ValueError, match="(?s)broken.py cannot be started.*NameError: name 'noth"):
        read_fields(program, program.environment({}))
    for name in ("no_such_module", "no_such.module"):
        program = Program(("-m", name))
        with pytest.raises(ValueError, match=f"cannot be started: no module named '{name}'") as no:
            read_fields(program, program.environment({}))
        assert "\n" not in str(no.value)


def test_the_run_folder_is_the_search_s():
    with pytest.raises(ValueError, match="--model_dir is given to each trial by the search"):
        Program((PROGRAM,), ["--epochs=3", "--model_dir=a"])


@pytest.mark.parametrize(
    "words, said",
    [
        (["missing.py"], "no such program: missing.py"),
        (["--epochs=3"], "wanted a Python file, or -m and a module"),
        ([str(ROOT / "README.md")], "neither a Python file nor a folder with __main__.py"),
    ],
)
def test_what_is_no_program_is_refused(words, said):
    with pytest.raises(ValueError, match=said):
        Program(words)


def test_the_commands_of_a_trial(monkeypatch):
    monkeypatch.chdir(ROOT)
    values = {"momentum": 0.25, "optimizer": "sgd", "rand_augment": (2, 9.0), "flip": True}
    alone = Program(("experiments/train.py",), ("--epochs=3",))
    assert alone.ready_command(values, "runs/best") == (
        "python experiments/train.py --epochs=3 --momentum=0.25 --optimizer=sgd "
        "--rand_augment=2,9.0 --flip=true --model_dir=runs/best"
    )
    both = Program(("-m", "experiments.train"), (), workers=2, devices_per_worker=3)
    assert both.command({"momentum": 0.25}, "a b")[1:] == shlex.split(
        "-m launch.local --workers=2 --grace=10 --devices_per_worker=3 -m experiments.train -- "
        "--momentum=0.25 '--model_dir=a b'"
    )
    monkeypatch.chdir("/")
    assert both.ready_command({}, "a b") == (
        f"PYTHONPATH={ROOT} python -m launch.local --workers=2 --devices_per_worker=3 "
        "-m experiments.train -- '--model_dir=a b'"
    )


def test_what_the_environment_sets_wins_over_a_trial_s_share():
    program = Program(("-m", "x"), workers=2, devices_per_worker=3)
    env = program.environment({"OMP_NUM_THREADS": "7", "TF_CONFIG": "{}"}, parallel=2)
    assert env["OMP_NUM_THREADS"] == "7" and "TF_CONFIG" not in env
    assert env["TFSCALE_LOCAL_WORKERS"] == "4" and env["TF_NUM_INTEROP_THREADS"] >= "4"
    assert "TFSCALE_LOCAL_WORKERS" not in program.environment({})  # The launcher sets it.


# ---------------------------------------------------------------------- the command line
@pytest.mark.parametrize(
    "words, said",
    [
        ("", "no program"),
        ("a.py", "--space is needed"),
        ("a.py -m b --space x=1:2", "both -m b and a.py"),
        ("--space x=1:2 a.py", "'a.py' is no FIELD=RANGE"),
        ("a.py --space x=1:2 x=1:3", "x has two ranges, 1:2 and 1:3"),
        ("a.py --space x=1:2 --space x=1:3", "x has two ranges, 1:2 and 1:3"),
        ("a.py --space nothing:at_all", "cannot import 'nothing'"),
        ("a.py --space tests.tuning_program:SPACES", "has no 'SPACES'"),
        ("a.py --space x=1:2 --trials=0", "--trials=0 is out of range"),
        ("a.py --space x=1:2 --trials=many", "invalid INT value: 'many'"),
        ("a.py --space x=1:2 --trial=3", "'--trial=3'; did you mean --trials?"),
        ("a.py --space x=1:2 --momentum=3", "the program's own flags come after --"),
        ("a.py --space x=1:2 --pruner=best", "'best'"),
        ("a.py --space x=1:2 --trial_timeout=0", "wanted seconds above 0"),
        ("a.py --space x=1:2 --folder=", "--folder is empty"),
        ("a.py --space x=1:2 --seed=-1", "--seed=-1 is out of range"),
        ("a.py --space x=1:2 --name=a/b", "--name=a/b holds a slash"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and error.endswith("(see --help)\n")


def test_the_command_line_says_what_settings_say():
    words = "-m a.b --space x=0:1 --space y=a,b --trials=3 --trial_timeout=none --storage=sqlite:///x.db"
    program, flags, space, settings, report = parse([*words.split(), "--", "--epochs=2", "--", "x"])
    assert (program, flags) == (["-m", "a.b"], ["--epochs=2", "--", "x"])
    assert space == {"x": "0:1", "y": "a,b"} and not report
    assert settings == Settings(trials=3, storage="sqlite:///x.db")


def test_a_space_comes_from_python():
    space = read_space(["experiments.tuning.quickstart:SPACE"])
    assert all(isinstance(item, Range) or item.values for item in space.values())
    Space(space, FIELDS)


def test_help_has_examples_that_fit_the_quickstart(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for name in Settings.__dataclass_fields__:
        assert f"--{name}" in text
    example = re.search(r"  python -m tfscale\.tuning (experiments.*?)\n  sh ", text, re.S)[1]
    program, flags, space, _, _ = parse(shlex.split(example.replace("\\\n", " ")))
    assert Program(program, flags).fixed_names() >= {"config", "epochs"}
    Space(space, FIELDS)


def test_a_report_of_nothing_says_so(tmp_path, capsys):
    assert main([f"--folder={tmp_path}/none", "--report"]) == 2
    assert "holds no search named 'search'" in capsys.readouterr().err
