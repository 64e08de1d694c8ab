"""Cut links and stopped workers: training goes on if they come back, else everybody ends.

Real processes on the hosts of the network lab, whose links are cut.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from experiments.allreduce import workers as lab_workers
from experiments.allreduce.lab import Lab
from experiments.allreduce.network_commands import LabError

HEARTBEAT = 3
# From the cut to the error, on a busy machine: a heartbeat, and a call's patience after it.
BOUND = 3 * HEARTBEAT + 10

pytestmark = [pytest.mark.slow, pytest.mark.alone]


class Cluster:
    """Workers of `link_failure_workers` on the hosts of a lab."""

    def __init__(self, lab, folder, *arguments):
        self.lab, self.logs, self.processes = lab, [], []
        argv = [sys.executable, "-m", "tests.multiprocess.link_failure_workers"]
        argv += [str(argument) for argument in arguments]
        for worker, command in enumerate(lab_workers.commands(lab, argv, 1)):
            self.logs.append(folder / f"worker-{worker}.log")
            with open(self.logs[-1], "wb") as log:
                process = subprocess.Popen(
                    command.argv,
                    env=command.env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=lab_workers.ROOT,
                )
            self.processes.append(process)

    def said(self, worker, start):
        """The rest of the last line of a worker that begins with `start`; None without one."""
        lines = self.logs[worker].read_text(errors="replace").splitlines()
        found = [line.removeprefix(start) for line in lines if line.startswith(start)]
        return found[-1].strip() if found else None

    def wait_for_step(self, number, seconds=120):
        until = time.monotonic() + seconds
        while int(self.said(0, "step ") or -1) < number:
            assert time.monotonic() < until and None in self.codes(), self.everything()
            time.sleep(0.02)

    def codes(self):
        return [process.poll() for process in self.processes]

    def wait(self, workers, seconds):
        """Waits for workers to end by themselves; they must not hang."""
        until = time.monotonic() + seconds
        while any(self.processes[w].poll() is None for w in workers):
            assert time.monotonic() < until, f"a worker hangs: {self.codes()}\n{self.everything()}"
            time.sleep(0.05)

    def error(self, worker):
        """When a worker raised, and what its user is told."""
        raised = self.said(worker, "raised ")
        assert raised, self.everything()
        return float(raised.split()[0]), self.said(worker, "told ")

    def everything(self):
        return "\n".join(
            f"--- worker {w}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-20:])
            for w, log in enumerate(self.logs)
        )


@contextlib.contextmanager
def cluster(folder, workers, *arguments, rate="100mbit"):
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    try:
        lab = Lab(workers, rate)
        lab.up()
    except LabError as error:
        pytest.skip(f"no network lab here: {error}")
    started = None
    try:
        started = Cluster(lab, folder, *arguments)
        yield started
    finally:
        for process in started.processes if started else ():
            if process.poll() is None:
                process.kill()
            process.wait()
        lab.down()


def test_a_link_that_comes_back_does_no_harm(tmp_path):
    with cluster(tmp_path, 2, "train", 60, 10) as running:
        running.wait_for_step(5)
        running.lab.link_down(1)
        time.sleep(1)
        at_the_cut = running.said(0, "step ")
        time.sleep(4)
        assert running.said(0, "step ") == at_the_cut, "the link was not cut"
        assert int(at_the_cut) < 59, "the cut came after the last step"
        running.lab.link_up(1)
        running.wait([0, 1], 60)
        for worker in (0, 1):
            assert running.said(worker, "weights ") == "right", running.everything()
        assert running.codes() == [0, 0], running.everything()


# The names that each worker's error must have one of, by worker; its own text may name several.
# Who is cut off itself has lost all the others, and hears of one of them first.
@pytest.mark.parametrize(
    ("what", "victim", "named"),
    [
        ("train", 1, {0: [1], 1: [0], 2: [1]}),
        ("train", 0, {0: [1, 2], 1: [0], 2: [0]}),
        ("agree", 1, {0: [1], 1: [0]}),
        ("agree", 0, {0: [1], 1: [0]}),
    ],
)
def test_a_link_cut_for_good_ends_every_worker(tmp_path, what, victim, named):
    with cluster(tmp_path, len(named), what, 100_000, HEARTBEAT) as running:
        running.wait_for_step(5)
        cut = time.time()
        running.lab.link_down(victim)
        running.wait(named, BOUND + 20)
        assert running.codes() == [1] * len(named), running.everything()
        for worker, lost in named.items():
            raised, text = running.error(worker)
            assert raised - cut < BOUND, running.everything()
            names = [f"worker {one} ({running.lab.address(one)}:" for one in lost]
            assert any(name in text for name in names), (worker, text)
        if (what, victim) == ("train", 1):
            # Worker 2 ends because of worker 1. Worker 0 may hear of that end first.
            assert running.said(0, "of 2 ").startswith("worker 1 ("), running.everything()


@pytest.mark.parametrize("victim", [1, 0])
def test_a_stopped_worker_ends_the_others_and_itself_when_it_goes_on(tmp_path, victim):
    other = 1 - victim
    with cluster(tmp_path, 2, "train", 100_000, HEARTBEAT) as running:
        running.wait_for_step(5)
        stopped = time.time()
        running.processes[victim].send_signal(signal.SIGSTOP)
        running.wait([other], BOUND + 20)
        raised, text = running.error(other)
        assert raised - stopped < BOUND
        assert text.startswith(f"worker {victim} (10."), text
        running.processes[victim].send_signal(signal.SIGCONT)
        running.wait([victim], BOUND + 20)
        assert running.codes()[victim] != 0
        assert re.match(r"worker [01] \(10\.", running.error(victim)[1]), running.everything()
