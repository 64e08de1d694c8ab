"""Runs as dataclasses, changed from the command line by name and checked by annotation."""

import dataclasses
import subprocess
import sys
from typing import Literal, Optional

import pytest

from tfscale import config as config_lib
from tfscale.config import describe, field, help_text, override, parse
from tfscale.config_types import describe_type, read_value


@dataclasses.dataclass(frozen=True)
class Run:
    epochs: int = field(10, "passes over the data")
    learning_rate: float = field(0.1, "peak learning rate")
    model_dir: str = field("runs/x", "folder of the run")
    flip: bool = field(True, "flip images")
    notes: bool = False
    precision: Literal["auto", "float32"] = field("auto", "compute type")
    cache: Literal["memory", None] = None
    save_every: int | None = field(None, "steps between checkpoints")
    data_dir: Optional[str] = None  # noqa: UP045
    grid: tuple[int, int] | None = None
    widths: tuple[int, ...] = (16, 32)
    bucket_bytes: int | Literal["adaptive"] = "adaptive"
    scales: "tuple[float, ...]" = ()
    size: int = dataclasses.field(init=False, default=7)

    def __post_init__(self):
        if self.epochs < 0:
            raise ValueError(f"epochs={self.epochs} must not be negative")


@pytest.mark.parametrize(
    ("argv", "changes"),
    [
        ([], {}),
        (["--epochs=3"], {"epochs": 3}),
        (["--epochs", "3"], {"epochs": 3}),
        (["--epochs=1e3"], {"epochs": 1000}),
        (["--epochs=1_000"], {"epochs": 1000}),
        (["--epochs=3", "--epochs=4"], {"epochs": 4}),
        (["--learning_rate=1e-3"], {"learning_rate": 0.001}),
        (["--learning_rate", "-2"], {"learning_rate": -2.0}),
        (["--model_dir=/tmp/a=b"], {"model_dir": "/tmp/a=b"}),
        (["--model_dir="], {"model_dir": ""}),
        (["--model_dir", "none"], {"model_dir": "none"}),
        (["--noflip"], {"flip": False}),
        (["--flip"], {"flip": True}),
        (["--flip=false"], {"flip": False}),
        (["--flip=NO", "--notes=1"], {"flip": False, "notes": True}),
        (["--notes", "--epochs", "3"], {"notes": True, "epochs": 3}),
        (["--nonotes"], {"notes": False}),
        (["--precision=float32"], {"precision": "float32"}),
        (["--cache=memory"], {"cache": "memory"}),
        (["--cache=none"], {"cache": None}),
        (["--save_every=5"], {"save_every": 5}),
        (["--save_every=none"], {"save_every": None}),
        (["--data_dir=none"], {"data_dir": None}),
        (["--data_dir=x"], {"data_dir": "x"}),
        (["--grid=2,3"], {"grid": (2, 3)}),
        (["--grid", "(2, 3)"], {"grid": (2, 3)}),
        (["--widths=1,2,3"], {"widths": (1, 2, 3)}),
        (["--widths=4"], {"widths": (4,)}),
        (["--widths="], {"widths": ()}),
        (["--widths=4,"], {"widths": (4,)}),
        (["--scales=1,.5"], {"scales": (1.0, 0.5)}),
        (["--bucket_bytes=4096"], {"bucket_bytes": 4096}),
        (["--bucket_bytes=adaptive"], {"bucket_bytes": "adaptive"}),
    ],
)
def test_override(argv, changes):
    changed = override(Run(), argv)
    assert changed == dataclasses.replace(Run(), **changes)
    for name, value in changes.items():
        assert type(getattr(changed, name)) is type(value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--epochs=three"], "--epochs has the value 'three'; expected is a whole number"),
        (["--epochs=1.5"], "--epochs has the value '1.5'; expected is a whole number"),
        (["--epochs="], "--epochs has the value ''"),
        (["--epochs"], "--epochs needs a value: a whole number"),
        (["--epochs", "--flip"], "--epochs needs a value: a whole number"),
        (["--epochs=-1"], "epochs=-1 must not be negative"),
        (["--learning_rate=fast"], "--learning_rate has the value 'fast'; expected is a number"),
        (["--learning_rate=nan"], "'nan'"),
        (["--epoch=3"], "no flag --epoch; did you mean --epochs?"),
        (["--model-dir=x"], "did you mean --model_dir?"),
        (["--no_flip"], "did you mean --noflip?"),
        (["--noepochs"], "no flag --noepochs"),
        (["--size=3"], "no flag --size"),
        (["--xyzzy=3"], "no flag --xyzzy; there are: epochs, learning_rate"),
        (["--flip=maybe"], "--flip has the value 'maybe'; expected is true or false"),
        (["--noflip=true"], "--noflip takes no value, but has 'true'"),
        (["--precision=half"], "has the value 'half'; expected is one of auto, float32"),
        (["--cache=disk"], "expected is one of memory, none"),
        (["--save_every=often"], "expected is a whole number or none"),
        (["--grid=2"], "the value '2'; expected is 2 values separated by commas (INT,INT)"),
        (["--grid=2,x"], "'2,x'"),
        (["--widths=1,b"], "values separated by commas, each a whole number"),
        (["--widths=1,,2"], "'1,,2'"),
        (["--bucket_bytes=many"], "expected is a whole number or one of adaptive"),
        (["epochs=3"], "'epochs=3' is not a flag; flags are written --name=value"),
        (["-epochs=3"], "is not a flag"),
        (["--"], "is not a flag"),
    ],
)  # fmt: skip
def test_override_errors(argv, message):
    with pytest.raises(ValueError) as caught:
        override(Run(), argv)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_infinite_whole_number():
    for text in ("inf", "-inf", "1e999"):
        with pytest.raises(ValueError, match="whole number"):
            override(Run(), [f"--epochs={text}"])


def test_the_original_is_untouched():
    run = Run()
    override(run, ["--epochs=3"])
    assert run.epochs == 10


def test_types_that_text_cannot_give():
    @dataclasses.dataclass(frozen=True)
    class Odd:
        table: dict = dataclasses.field(default_factory=dict)

    with pytest.raises(TypeError, match="cannot be set from the command line"):
        override(Odd(), ["--table=1"])
    with pytest.raises(TypeError, match="a config is a dataclass instance"):
        override({"epochs": 1}, [])
    with pytest.raises(TypeError, match="a config is a dataclass instance"):
        override(Run, [])


def small():
    """A minute on two cores.

    Nothing else of this appears.
    """
    return Run(epochs=1)


def large():
    return dataclasses.replace(small(), epochs=90)


CONFIGS = {"small": small, "large": large}


def test_parse():
    assert parse([], CONFIGS, default="small") == small()
    assert parse(["--config=large"], CONFIGS, default="small") == large()
    assert parse(["--epochs=5", "--config", "large"], CONFIGS).epochs == 5
    assert parse(["--config=small", "--config=large"], CONFIGS) == large()
    assert parse([], {"only": small}) == small()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "train.py: --config=NAME is needed; there are: small, large (see --help)"),
        (["--config=smal"], "no config 'smal'; there are: small, large; did you mean 'small'?"),
        (["--config=zzz"], "no config 'zzz'; there are: small, large"),
        (["--config"], "--config needs a name"),
        (["--config", "--epochs=3"], "--config needs a name"),
        (["--config=small", "--epoch=3"], "did you mean --epochs?"),
        (["--config=small", "--epochs=-3"], "epochs=-3 must not be negative"),
    ],
)
def test_parse_errors(argv, message, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(argv, CONFIGS)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["--config=large", "--help"]])
def test_help(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(argv, CONFIGS, program="experiments/train.py")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "usage: experiments/train.py [--config=NAME]" in text
    assert "small  A minute on two cores." in text and "Nothing else" not in text
    for line in (
        "--epochs=INT\n      passes over the data",
        "--[no]flip\n      flip images [true]",
        "--precision=auto|float32",
        "--save_every=INT|none\n      steps between checkpoints [none]",
        "--grid=INT,INT|none",
        "--widths=INT,...",
        "--bucket_bytes=INT|adaptive",
    ):
        assert line in text, text
    assert ("[90]" in text) == ("--config=large" in argv)
    assert "--size" not in text


def test_help_marks_the_default_and_shortens_the_program(monkeypatch, tmp_path, capsys):
    assert "A minute on two cores. (default)" in help_text(CONFIGS, "small")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        parse(["--help"], CONFIGS, program=str(tmp_path / "sub" / "train.py"))
    assert capsys.readouterr().out.startswith("usage: sub/train.py ")
    with pytest.raises(SystemExit):
        parse(["--help"], CONFIGS, program="/usr/lib/other/train.py")
    assert capsys.readouterr().out.startswith("usage: train.py ")


def test_describe_aligns_and_marks():
    lines = describe(Run(epochs=3, grid=(2, 3))).splitlines()
    assert len(lines) == 13
    assert len({line.index(value) for line, value in zip(lines, ("3", "0.1", "runs/x"))}) == 1  # noqa: B905
    assert lines[0].split() == ["epochs", "3", "*"]
    assert lines[1].split() == ["learning_rate", "0.1"]
    assert next(line for line in lines if "grid" in line).split() == ["grid", "2,3", "*"]
    assert next(line for line in lines if "scales" in line).split() == ["scales", "nothing"]


def test_types_in_words():
    assert describe_type(str) == "text"
    assert describe_type(float | None) == "a number or none"
    assert read_value("7", int | str) == 7 and read_value("x", int | str) == "x"
    assert read_value("none", str | None) is None


def test_a_program_answers_at_once_without_tensorflow():
    code = (
        "import sys; from tests.test_config import CONFIGS\n"
        "from tfscale.config import parse; parse(['--epoch=1'], CONFIGS, 'small')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == "train.py: no flag --epoch; did you mean --epochs? (see --help)\n"
    assert config_lib.__doc__
