"""Damaged records and pictures: what is unharmed comes out, the rest is named, nothing crashes."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from experiments.input import fuzz, fuzz_law, index_law, picture_damage, record_damage
from experiments.input.record_damage import Damage
from tfscale.data import prepare

# No search for a smaller case: what broke is said file by file, and time is short.
repeatable = {
    "derandomize": True,
    "deadline": None,
    "database": None,
    "phases": [hypothesis.Phase.generate],
    "suppress_health_check": list(hypothesis.HealthCheck),
}
damages = st.builds(
    Damage,
    kind=st.sampled_from(record_damage.KINDS),
    place=st.sampled_from(record_damage.PLACES),
    record=st.integers(0, 3),
    at=st.floats(0, 1, exclude_max=True),
    other=st.floats(0, 1, exclude_max=True),
    size=st.sampled_from([0, 1, 2, 4, 7, 8, 12, 16, 100, 600]),
    value=st.integers(1, 255),
)
FILES = 16


@pytest.fixture(scope="module")
def law(tmp_path_factory):
    return fuzz_law.RecordLaw(tmp_path_factory.mktemp("fuzz"), FILES)


def damaged(law, damage):
    return [
        one.apply(data, frames) if one is not None else data
        for one, (data, frames) in zip(damage, law.files, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
@hypothesis.settings(max_examples=5, **repeatable)
@hypothesis.given(st.lists(damages, min_size=FILES, max_size=FILES))
def test_damaged_files_read_for_evaluation(law, damage):
    assert law.violations(damaged(law, damage), ["eval"]) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@hypothesis.settings(max_examples=2, **repeatable)
@hypothesis.given(st.lists(damages, min_size=3, max_size=3))
def test_damaged_files_read_for_training(law, damage):
    # A few: training must find a good record for each bad one.
    assert law.violations(damaged(law, [*damage, *[None] * (FILES - 3)]), ["train"]) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_damaged_index(tmp_path):
    examples = [(fuzz_law.picture(number), number % 4) for number in range(12)]
    small = prepare.prepare_arrays(examples, tmp_path / "small", "train", "abcd", num_shards=2)
    texts = st.sampled_from(
        [b"", b"0", b"9", b"-", b"1.5", b'"', b"null", b",", b"[", b"\xff", b"1e9"]
    )

    @hypothesis.settings(max_examples=150, **repeatable)
    @hypothesis.given(st.floats(0, 1, exclude_max=True), st.integers(0, 3), texts)
    def each(at, size, text):
        def damage(data):
            begin = int(at * len(data))
            return data[:begin] + text + data[begin + size :]

        assert index_law.violations(small, tmp_path / "damaged", damage) == []

    each()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_damaged_pictures():
    valid, violations = picture_damage.pictures(), picture_damage.decoder()

    @hypothesis.settings(max_examples=600, **repeatable)
    @hypothesis.given(
        data=st.sampled_from(valid),
        kind=st.sampled_from(picture_damage.KINDS),
        seed=st.integers(0, 2**32 - 1),
    )
    def each(data, kind, seed):
        random = np.random.default_rng(seed)
        if not data.startswith(b"\xff\xd8"):
            kind = "noise"
        assert violations(picture_damage.damage(data, kind, random)) == []

    each()


@pytest.mark.slow
def test_the_law_sees_what_breaks_it(law, monkeypatch):
    whole = [data for data, _ in law.files]
    data, frames = law.files[2]
    offset = frames[1][0]
    bad = data[: offset + 40] + bytes([data[offset + 40] ^ 1]) + data[offset + 41 :]
    contents = [*whole[:2], bad, *whole[3:]]
    assert law.violations(contents, ["eval"]) == []
    monkeypatch.setattr(fuzz_law, "skipped_records", dict)
    monkeypatch.setattr(
        fuzz_law.check, "check", lambda *_, **__: [fuzz_law.check.Report("", [], {}, ())]
    )
    broken = law.violations(contents, ["eval"])
    assert any("is damaged, named: None" in text for text in broken)
    assert f"check: not found: record at byte {offset} of file 2" in broken


def test_segments_of_a_jpeg():
    for data in picture_damage.pictures():
        if data.startswith(b"\xff\xd8"):
            parts = picture_damage.segments(data)
            assert b"".join(parts) == data and {part[1] for part in parts} >= {0xD8, 0xDB, 0xDA}


@pytest.mark.slow
def test_command_line(tmp_path, capsys):
    arguments = [
        "--minutes=0",
        "--seed=1",
        f"--corpus={tmp_path / 'c'}",
        f"--json={tmp_path / 'j'}",
    ]
    assert fuzz.main(arguments) == 0
    assert "1 trials" in capsys.readouterr().out and "200" in (tmp_path / "j").read_text()
