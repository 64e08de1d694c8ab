"""JSON lines over TCP without blocking: the wire of the pre-flight meeting."""

import errno
import json
import os
import socket
import threading
import time

MAX_LINE_BYTES = 1 << 20
_CONNECT_SECONDS = 5.0
_READS_PER_PUMP = 64  # Nobody who floods one channel may starve the others.


class Channel:
    """One TCP connection that carries JSON objects, a line each; nothing here blocks.

    Args:
        sock: a connected or connecting non-blocking socket.
        connecting: `bool`, whether the connection is still to be completed.
    """

    def __init__(self, sock, connecting=False):
        sock.setblocking(False)
        self._socket = sock
        self._connecting = connecting
        self._inbox = b""
        self._outbox = b""
        self.opened_at = time.monotonic()
        self.trouble = None  # Why the channel is closed, in words.

    @classmethod
    def connect(cls, family, address):
        """Begins to connect to a socket address; `pump` completes it."""
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        code = sock.connect_ex(address)
        channel = cls(sock, connecting=True)
        if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            channel.close(describe_error(OSError(code, os.strerror(code))))
        return channel

    @property
    def closed(self):
        return self._socket is None

    @property
    def connected(self):
        return not self.closed and not self._connecting

    @property
    def wants_to_write(self):
        return self._connecting or bool(self._outbox)

    def fileno(self):
        return self._socket.fileno()

    def send(self, message):
        """Queues a JSON object and writes what the socket takes now."""
        self._outbox += json.dumps(message).encode() + b"\n"
        if self.connected:
            self._write()

    def pump(self):
        """Completes the connection, writes, reads; returns the messages that have arrived."""
        if self._connecting and not self._complete():
            return []
        if not self.closed:
            self._write()
        messages = []
        for _ in range(_READS_PER_PUMP):
            if self.closed:
                break
            try:
                data = self._socket.recv(65536)
            except BlockingIOError:
                break
            except OSError as error:
                self.close(describe_error(error))
                break
            messages += self._split(data)
            if not data:
                self.close("the other side closed the connection")
        return messages

    def close(self, trouble=None):
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self.trouble = trouble

    def _complete(self):
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.close(describe_error(OSError(code, os.strerror(code))))
            return False
        try:
            peer = self._socket.getpeername()
        except OSError:
            if time.monotonic() - self.opened_at > _CONNECT_SECONDS:
                self.close("no answer; is the host down, or does a firewall drop the packets?")
            return False
        # A port nobody listens on can be picked as the caller's own: TCP then connects to itself.
        if peer == self._socket.getsockname():
            self.close("connection refused, nothing listens there yet")
            return False
        self._connecting = False
        return True

    def _write(self):
        try:
            while self._outbox:
                sent = self._socket.send(self._outbox)
                self._outbox = self._outbox[sent:]
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(describe_error(error))

    def _split(self, data):
        """Messages of the complete lines; anything else than our JSON closes the channel."""
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        messages = []
        for line in lines:
            try:
                message = json.loads(line) if len(line) <= MAX_LINE_BYTES else None
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict) or "tfscale" not in message:
                self.close(_describe_stranger(line))
                return messages
            messages.append(message)
        # The first byte tells a stranger who sends no line at all.
        if self._inbox[:1] not in (b"", b"{") or len(self._inbox) > MAX_LINE_BYTES:
            self.close(_describe_stranger(self._inbox))
        return messages


def _describe_stranger(data):
    if data[3:4] == b"\x04" and data[:1] == b"\x00":  # HTTP/2 SETTINGS: gRPC greets first.
        return (
            "a gRPC server answers there; has the job started without this worker, or is an "
            "older one still running?"
        )
    return f"a program that is not tfscale answers there, with {bytes(data[:40])!r}"


def describe_error(error):
    """An `OSError` of the network in words, with its usual cause."""
    if error.errno == errno.ECONNREFUSED:
        return "connection refused, nothing listens there yet"
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return "no route to the host"
    if error.errno in (errno.ETIMEDOUT, errno.EAGAIN):
        return "no answer; is the host down, or does a firewall drop the packets?"
    return error.strerror or str(error)


class Resolver:
    """Looks host names up in the background, since a name server can take half a minute."""

    _RETRY_SECONDS = 3.0

    def __init__(self):
        self._results = {}
        self._started = {}

    def lookup(self, host):
        """Returns ``(entries, trouble)``; both are `None` while the answer is not known."""
        result = self._results.get(host)
        stale = result is not None and result[1] is not None
        now = time.monotonic()
        if (result is None and host not in self._started) or (
            stale and now - self._started[host] > self._RETRY_SECONDS
        ):
            self._started[host] = now
            thread = threading.Thread(target=self._resolve, args=(host,), daemon=True)
            thread.start()
            thread.join(0.05)  # Literals and /etc/hosts answer at once.
            result = self._results.get(host)
        return result or (None, None)

    def _resolve(self, host):
        try:
            entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            self._results[host] = (entries, None)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            self._results[host] = (None, f"the name {host!r} cannot be resolved ({reason})")
