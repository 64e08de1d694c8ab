"""The network lab: rates, its checks before it touches anything, and the lab itself as root."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments import rates
from experiments.allreduce import claims, iperf, lab, lab_command, network_commands
from experiments.allreduce.lab import Lab
from experiments.allreduce.network_commands import LabError
from tests.network_lab import real_lab

pytestmark = pytest.mark.alone
ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    "text, bits",
    [("200mbit", 200e6), ("1gbit", 1e9), ("1.5gbit", 1.5e9), ("64kbit", 64e3), (" 5MBIT ", 5e6)],
)
def test_rates_are_bits_in_powers_of_1000(text, bits):
    assert rates.parse_rate(text) == bits


def test_none_is_no_limit():
    assert rates.parse_rate("none") is None
    assert rates.format_rate(None) == "unshaped"


@pytest.mark.parametrize(
    "text", ["", "fast", "200", "200mb", "25mbps", "-1mbit", "0mbit", "1e3mbit"]
)
def test_what_is_no_rate_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="is not a rate.*for example 200mbit.*none"):
        rates.parse_rate(text)
    with pytest.raises(ValueError, match="is not a rate"):
        Lab(2, text)


@pytest.mark.parametrize("text, size", [("4mib", 4 << 20), ("512kib", 512 << 10), ("1000", 1000)])
def test_sizes(text, size):
    assert rates.parse_bytes(text) == size
    assert rates.parse_bytes(rates.format_bytes(size)) == size


@pytest.mark.parametrize("text", ["", "0", "4mb", "x"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="is not a size"):
        rates.parse_bytes(text)


@pytest.mark.parametrize("workers", [0, 201])
def test_number_of_hosts(workers):
    with pytest.raises(ValueError, match=f"1 to 200 workers, not {workers}"):
        Lab(workers)


def test_missing_commands_are_named_with_their_packages(monkeypatch):
    monkeypatch.setattr(network_commands.shutil, "which", lambda name, path=None: None)
    with pytest.raises(LabError, match="ip, tc, iperf3.*apt-get install iproute2 iperf3"):
        network_commands.check_machine()
    monkeypatch.setattr(
        network_commands.shutil, "which", lambda name, path=None: None if name == "iperf3" else name
    )
    with pytest.raises(LabError, match="needs iperf3, which is not installed"):
        network_commands.check_machine()


def test_who_is_not_root_is_told(monkeypatch):
    monkeypatch.setattr(network_commands.shutil, "which", lambda name, path=None: name)
    monkeypatch.setattr(network_commands.os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="needs root.*sudo"):
        Lab(2).up()


@pytest.mark.parametrize(
    "said, reason",
    [
        ("Error: Specified qdisc kind is unknown.", "this kernel has no tbf"),
        ("mount --make-shared /run/netns failed: Operation not permitted", "CAP_SYS_ADMIN"),
        ("Error: Unknown device type.", "no veth or bridge"),
    ],
)
def test_what_ip_and_tc_say_is_explained(said, reason):
    with pytest.raises(LabError, match=reason):
        network_commands.run("sh", "-c", f"echo '{said}' >&2; exit 2")


def test_an_unknown_failure_keeps_its_own_words():
    with pytest.raises(LabError, match="sh -c echo odd >&2; exit 3: odd$"):
        network_commands.run("sh", "-c", "echo odd >&2; exit 3")


def test_counters_are_read_from_the_interface():
    text = "Inter-| Receive\n  lo: 1 1 0 0 0 0 0 0 2 1\n eth0: 10 1 0 0 0 0 0 0 20 1 0 0\n"
    assert lab.parse_counters(text) == lab.Counters(sent=20, received=10)
    with pytest.raises(LabError, match="no interface eth0"):
        lab.parse_counters("lo: 1 2 3")


def check(lowest, highest, rate="100mbit"):
    return iperf.LinkCheck((lowest + highest) / 2, lowest, highest, 0, rate)


def test_links_are_judged_by_their_rate():
    said = []
    iperf._judge(check(95e6, 96e6), said.append)
    assert not said
    iperf._judge(check(90e6, 96e6), said.append)
    assert "the links differ" in said[0]
    with pytest.raises(LabError, match="the shaping does not hold"):
        iperf._judge(check(95e6, 110e6), said.append)
    with pytest.raises(LabError, match="cannot drive links of that rate"):
        iperf._judge(check(50e6, 96e6), said.append)
    iperf._judge(check(1e9, 9e9, "none"), said.append)


def test_names_of_others_are_left_alone():
    assert claims._number_of("tfs3w12") == 3
    assert claims._number_of("tfs3net") == 3
    for name in ("tfspw0", "tfs3", "tfs3w", "mytfs3w1", "tfs3w1x"):
        assert claims._number_of(name) is None


def test_the_command_reports_in_one_line(monkeypatch, capsys):
    def refuse():
        raise LabError("no root")

    monkeypatch.setattr(lab, "check_machine", refuse)
    assert lab_command.main(["up"]) == 1
    assert capsys.readouterr().err == "error: no root\n"
    assert lab_command.main(["up", "--rate=fast"]) == 1
    assert "is not a rate" in capsys.readouterr().err


# ---------------------------------------------------------------------- on a real lab


def namespaces(number):
    return [name for name in claims._namespaces() if claims._number_of(name) == number]


@real_lab
@pytest.mark.slow
def test_links_carry_their_rate_and_can_be_cut():
    with Lab(2, "50mbit") as two:
        number = two.number
        assert namespaces(number) == sorted([*two.namespaces, two.switch])
        carried = two.verify(seconds=2)
        # 47.8e6 with the machine to itself. That the links do not carry more is what counts; how
        # much less a busy machine gets through, `verify` judges.
        assert 0.8 * 50e6 < carried.bits_per_second < 50e6
        assert two.payload_bytes_per_second == carried.bits_per_second / 8
        assert two.counters(0).sent > 1e6

        two.link_down(1)
        assert not connects(two, seconds=0)
        two.link_up(1)
        assert connects(two)

        two.shape("none")
        assert "not shaped" in two.verify(seconds=1).describe()
    assert not namespaces(number)


def connects(two, seconds=5):
    """Whether host 0 gets an answer of host 1, which refuses the connection."""
    program = (
        "import socket, sys; s = socket.socket(); s.settimeout(1)\n"
        f"try: s.connect(('{two.addresses[1]}', 9))\n"
        "except ConnectionRefusedError: sys.exit(0)\n"
        "except OSError: sys.exit(1)"
    )
    command = two.command(0, [sys.executable, "-c", program])
    until = time.monotonic() + seconds
    while True:
        code = subprocess.run(command, timeout=20).returncode
        if code == 0 or time.monotonic() > until:
            return code == 0


@real_lab
def test_a_failure_takes_it_down():
    with pytest.raises(ZeroDivisionError):
        with Lab(2) as two:
            number = two.number
            left = subprocess.Popen(two.command(1, ["sleep", "100"]), start_new_session=True)
            raise ZeroDivisionError
    assert not namespaces(number)
    assert left.wait(5) == -signal.SIGKILL


@real_lab
def test_hosts_send_by_the_congestion_control_that_was_asked_for():
    def said(one):
        return network_commands.run("ip", "-n", one.namespaces[1], "route", "show")

    with Lab(2, "100mbit") as one:
        assert "congctl cubic" in said(one)
    with Lab(2, "100mbit", congestion="none") as one:
        assert "congctl" not in said(one)
    with pytest.raises(LabError, match="no congestion control 'nonsense'.*--congestion=none"):
        Lab(2, "100mbit", congestion="nonsense").up()


@real_lab
def test_a_failure_while_it_is_set_up_takes_it_down(monkeypatch):
    two, before = Lab(2, "100mbit"), claims._namespaces()

    def fail(*_):
        raise LabError("tc failed")

    monkeypatch.setattr(two, "_shape_end", fail)
    with pytest.raises(LabError, match="tc failed"):
        two.up()
    assert claims._namespaces() == before


@real_lab
def test_two_labs_do_not_meet():
    with Lab(1) as first, Lab(1) as second:
        assert first.number != second.number
        assert set(first.namespaces).isdisjoint(second.namespaces)
        first.down()
        assert namespaces(second.number)


HOLDER = """
import sys, time
from experiments.allreduce.lab import Lab
with Lab(2) as lab:
    print(lab.number, flush=True)
    time.sleep(60)
"""


def holder():
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    return process, int(process.stdout.readline())


@real_lab
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_take_it_down(number):
    process, lab_number = holder()
    assert namespaces(lab_number)
    process.send_signal(number)
    process.wait(20)
    assert not namespaces(lab_number)
    if number != signal.SIGINT:
        assert process.returncode == 128 + number


@real_lab
def test_what_a_killed_run_left_is_removed_by_the_next_but_not_that_of_a_living_one():
    living, alive = holder()
    killed, dead = holder()
    try:
        killed.kill()
        killed.wait(20)
        assert len(namespaces(dead)) == 3
        said = []
        with Lab(1, notify=said.append) as one:
            assert len(namespaces(alive)) == 3
            left = namespaces(dead)
            assert left == (sorted([*one.namespaces, one.switch]) if one.number == dead else [])
        assert f"tfs{dead}w0" in said[0]
    finally:
        living.terminate()
        living.wait(20)


@real_lab
def test_the_command_keeps_a_lab_until_down(capsys):
    assert lab_command.main(["up", "--workers=1", "--rate=10mbit"]) == 0
    number = int(capsys.readouterr().out.split()[1])
    try:
        with Lab(1) as other:  # Removes leftovers; this is none.
            assert other.number != number
        assert len(namespaces(number)) == 2
        assert lab_command.main(["shape", "--rate=1gbit", f"--lab={number}"]) == 0
        assert Lab.attach(number).rate == "1gbit"
        assert lab_command.main(["verify", f"--lab={number}"]) == 0
        assert "one host has no link" in capsys.readouterr().out
    finally:
        assert lab_command.main(["down", f"--lab={number}"]) == 0
    assert not namespaces(number)
    assert lab_command.main(["verify", f"--lab={number}"]) == 1
    assert "not up" in capsys.readouterr().err


@real_lab
def test_the_machines_own_network_is_untouched():
    before = sorted(os.listdir("/sys/class/net"))
    with Lab(2):
        assert sorted(os.listdir("/sys/class/net")) == before
