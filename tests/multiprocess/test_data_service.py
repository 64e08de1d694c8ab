"""A real data service: the same batches as without it, whatever happens to its processes."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests import record_files
from tfscale.data import images, service_address

ROOT = Path(__file__).parent.parent.parent


class Program:
    """A process with its output, line by line."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        )  # fmt: skip
        self.lines = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)

    def wait_for(self, pattern, seconds=90):
        until = time.monotonic() + seconds
        while True:
            if found := re.search(pattern, "".join(self.lines)):
                return found
            assert time.monotonic() < until, f"no {pattern!r} in {self.lines}"
            time.sleep(0.05)


@contextlib.contextmanager
def program(*arguments):
    started = Program(*arguments)
    try:
        yield started
    finally:
        started.process.send_signal(signal.SIGTERM)
        try:
            started.process.wait(20)
        finally:
            started.process.kill()


def port_of(address):
    return address.rpartition(":")[2]


def processes(port):
    """The pids of the dispatcher and of the data workers of a service."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError, ValueError):
            _, _, module, *arguments = path.read_text().split("\0")[:-1]
            if module == "tfscale.data.service_process" and port in arguments[1]:
                found[int(path.parent.name)] = arguments[0]
    return sorted(found, key=lambda pid: (found[pid], pid))


def batches(folder, context, address=None):
    return images.train_dataset(
        folder, 8, 16, context, seed=5, initial_step=3, on_error="skip", threads=2,
        include_record_ids=True, data_service=address,
    )  # fmt: skip


def assert_same(got, expected):
    for one, other in zip(got, expected, strict=True):
        for part, expected_part in zip(one, other, strict=True):
            np.testing.assert_array_equal(part, expected_part)


@pytest.mark.slow
def test_batches_are_the_same_with_and_without_it_also_when_a_data_worker_is_killed(tmp_path):
    record_files.write(tmp_path, [20, 17], encoded={6: b"not a picture"}, size=(0, 0))
    with program("-m", "tfscale.data.service", "--workers=2", "--threads=1") as service:
        alone = {
            worker: record_files.take(batches(tmp_path, record_files.context(worker, 2)), 60)
            for worker in range(2)
        }
        assert not any(6 in batch[2] for worker in alone.values() for batch in worker)
        address = service.wait_for(r"ready at grpc://(127.0.0.1:\d+), 2 data worker")[1]
        served = {
            worker: iter(batches(tmp_path, record_files.context(worker, 2), address))
            for worker in range(2)
        }

        def same(first, last):
            for worker, iterator in served.items():
                got = [[part.numpy() for part in next(iterator)] for _ in range(first, last)]
                assert_same(got, alone[worker][first:last])

        same(0, 12)
        _, one, other = processes(port_of(address))
        os.kill(one, signal.SIGKILL)
        same(12, 58)
        service.wait_for(r"data worker 0 .* ended with exit code 137 .*; 1 data worker\(s\) go on")
        os.kill(other, signal.SIGKILL)
        service.wait_for("it was the last data worker. The service ends")
        assert service.process.wait(20) == 1
        with pytest.raises(ConnectionError, match=f"no data service answers at {address}"):
            service_address.wait_for(address, seconds=0.5)


@pytest.mark.slow
def test_the_launcher_starts_and_ends_it(tmp_path):
    training = tmp_path / "train.py"
    training.write_text(
        "import os, time\n"
        "from tfscale.data import service_address\n"
        "address = service_address.resolve(None)\n"
        "service_address.wait_for(address)\n"
        "print('found', address, flush=True)\n"
        f"while not os.path.exists({str(tmp_path / 'enough')!r}): time.sleep(0.1)\n"
    )
    launch = ("-m", "launch.local", "--workers=2", "--data_service=1", str(training))
    with program(*launch) as first, program(*launch) as second:
        both = []
        for job in (first, second):
            address = job.wait_for(r"found (127.0.0.1:\d+)")[1]
            job.wait_for(rf"\[worker 1\] found {address}")
            job.wait_for(r"\[data service\] .* ready at grpc://" + address)
            both.append(address)
        assert both[0] != both[1]
        os.kill(processes(port_of(both[1]))[0], signal.SIGKILL)
        second.wait_for("data service failed first, .* exit code 1; stopped the other 2")
        second.wait_for(r"the dispatcher \(process \d+\) ended with exit code 137")
        assert second.process.wait(20) == 1
        (tmp_path / "enough").touch()
        assert first.process.wait(20) == 0, first.lines
        assert not processes(port_of(both[0])) and not processes(port_of(both[1]))
