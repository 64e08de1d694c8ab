"""Worker 0: takes the calls, checks the way back to each worker, compares, and decides."""

import time

from tfscale.rendezvous.disagreements import (
    declared_differences,
    list_difference,
    some,
    two_processes,
)
from tfscale.rendezvous.participant import PROTOCOL, TICK_SECONDS, Caller, Participant

# After a disagreement is seen, the others get this long to come and add theirs.
_SETTLE_SECONDS = 5.0
_FAREWELL_SECONDS = 5.0


class Leader(Participant):
    """Waits for all workers, compares what they declare, and gives the verdict."""

    def __init__(self, *args):
        super().__init__(*args)
        workers = self.config.workers
        self._others = {
            index: _Attendance(_Prober(self, workers[index])) for index in range(1, len(workers))
        }
        self._misfits = []  # Callers that belong to no free place; they only hear the verdict.
        self._disagreements = []
        # If its own port is taken, perhaps another process believes to be worker 0 as well.
        self._rival = Caller(self, workers[0])

    def channels(self):
        calls = [other.call for other in self._others.values()]
        probes = [other.prober.channel for other in self._others.values()]
        extra = [self._rival.channel, *self._misfits]
        return [channel for channel in (*self.guests, *calls, *probes, *extra) if channel]

    def trouble_for_others(self):
        return ""

    def greet(self, guest, message):
        if not _is_hello(message):
            guest.close("not a greeting")
            return
        if guest in self.guests:
            self.guests.remove(guest)
        config, other = self.config, self._others.get(message["worker"])
        theirs = (tuple(message["workers"]), message["has_chief"])
        if theirs != (config.workers, config.has_chief):
            self._misfits.append(guest)
            self._disagree(list_difference(config, message))
        elif other is None:
            self._misfits.append(guest)
            self._disagree(two_processes(self.identity, message))
        elif other.is_called_by_another(message):
            self._misfits.append(guest)
            self._disagree(two_processes(other.hello, message))
        else:
            other.take(guest, message)
            for difference in declared_differences(self._declarations()):
                self._disagree(difference)
            self._tell_progress(guest)

    def step(self):
        self._look_for_rival()
        for index, other in self._others.items():
            other.hear()
            if not other.reached:
                self._probe(index, other)
        for misfit in self._misfits:
            misfit.pump()
        called = all(other.call is not None for other in self._others.values())
        if called and self._disagreements:
            self.verdict = self._refusal()
        elif self.listener is not None and all(other.present for other in self._others.values()):
            self.verdict = "go"

    def waiting_for(self):
        missing = [
            f"worker {index} ({self.config.workers[index]}: {other.describe_absence()})"
            for index, other in self._others.items()
            if not other.present
        ]
        return self.with_own_troubles(some(missing) if missing else "its own port")

    def notice(self, text):
        super().notice(text)
        for other in self._others.values():
            if other.call is not None:
                self._tell_progress(other.call)

    def give_up(self):
        if self._disagreements:
            self.verdict = self._refusal()
        else:
            self.verdict = f"timeout: {self.waiting_for()}"

    def say_farewell(self):
        """Sends the verdict and waits until all have acknowledged it."""
        calls = {index: other.call for index, other in self._others.items() if other.call}
        pending = [*calls.values(), *self._misfits]
        for channel in pending:
            channel.send({"tfscale": PROTOCOL, "verdict": self.verdict})
        acknowledged = set()
        until = time.monotonic() + (_FAREWELL_SECONDS if self.verdict == "go" else 1.0)
        while pending and time.monotonic() < until:
            for channel in pending:
                if any(message.get("ack") for message in channel.pump()):
                    acknowledged.add(channel)
            pending = [c for c in pending if not c.closed and c not in acknowledged]
            time.sleep(TICK_SECONDS / 5)
        lost = [str(index) for index, call in calls.items() if call not in acknowledged]
        if self.verdict == "go" and lost:
            self.verdict = f"timeout: worker {some(lost)}, which left just before the start"

    def _look_for_rival(self):
        if self.listener is not None:
            self._rival.hang_up()
            return
        for message in self._rival.messages():
            if isinstance(message.get("verdict"), str):
                self.verdict = message["verdict"]

    def _probe(self, index, other):
        for message in other.prober.messages():
            other.prober.hang_up()
            if message.get("worker") != index:
                other.probe_trouble = (
                    f"worker {message.get('worker')} answers there; do two tasks have one address?"
                )
            elif other.call is None:
                trouble = str(message.get("trouble") or "no answer yet")[:300]
                other.probe_trouble = f"it is there, but its call does not come through: {trouble}"
            elif other.hello["id"] != message.get("id"):
                self._disagree(two_processes(other.hello, message))
            else:
                other.reached = True
        if other.prober.trouble:
            other.probe_trouble = other.prober.trouble

    def _declarations(self):
        hellos = {index: other.hello for index, other in self._others.items() if other.call}
        return {0: self.declared} | {index: hello["declared"] for index, hello in hellos.items()}

    def _disagree(self, text):
        if text in self._disagreements:
            return
        if not self._disagreements:
            self.deadline = min(self.deadline, time.monotonic() + _SETTLE_SECONDS)
        self._disagreements.append(text)
        self.log(f"tfscale: the workers disagree: {text}")

    def _refusal(self):
        # What was logged when only some had come is said again for all of them.
        declared = declared_differences(self._declarations())
        rest = [text for text in self._disagreements if text.startswith(("TF_CONFIG", "two "))]
        return "refused: " + "; ".join([*rest, *declared] or self._disagreements)

    def _tell_progress(self, channel):
        left = self.deadline - time.monotonic()
        channel.send({"tfscale": PROTOCOL, "waiting": self.waiting_for(), "left": left})


class _Attendance:
    """What the leader knows of one worker."""

    def __init__(self, prober):
        self.prober = prober
        self.call = None
        self.hello = None
        self.reached = False
        self.probe_trouble = "not tried yet"

    @property
    def present(self):
        return self.call is not None and self.hello["listens"] and self.reached

    def is_called_by_another(self, hello):
        return self.call is not None and not self.call.closed and self.hello["id"] != hello["id"]

    def take(self, call, hello):
        if self.call is not None and self.call is not call:
            self.call.close()
        self.call, self.hello = call, hello

    def hear(self):
        if self.call is None:
            return
        for message in self.call.pump():
            if _is_hello(message):
                self.hello = message
        if self.call.closed:
            self.call, self.reached = None, False

    def describe_absence(self):
        if self.call is None:
            return (
                f"it had called, but is gone; {self.probe_trouble}"
                if self.hello
                else (self.probe_trouble)
            )
        trouble = self.hello["trouble"]
        if not self.hello["listens"]:
            return trouble or "its port is not open yet"
        unreached = f"it has called, but cannot be reached at its address: {self.probe_trouble}"
        return f"{unreached}; {trouble}" if trouble else unreached


class _Prober(Caller):
    """The leader's question "who is there?" to the address that a worker advertises."""

    def say_hello(self):
        if self.said is None:
            self.said = {"tfscale": PROTOCOL, "ask": "who"}
            self.channel.send(self.said)


def _is_hello(message):
    declared = message.get("declared")
    workers = message.get("workers")
    return (
        type(message.get("worker")) is int
        and isinstance(workers, list)
        and all(isinstance(worker, str) for worker in workers)
        and isinstance(declared, dict)
        and all(isinstance(value, str) for value in declared.values())
        and isinstance(message.get("listens"), bool)
        and isinstance(message.get("trouble"), str)
        and {"id", "pid", "host", "has_chief"} <= message.keys()
    )
