"""What the links of a lab carry, measured by iperf3: the bound of every all-reduce on them."""

import contextlib
import dataclasses
import json
import statistics
import subprocess
import time

from experiments.allreduce.network_commands import LabError
from experiments.rates import format_rate, parse_rate

_PORT = 5201
_START_SECONDS = 10
# Headers take 4-5 % of a shaped rate. Far less means that the machine cannot keep up, more that
# the link is not shaped.
_LEAST_SHARE, _MOST_SHARE = 0.8, 1.02


@dataclasses.dataclass(frozen=True)
class LinkCheck:
    """What all links carried at the same time, each host sending to the next one.

    Attributes:
        bits_per_second: `float`, payload, the median of the links; None with a single host.
        lowest, highest: `float`, of the links.
        retransmits: `int`, of all links.
        rate: `str`, what the links are shaped to.
    """

    bits_per_second: float | None
    lowest: float | None
    highest: float | None
    retransmits: int
    rate: str

    def describe(self):
        """One line for people."""
        shaped = format_rate(parse_rate(self.rate))
        if self.bits_per_second is None:
            return "one host has no link to measure"
        return (
            f"links {'not shaped' if shaped == 'unshaped' else f'shaped to {shaped}'}: iperf3 "
            f"carries {format_rate(self.bits_per_second)} of payload (lowest "
            f"{format_rate(self.lowest)}, highest {format_rate(self.highest)}, "
            f"{self.retransmits} retransmits)"
        )


def check_links(lab, seconds, notify):
    """Loads all links of `lab` at once in the pattern of a ring; returns a `LinkCheck`.

    Raises:
        LabError: if a shaped link carries more than it should or much less.
    """
    if lab.workers == 1:
        return LinkCheck(None, None, None, 0, lab.rate)
    processes = []
    try:
        for worker in range(lab.workers):
            server = ["iperf3", "-s", "-1", "-p", str(_PORT), "--forceflush"]
            processes.append(_start(lab.command(worker, server)))
        for worker, server in enumerate(processes):
            _wait_until_listening(lab, worker, server)
        clients = []
        for worker in range(lab.workers):
            peer = lab.addresses[(worker + 1) % lab.workers]
            # The first second is left out: an empty bucket lets a burst through.
            client = ["iperf3", "-c", peer, "-p", str(_PORT), "-t", str(seconds), "-O", "1", "-J"]
            clients.append(_start(lab.command(worker, client)))
        processes += clients
        results = [_result(client, seconds) for client in clients]
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.communicate()
    carried = [result["sum_received"]["bits_per_second"] for result in results]
    check = LinkCheck(
        bits_per_second=statistics.median(carried),
        lowest=min(carried),
        highest=max(carried),
        retransmits=sum(result["sum_sent"].get("retransmits", 0) for result in results),
        rate=lab.rate,
    )
    _judge(check, notify)
    return check


def _judge(check, notify):
    shaped = parse_rate(check.rate)
    if shaped is None:
        return
    if check.highest > _MOST_SHARE * shaped:
        raise LabError(f"the shaping does not hold: {check.describe()}")
    if check.lowest < _LEAST_SHARE * shaped:
        raise LabError(
            f"{check.describe()}: this machine cannot drive links of that rate, or something else "
            "is using it; a measurement would be of its processors"
        )
    if check.lowest < 0.97 * check.highest:
        notify(f"the links differ, something else is using this machine: {check.describe()}")


def _start(argv):
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C is for us; we end them.
    )


def _wait_until_listening(lab, worker, server):
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and server.poll() is None:
        # LISTEN is state 0A; the table is that of the process's own namespace.
        with contextlib.suppress(OSError):
            for table in ("tcp", "tcp6"):
                with open(f"/proc/{server.pid}/net/{table}") as file:
                    if any(f":{_PORT:04X} " in line and " 0A " in line for line in file):
                        return
        time.sleep(0.02)
    said = server.stdout.read() if server.poll() is not None else "no answer"
    raise LabError(f"iperf3 does not start on {lab.namespaces[worker]}: {said.strip()}")


def _result(client, seconds):
    try:
        output, _ = client.communicate(timeout=seconds + 20)
        result = json.loads(output)
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise LabError(f"iperf3 gives no result: {error}") from error
    if "error" in result:
        raise LabError(f"iperf3: {result['error']}")
    return result["end"]
