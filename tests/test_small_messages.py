"""The experiment on small messages behind gradients: its arithmetic, and a short real run."""

import json

import pytest

from experiments.allreduce import small_messages
from tests.network_lab import real_lab

# Worker 0's view: two open connections to 10.77.0.11 (one by IPv6), one that has ended, a listener.
pytestmark = pytest.mark.alone
TCP = """
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0A004D0A:08AE 0B004D0A:D431 01 00000000:00000000 00:00000000 00000000     0        0 1
   1: 0A004D0A:A1B2 0B004D0A:08AE 06 00000000:00000000 00:00000000 00000000     0        0 2
   2: 00000000:08AE 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 3
   0: 0000000000000000FFFF00000A004D0A:A1B3 0000000000000000FFFF00000B004D0A:08AE 01 00 00 00 0 0
"""


def test_open_connections_to_a_peer_are_counted():
    assert small_messages.established(TCP, "10.77.0.11") == 2
    assert small_messages.established(TCP, "10.77.0.12") == 0


def test_only_messages_that_met_gradients_count():
    plan = {"bucket_bytes": 1000, "streams": 2}
    reports = [
        [{**plan, "messages": [0.1, 0.3, 1.1], "gradients": 0.9}],
        [{**plan, "messages": [0.2, 0.4, 1.2], "gradients": 1.0}],
    ]
    (row,) = small_messages.rows_of(reports, 1, 2, bytes_per_second=1000.0)
    assert row["seconds_per_message"] == pytest.approx(0.4 / 2)  # The slower worker's.
    assert row["seconds_of_gradients"] == 1.0
    assert row["bound_seconds"] == pytest.approx(2 * 2 * 1000 / 2 / 1000)
    assert "200.0" in small_messages.table([row])


def test_a_link_without_a_queue_is_refused(capsys):
    for argv in (["--rate=none"], ["--rate=10gbit"], ["--workers=1"]):
        with pytest.raises(SystemExit):
            small_messages.main(argv)
        assert "two workers or more and a rate" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--repeats=0", "--repeats=0 must be at least 1"),
        ("--rate=abc", "rate 'abc' is not a rate"),
        ("--rate=0mbit", "rate '0mbit' is not a rate"),
        ("--rate=1kbit", "at least 10mbit; each step sends 16 MiB"),
    ],
)
def test_settings_of_no_use_are_refused_with_the_reason(capsys, flag, message):
    with pytest.raises(SystemExit):
        small_messages.main([flag])
    assert message in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused_before_measuring(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(small_messages, "_measure", lambda args: pytest.fail("measured"))
    assert small_messages.main([f"--json={tmp_path}"]) == 1
    assert f"--json={tmp_path} can't be written" in capsys.readouterr().err


@real_lab
@pytest.mark.slow
def test_the_smaller_the_buckets_the_shorter_the_wait(tmp_path):
    path = tmp_path / "rows.json"
    assert small_messages.main(["--rate=50mbit", "--repeats=1", f"--json={path}"]) == 0
    rows = json.loads(path.read_text())
    alone, *small, _ = [row["seconds_per_message"] for row in rows]
    # 64 KiB in two streams against 1 MiB in four: 32 times the bytes in the way.
    assert alone < small[0] < small[-1] / 4
    assert rows[0]["connections"] == 2
