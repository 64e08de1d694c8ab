"""The network lab: hosts of one machine, joined by links of a given rate.

Each host is a network namespace; a switch, a namespace too, joins them by a bridge over veth
pairs. Every link is shaped at both of its ends by a token bucket (``tc qdisc ... tbf``), so that
a host sends and receives at the rate at most. Nothing of it touches the machine's own network:
no address, no route, no interface.

    python -m experiments.allreduce.lab up --workers=4 --rate=200mbit
    python -m experiments.allreduce.lab verify      # what iperf3 gets through the links
    python -m experiments.allreduce.lab shape --rate=1gbit
    ip netns exec tfs0w1 ping 10.77.0.10
    python -m experiments.allreduce.lab down
"""

import contextlib
import dataclasses
import signal
import sys
import threading

from experiments.allreduce import claims, iperf
from experiments.allreduce.network_commands import LabError, check_machine, run
from experiments.rates import parse_rate

INTERFACE = "eth0"
CONGESTION = "cubic"
_NETWORK = "10.77.0"
_MOST_WORKERS = 200
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclasses.dataclass(frozen=True)
class Counters:
    """Bytes that a host's interface has carried, headers included.

    Attributes:
        sent: `int`.
        received: `int`.
    """

    sent: int
    received: int


class Lab:
    """Hosts joined by a switch; a context manager that always takes them down again.

    Also on an exception, Ctrl-C, SIGTERM and SIGHUP; what a SIGKILL leaves behind is removed by
    the next lab. Labs do not see each other: all have the same addresses.

    Args:
        workers: `int`, number of hosts.
        rate: `str`, of each link in each direction, as ``tc`` writes it: ``"200mbit"``; or
            ``"none"`` (default) for links without a limit.
        notify: function of one line of text. Defaults to standard error.
        congestion: `str`, by which TCP's congestion control the hosts send. Defaults to
            ``"cubic"``, Linux's own default, so that figures of several machines compare;
            ``"none"`` leaves the machine's.

    Attributes:
        payload_bytes_per_second: `float`, what `verify` has measured; None before that.

    Raises:
        ValueError: for a rate that is none.
        LabError: on entering, where the machine cannot have a lab; says what it lacks.

    Example:
        >>> with Lab(workers=2, rate="200mbit") as lab:
        ...     lab.verify().bits_per_second
        ...     subprocess.run(lab.command(0, ["ping", "-c1", lab.addresses[1]]))
    """

    def __init__(self, workers, rate="none", notify=None, congestion=CONGESTION):
        if not 1 <= workers <= _MOST_WORKERS:
            raise ValueError(f"a lab has 1 to {_MOST_WORKERS} workers, not {workers}")
        parse_rate(rate)
        self.workers, self.rate, self._congestion = workers, str(rate), congestion
        self._notify = notify or (lambda line: print(line, file=sys.stderr, flush=True))
        self.payload_bytes_per_second = None
        self._claim = None
        self._handlers = {}

    @classmethod
    def attach(cls, number=None, notify=None):
        """Returns the lab that ``lab up`` has made; `number` is needed if there are several."""
        there = claims.kept()
        if number is None and len(there) != 1:
            raise LabError(
                f"{'no lab is' if not there else f'labs {there} are'} up; "
                + ("name one: --lab=0" if there else "make one: ... lab up --workers=4")
            )
        number = there[0] if number is None else number
        claim = claims.Claim.take(number) if number in there else None
        if claim is None:
            raise LabError(f"lab {number} is {'in use' if number in there else 'not up'}")
        facts = claim.read()
        lab = cls(facts["workers"], facts["rate"], notify)
        lab._claim = claim
        return lab

    @property
    def number(self):
        """The lab's number on this machine: part of its namespaces' names."""
        return self._claim.number

    @property
    def namespaces(self):
        """The hosts' namespaces, in worker order."""
        return [f"tfs{self.number}w{i}" for i in range(self.workers)]

    @property
    def switch(self):
        """The namespace of the bridge."""
        return f"tfs{self.number}net"

    @property
    def addresses(self):
        """The hosts' addresses, in worker order."""
        return [f"{_NETWORK}.{10 + i}" for i in range(self.workers)]

    @property
    def switch_address(self):
        """The address of the bridge, for a program that is no worker."""
        return f"{_NETWORK}.1"

    def address(self, worker):
        """The address of a host."""
        return self.addresses[worker]

    def command(self, worker, argv):
        """The command line that runs `argv` on a host; ``"switch"`` for the bridge's place."""
        name = self.switch if worker == "switch" else self.namespaces[worker]
        return ["ip", "netns", "exec", name, *argv]

    def counters(self, worker):
        """Returns the `Counters` of a host's interface."""
        text = run(*self.command(worker, ["cat", "/proc/net/dev"]))
        return parse_counters(text)

    def link_down(self, worker):
        """Cuts a host's cable: its packets, and those for it, are lost until `link_up`."""
        run("ip", "-n", self.switch, "link", "set", f"port{worker}", "down")

    def link_up(self, worker):
        """Plugs a host's cable in again."""
        run("ip", "-n", self.switch, "link", "set", f"port{worker}", "up")

    def shape(self, rate):
        """Gives all links another rate."""
        parse_rate(rate)
        self.payload_bytes_per_second = None
        self.rate = str(rate)
        for worker in range(self.workers):
            self._shape_end(self.switch, f"port{worker}")
            self._shape_end(self.namespaces[worker], INTERFACE)
        if self._claim.read().get("keep"):
            self.keep()

    def verify(self, seconds=2):
        """Measures by iperf3 what the links carry; returns an `iperf.LinkCheck`.

        A measurement that falls short is repeated, twice at most: something else may have used
        the machine for that moment.

        Raises:
            LabError: if that is not what they were shaped to.
        """
        for patience in (2, 1, 0):
            try:
                check = iperf.check_links(self, seconds, self._notify)
                break
            except LabError as error:
                if not patience:
                    raise
                self._notify(f"measuring again: {error}")
        if check.bits_per_second is not None:
            self.payload_bytes_per_second = check.bits_per_second / 8
        return check

    def keep(self):
        """Lets the lab outlive this process."""
        self._claim.write(keep=True, workers=self.workers, rate=self.rate)

    def up(self):
        """Sets the lab up; removes it again if that fails."""
        check_machine()
        self._claim, removed = claims.claim_free()
        if removed:
            self._notify(f"removed what a killed run had left: {', '.join(removed)}")
        try:
            self._make()
        except BaseException:
            self.down()
            raise

    def down(self):
        """Ends what runs on the hosts and removes them; without effect if they are not there."""
        if self._claim is None:
            return
        # A second Ctrl-C must not leave half of it behind: it is obeyed afterwards.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            self._claim.remove_namespaces()
        finally:
            self._claim.release()
            self._claim = None
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) == signal.SIG_DFL:  # It would end us with no clean-up.
                    self._handlers[number] = signal.signal(number, _leave)
        try:
            self.up()
        except BaseException:
            self._restore_handlers()
            raise
        return self

    def __exit__(self, *_):
        try:
            self.down()
        finally:
            self._restore_handlers()

    def _restore_handlers(self):
        while self._handlers:
            signal.signal(*self._handlers.popitem())

    def _make(self):
        run("ip", "netns", "add", self.switch)
        run("ip", "-n", self.switch, "link", "set", "lo", "up")
        run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.switch, "addr", "add", f"{self.switch_address}/24", "dev", "bridge")
        run("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for worker, (name, address) in enumerate(zip(self.namespaces, self.addresses, strict=True)):
            port = f"port{worker}"
            run("ip", "netns", "add", name)
            pair = ("type", "veth", "peer", "name", INTERFACE, "netns", name)
            run("ip", "-n", self.switch, "link", "add", port, *pair)
            run("ip", "-n", self.switch, "link", "set", port, "master", "bridge", "up")
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", INTERFACE)
            run("ip", "-n", name, "link", "set", INTERFACE, "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            self._shape_end(self.switch, port)
            self._shape_end(name, INTERFACE)
            if self._congestion != "none":
                self._choose_congestion(name)

    def _choose_congestion(self, namespace):
        # By the route: a namespace may not choose it for all its connections.
        route = ("route", "change", f"{_NETWORK}.0/24", "dev", INTERFACE)
        try:
            run("ip", "-n", namespace, *route, "congctl", self._congestion)
        except LabError as error:
            raise LabError(
                f"this machine has no congestion control {self._congestion!r} ({error}); see "
                "/proc/sys/net/ipv4/tcp_available_congestion_control, or leave the machine's own: "
                "--congestion=none"
            ) from error

    def _shape_end(self, namespace, interface):
        bits = parse_rate(self.rate)
        if bits is None:
            run("tc", "-n", namespace, "qdisc", "del", "dev", interface, "root", check=False)
            return
        # The bucket must hold the largest packet that the stack hands down (64 KiB), and some
        # timer ticks' worth of a fast link.
        burst = "256kb" if bits >= 10**9 else "128kb"
        tbf = ("tbf", "rate", f"{bits}bit", "burst", burst, "latency", "50ms")
        run("tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", *tbf)


def parse_counters(text):
    """The `Counters` in the text of ``/proc/net/dev``, which is of the reader's namespace."""
    for line in text.splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == INTERFACE:
            numbers = numbers.split()
            return Counters(sent=int(numbers[8]), received=int(numbers[0]))
    raise LabError(f"there is no interface {INTERFACE} here; this runs inside a lab only")


def _leave(number, _):
    raise SystemExit(128 + number)


if __name__ == "__main__":
    from experiments.allreduce.lab_command import main

    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
