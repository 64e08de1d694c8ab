"""A data service: processes that read and decode for several training workers.

python -m tfscale.data.service --port=5050 --workers=2
"""

import argparse
import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time

from tfscale import cores
from tfscale.addresses import join_address, split_address
from tfscale.data import service_address
from tfscale.process_group.commands import describe_exit_code
from tfscale.rendezvous.ports import port_is_free, reserve_ports
from tfscale.rendezvous.proxies import exempt

_LOOPBACK, _DISPATCHER = "127.0.0.1", "the dispatcher"
_TICK_SECONDS = 0.2
_START_SECONDS = 120.0
_STOP_SECONDS = 5.0

_DESCRIPTION = """\
Starts a tf.data service: a dispatcher, and data workers that read and decode pictures for the
workers of a training job. Training sees the same batches, to the bit, as without it.

Each data worker is a process of its own, so that one that is killed (out of memory, a crash)
takes nothing but time: the steps it had are made by the training workers that wait for them. It
is named; the others go on; when the last one is gone, the service ends with exit code 1.
More may join at any time, also from other machines, which must see the records under the same
paths and have the same version of this package.
"""

_EXAMPLES = """\
examples:
  # two data workers on this machine; then train with data_service="grpc://127.0.0.1:5050"
  # (or TFSCALE_DATA_SERVICE=grpc://127.0.0.1:5050, which `launch.local --data_service=2` sets)
  python -m tfscale.data.service --port=5050 --workers=2

  # for trainers on other machines: say how they reach this one
  python -m tfscale.data.service --port=5050 --workers=2 --host=10.0.0.7

  # more data workers, on another machine (10.0.0.8)
  python -m tfscale.data.service --dispatcher=10.0.0.7:5050 --workers=4 --host=10.0.0.8

security: TensorFlow's servers listen on every interface, whatever --host says, and run what
anyone sends them: use a network that you trust, or a firewall.

exit code: 0 after Ctrl-C or SIGTERM; 1 when the dispatcher or the last data worker is gone;
2 if something is wrong with the command line.
"""


class _Process:
    """A process of the service, in a session of its own: Ctrl-C reaches only its parent."""

    def __init__(self, name, arguments, environ):
        self.name = name
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "tfscale.data.service_process", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
            start_new_session=True,
        )

    def ended(self):
        """Returns how the process ended, or None while it runs."""
        code = self.popen.poll()
        if code is None:
            return None
        code = describe_exit_code(128 - code if code < 0 else code)
        return f"{self.name} (process {self.popen.pid}) ended with exit code {code}"

    def close(self):
        with contextlib.suppress(OSError):
            self.popen.stdin.close()


class Service:
    """The processes of a service on this machine.

    Args:
        dispatcher: "host:port" of a dispatcher to serve; None starts one.
        port: `int`, of the dispatcher to start.
        workers: `int`, data workers.
        host: `str`, name or address under which trainers reach this machine.
        threads: `int`, cores of each data worker.
    """

    def __init__(self, dispatcher, port, workers, host, threads):
        hosts = [_LOOPBACK, "localhost", host]
        if dispatcher is not None:
            hosts.append(split_address(dispatcher)[0])
        environ = _environment(hosts, threads)
        self._processes = []
        self._claim = None if dispatcher else _claim(port)
        try:
            self._start(dispatcher, port, workers, host, environ)
        except BaseException:
            self.close()
            raise

    def _start(self, dispatcher, port, workers, host, environ):
        if dispatcher is None:
            dispatcher = join_address(_LOOPBACK, port)
            self._processes.append(_Process(_DISPATCHER, ["dispatcher", str(port)], environ))
        for number in range(workers):
            arguments = ["worker", dispatcher, host]
            self._processes.append(_Process(f"data worker {number}", arguments, environ))
        self._await(self._processes)

    def _await(self, processes):
        """Waits until each of `processes` has said that it is ready."""
        deadline = time.monotonic() + _START_SECONDS
        with selectors.DefaultSelector() as selector:
            for process in processes:
                selector.register(process.popen.stdout, selectors.EVENT_READ, process)
            while selector.get_map():
                for key, _ in selector.select(_TICK_SECONDS):
                    selector.unregister(key.fileobj)
                    if not key.fileobj.readline():
                        key.data.popen.wait()
                        raise RuntimeError(f"{key.data.ended()} before it was ready")
                if time.monotonic() > deadline:
                    late = ", ".join(key.data.name for key in selector.get_map().values())
                    raise RuntimeError(f"not ready after {_START_SECONDS:.0f} s: {late}")

    def watch(self, notify):
        """Notes who has ended; raises `RuntimeError` when the service cannot go on.

        Args:
            notify: function of a line of text.
        """
        for process in list(self._processes):
            end = process.ended()
            if end is None:
                continue
            self._processes.remove(process)
            workers = [p for p in self._processes if p.name != _DISPATCHER]
            if process.name == _DISPATCHER:
                raise RuntimeError(end)
            if not workers:
                raise RuntimeError(f"{end}, and it was the last data worker")
            notify(f"{end}; {len(workers)} data worker(s) go on")

    def close(self):
        """Ends all processes."""
        for process in self._processes:
            process.close()
        deadline = time.monotonic() + _STOP_SECONDS
        for process in self._processes:
            try:
                process.popen.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
        if self._claim is not None:
            self._claim.close()


def _environment(hosts, threads):
    """The environment of the processes: so many threads each, no GPU, no proxy in between."""
    environ = dict(os.environ)
    for name in ("TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"):
        environ[name] = str(threads)
    environ["CUDA_VISIBLE_DEVICES"] = "-1"
    environ.pop("TF_CONFIG", None)
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return environ | exempt(hosts, environ)


def _claim(port):
    """Returns a socket named by the port (Linux): a port can be shared, a name cannot."""
    claim = socket.socket(socket.AF_UNIX)
    if sys.platform == "linux":
        try:
            claim.bind(f"\0tfscale data service {port}")
        except OSError:
            claim.close()
            raise RuntimeError(
                f"port {port} is another data service's; choose another one"
            ) from None
    return claim


def _positive(text):
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m tfscale.data.service",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--port", type=_positive, help="port of the dispatcher (default: a free one)")
    add("--workers", type=_positive, default=1, help="data workers to start here (default 1)")
    share = "threads of each data worker, which decode (default: its share of the cores)"
    add("--threads", type=_positive, help=share)
    reached = f"name or address by which trainers reach this machine (default {_LOOPBACK})"
    add("--host", default=_LOOPBACK, help=reached)
    more = "start no dispatcher: add data workers to the one that runs there"
    add("--dispatcher", metavar="HOST:PORT", help=more)
    return parser


def _stop(number, frame):
    raise SystemExit(0)


def main(argv=None):
    """Runs the service until Ctrl-C or SIGTERM; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        if options.dispatcher and options.port:
            raise ValueError("--port is of the dispatcher to start, and --dispatcher starts none")
        if options.port and options.port > 65535:
            raise ValueError(f"--port={options.port} is above 65535")
        if not options.host:
            raise ValueError("--host is empty; wanted a name or address of this machine")
        if options.port and not port_is_free(options.port):
            # TensorFlow's server would share the port, and each request would go to either.
            raise ValueError(f"--port={options.port} is in use; choose another one")
        if options.dispatcher:
            options.dispatcher = service_address.resolve(options.dispatcher)
            service_address.wait_for(options.dispatcher, seconds=10.0)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    threads = options.threads or max(1, cores.available_cores() // options.workers)

    def say(text):
        print(f"tfscale data service: {text}", flush=True)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)
    service = None
    try:
        port = options.port
        if not port and not options.dispatcher:
            with reserve_ports(1) as reservation:
                (port,) = reservation.ports
        service = Service(options.dispatcher, port, options.workers, options.host, threads)
        address = options.dispatcher or join_address(options.host, port)
        workers = f"{options.workers} data worker(s) x {threads} thread(s)"
        say(f"ready at grpc://{address}, {workers}; Ctrl-C ends it")
        while True:
            service.watch(say)
            time.sleep(_TICK_SECONDS)
    except RuntimeError as error:
        say(f"{error}. The service ends")
        return 1
    finally:
        if service is not None:
            service.close()


if __name__ == "__main__":
    sys.exit(main())
