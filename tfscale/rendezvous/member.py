"""Every worker but the leader: calls the leader and waits for its verdict."""

import time

from tfscale.rendezvous.participant import PROTOCOL, Caller, Participant


class Member(Participant):
    """Every worker but the leader."""

    def __init__(self, *args):
        super().__init__(*args)
        self._caller = Caller(self, self.config.workers[0])
        self._leader_waits_for = None

    def channels(self):
        caller = self._caller.channel
        return [*self.guests, *([caller] if caller else [])]

    def trouble_for_others(self):
        return self._caller.trouble or ""

    def greet(self, guest, message):
        # Only the leader takes calls; who calls here has another list of workers.
        guest.send({**self.identity, "not_the_leader": True})

    def step(self):
        for message in self._caller.messages():
            if isinstance(message.get("verdict"), str):
                self.verdict = message["verdict"]
            elif message.get("not_the_leader"):
                self._caller.hang_up(f"worker {message.get('worker')} answers there")
            elif isinstance(message.get("waiting"), str):
                self._leader_waits_for = message["waiting"]
                # The leader ends the wait, so that all end with the same verdict.
                left = message.get("left")
                if isinstance(left, int | float):
                    self.deadline = max(self.deadline, time.monotonic() + min(left, 86400) + 5)
        if self._caller.channel is None:
            self._leader_waits_for = None

    def waiting_for(self):
        if self._leader_waits_for:
            return self.with_own_troubles(f"{self._leader_waits_for} (says worker 0)")
        trouble = self._caller.trouble or "connected, no answer yet"
        return self.with_own_troubles(f"worker 0, the leader ({self.config.workers[0]}: {trouble})")

    def give_up(self):
        self.verdict = f"timeout: {self.waiting_for()}"

    def say_farewell(self):
        channel = self._caller.channel
        if channel is not None and not channel.closed:
            channel.send({"tfscale": PROTOCOL, "ack": True})
