"""What every participant of the meeting has: its own port, guests on it, a clock, and a caller."""

import os
import selectors
import socket
import time
import uuid

from tfscale.addresses import split_address
from tfscale.rendezvous.channels import Channel, Resolver
from tfscale.rendezvous.ports import is_local, open_listener

PROTOCOL = 1
TICK_SECONDS = 0.05
_RETRY_SECONDS = 0.5
_ANSWER_SECONDS = 4.0
_SILENT_GUEST_SECONDS = 10.0
_MAX_GUESTS = 256


class Participant:
    """What leader and members share: the own port, guests on it, and time."""

    def __init__(self, config, declared, timeout_seconds, log, first_notice, notice_every):
        self.config = config
        self.index = config.worker_index
        self.host, self.port = split_address(config.address)
        self.identity = {
            "tfscale": PROTOCOL,
            "worker": self.index,
            "id": uuid.uuid4().hex,
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }
        self.declared = declared
        self.resolver = Resolver()
        self.log = log
        self.started = time.monotonic()
        self.deadline = self.started + timeout_seconds
        self.listener = None
        self.port_trouble = None
        self.foreign_address = None
        self.guests = []
        self.verdict = None  # None, then "go" or the reason for a refusal.
        self._next_listen = 0.0
        self._notice_every = notice_every
        self._next_notice = self.started + first_notice
        self.noticed = False

    def run(self):
        """Runs until the verdict or the deadline; returns "go" or the reason of the refusal."""
        try:
            while self.verdict is None:
                self._wait_for_traffic()
                self._listen()
                self._receive_guests()
                self.step()
                now = time.monotonic()
                if self.verdict is None and now >= self.deadline:
                    self.give_up()
                elif self.verdict is None and now >= self._next_notice:
                    self._next_notice += self._notice_every
                    self.noticed = True
                    left = max(0, round(self.deadline - now))
                    self.notice(f"{self.waiting_for()}; {left} s left")
            self.say_farewell()
        finally:
            self.close()
        return self.verdict

    def notice(self, text):
        self.log(f"tfscale: worker {self.index} waits for {text}")

    def own_troubles(self):
        """What is wrong with this worker's own port and address; empty if nothing is."""
        troubles = [self.port_trouble, self.foreign_address]
        return "; ".join(trouble for trouble in troubles if trouble)

    def with_own_troubles(self, text):
        troubles = self.own_troubles()
        return f"{text}; worker {self.index}: {troubles}" if troubles else text

    def channels(self):
        return self.guests

    def close(self):
        for channel in self.channels():
            channel.close()
        if self.listener is not None:
            self.listener.close()

    def _wait_for_traffic(self):
        with selectors.DefaultSelector() as selector:
            if self.listener is not None:
                selector.register(self.listener, selectors.EVENT_READ)
            for channel in self.channels():
                if not channel.closed:
                    write = selectors.EVENT_WRITE if channel.wants_to_write else 0
                    selector.register(channel, selectors.EVENT_READ | write)
            selector.select(TICK_SECONDS)

    def _listen(self):
        now = time.monotonic()
        if self.listener is not None or now < self._next_listen:
            return
        self._next_listen = now + _RETRY_SECONDS
        entries, trouble = self.resolver.lookup(self.host)
        if entries is None and trouble is None:
            return
        try:
            self.listener = open_listener(entries or [], self.port)
            self.port_trouble = None
        except OSError as error:
            self.port_trouble = (
                f"its port {self.port} cannot be opened on {self.identity['host']} "
                f"({error.strerror}); is an older job or another program still using it?"
            )
        # Behind a Kubernetes service or NAT this is right, so it is a hint and no error.
        self.foreign_address = None
        if trouble:
            self.foreign_address = f"its own name: {trouble}"
        elif not is_local(entries):
            self.foreign_address = (
                f"its address {self.host} ({entries[0][4][0]}) does not belong to this machine, "
                f"{self.identity['host']}; is the task index in TF_CONFIG right?"
            )

    def _receive_guests(self):
        while self.listener is not None and len(self.guests) < _MAX_GUESTS:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                break
            self.guests.append(Channel(sock))
        now = time.monotonic()
        for guest in list(self.guests):
            for message in guest.pump():
                if message.get("ask") == "who":
                    guest.send({**self.identity, "trouble": self.trouble_for_others()})
                else:
                    self.greet(guest, message)
            silent = now - guest.opened_at > _SILENT_GUEST_SECONDS
            if guest in self.guests and (guest.closed or silent):
                guest.close()
                self.guests.remove(guest)


class Caller:
    """A worker's line to the leader: calls until it is answered, and calls again if cut off."""

    def __init__(self, participant, address):
        self._participant = participant
        self._address = address
        self.host, self.port = split_address(address)
        self.channel = None
        self.trouble = None
        self.said = None
        self._heard = False
        self._next_call = 0.0
        self._attempt = 0

    def messages(self):
        """Keeps the line up and returns what the leader has sent."""
        now = time.monotonic()
        if self.channel is None and now >= self._next_call:
            self._next_call = now + min(_RETRY_SECONDS, 0.05 * 2 ** min(self._attempt, 8))
            self._dial()
        if self.channel is None:
            return []
        received = self.channel.pump()
        if self.channel.closed:
            self.trouble = self.channel.trouble
            self.channel = None
        elif received:
            self._heard = True
            self.trouble = None
        elif self.channel.connected and not self._heard and self._is_silent():
            self.hang_up("something accepts the connection, but says nothing tfscale would say")
        if self.channel is not None and self.channel.connected:
            self.say_hello()
        return received

    def hang_up(self, trouble=None):
        if self.channel is not None:
            self.channel.close()
        self.channel, self.trouble = None, trouble

    def _is_silent(self):
        return time.monotonic() - self.channel.opened_at > _ANSWER_SECONDS

    def _dial(self):
        entries, trouble = self._participant.resolver.lookup(self.host)
        if entries is None:
            self.trouble = trouble or f"the name {self.host!r} is being looked up"
            return
        # A name may have several addresses, of which one answers.
        family, _, _, _, address = entries[self._attempt % len(entries)]
        self._attempt += 1
        self.said = None
        self._heard = False
        self.channel = Channel.connect(family, (address[0], self.port, *address[2:]))

    def say_hello(self):
        participant = self._participant
        config = participant.config
        hello = {
            **participant.identity,
            "workers": list(config.workers),
            "has_chief": config.has_chief,
            "declared": participant.declared,
            "listens": participant.listener is not None,
            "trouble": participant.own_troubles(),
        }
        if hello != self.said:
            self.said = hello
            self.channel.send(hello)
