"""A TCP relay that treats a connection as networks do: it cuts, delays, dribbles, and swallows.

It stands between the subject of a test, near, and its peer, far, and knows nothing of WebSockets. A fault strikes at a
call of the test, or when a number of bytes has gone one way. One thread, every wait bounded.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import fcntl
import queue
import selectors
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

Fault = Literal["none", "reset", "half-close", "blackhole", "dribble", "stall", "full"]

RELAYED: tuple[Fault, ...] = ("reset", "half-close", "blackhole", "dribble", "stall", "full")

# For a command to the thread.
PATIENCE = 20.0

# Seconds without any transfer.
STALL = 1.0

# Seconds for which the subject's data is not read.
HELD = 0.5

# Bytes that go one at a time, in each direction: a message of some length with its surroundings.
DRIBBLED = 2000

# Nothing has moved for this long: the sender is blocked.
STUCK = 0.15

CHUNK = 65536


def _now() -> float:
    return time.monotonic()


def _waiting(sock: socket.socket) -> int:
    """Returns the number of bytes that have arrived and were not read."""
    size = array.array("i", [0])
    fcntl.ioctl(sock.fileno(), termios.FIONREAD, size)
    return size[0]


@dataclasses.dataclass(frozen=True)
class Trigger:
    """A fault that strikes by itself as soon as a number of bytes has gone one way.

    Args:
        fault: The fault.
        to_near: Whether bytes to the subject are counted, not those from it.
        after: The number of bytes; 0 for at once.
        then: Called when it has struck, by the thread of the relay.
    """

    fault: Fault
    to_near: bool = True
    after: int = 0
    then: Callable[[], None] = lambda: None


class _Way:
    """One direction: bytes that were read from its source and not yet written to its target."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source = source
        self.target = target
        self.buffer = bytearray()
        self.passed = 0
        self.ended = False
        self.end_is_sent = False
        self.held_until = 0.0
        self.dribbles = 0

    @property
    def held(self) -> bool:
        return self.held_until > _now()

    def read(self) -> None:
        try:
            data = self.source.recv(CHUNK)
        except BlockingIOError:
            return
        self.buffer += data
        self.ended = not data

    def write(self, most: int | None) -> None:
        """Forwards the available bytes, but no more than ``most``."""
        size = len(self.buffer) if most is None else min(most, len(self.buffer))
        if self.dribbles:
            size = min(size, 1)
            self.dribbles -= 1
        if size:
            try:
                size = self.target.send(memoryview(self.buffer)[:size])
            except BlockingIOError:
                return
            del self.buffer[:size]
            self.passed += size
        if self.ended and not self.buffer and not self.end_is_sent:
            self.end_is_sent = True
            self.target.shutdown(socket.SHUT_WR)


class _Pair:
    """Both sockets of a connection that is relayed."""

    def __init__(self, near: socket.socket, far: socket.socket, trigger: Trigger | None) -> None:
        self.near = near
        self.far = far
        self.trigger = trigger
        self.to_near = _Way(far, near)
        self.from_near = _Way(near, far)
        self.moves_from = 0.0
        self.dead = False
        for sock in (near, far):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def ways(self) -> tuple[_Way, _Way]:
        return self.to_near, self.from_near

    def close(self) -> None:
        self.dead = True
        self.near.close()
        self.far.close()

    def strike(self, fault: Fault) -> None:
        match fault:
            case "reset":
                for sock in (self.near, self.far):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close()
            case "half-close":
                # The peer's data is read and discarded, so that the peer is not blocked.
                self.to_near.buffer.clear()
                if not self.to_near.end_is_sent:
                    self.near.shutdown(socket.SHUT_WR)
                self.to_near.end_is_sent = self.to_near.ended = True
            case "blackhole":
                self.moves_from = float("inf")
            case "dribble":
                for way in self.ways:
                    way.dribbles = DRIBBLED
            case "stall":
                self.moves_from = _now() + STALL
            case "full":
                self.from_near.held_until = _now() + HELD
            case "none":
                pass

    def room(self, way: _Way) -> int | None:
        """Returns how many bytes may go one way before the trigger; ``None`` for any number."""
        if self.trigger is None or (way is self.to_near) is not self.trigger.to_near:
            return None
        return max(0, self.trigger.after - way.passed)

    def pull_trigger(self) -> None:
        trigger = self.trigger
        if trigger is not None and (self.to_near if trigger.to_near else self.from_near).passed >= trigger.after:
            self.trigger = None
            self.strike(trigger.fault)
            trigger.then()


class Relay:
    """Relays connections to a target; faults strike the first of them.

    Args:
        target: The address.
        subject_dials: Whether the subject of the test connects to the relay, and is not the target.
        trigger: A fault that strikes by itself.
        tunnel: Whether the relay is an HTTP proxy for the subject.
    """

    def __init__(
        self,
        target: tuple[str, int],
        *,
        subject_dials: bool,
        trigger: Trigger | None = None,
        tunnel: bool = False,
    ) -> None:
        self.target = target
        self.subject_dials = subject_dials
        self.trigger = trigger
        self.tunnel = tunnel
        self.listener = socket.socket()
        # Accepted sockets inherit it: the system buffers little of unread data.
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.listener.setblocking(False)
        self.port: int = self.listener.getsockname()[1]
        self._pairs: list[_Pair] = []
        self._first: _Pair | None = None
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake, self._bell = socket.socketpair()
        self._wake.setblocking(False)
        self._stopping = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def __enter__(self) -> Relay:  # noqa: PYI034 - typing.Self needs Python 3.11
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._bell.send(b"x")
        self._thread.join(PATIENCE)
        alive = self._thread.is_alive()
        for sock in (self.listener, self._wake, self._bell):
            sock.close()
        assert not alive, "the relay did not end"
        if self._error is not None:
            raise self._error

    # Called from other threads

    def _do(self, command: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            try:
                command()
            finally:
                done.set()

        self._commands.put(run)
        self._bell.send(b"x")
        assert done.wait(PATIENCE), "the relay does not answer"

    def strike(self, fault: Fault) -> None:
        """Lets a fault strike the first connection, after everything that its ends have sent so far was forwarded."""

        def command() -> None:
            pair = self._first
            if pair is None or pair.dead:
                return
            for way in pair.ways:
                if not way.ended and not way.held:
                    with contextlib.suppress(OSError):
                        way.read()
                with contextlib.suppress(OSError):
                    way.write(None)
            with contextlib.suppress(OSError):
                pair.strike(fault)

        self._do(command)

    def hold(self) -> None:
        """Stops reading from the subject."""
        self._hold(float("inf"))

    def release(self) -> None:
        """Continues reading."""
        self._hold(0.0)

    def _hold(self, until: float) -> None:
        def command() -> None:
            if self._first is not None:
                self._first.from_near.held_until = until

        self._do(command)

    def wait_stuck(self, *, timeout: float = PATIENCE) -> None:
        """After ``hold``: waits until the subject has sent something and can send no more, or its end is gone."""
        last, since, deadline = -1, _now(), _now() + timeout
        while True:
            assert _now() < deadline, "the subject is not stuck"
            found = [-1]

            def look(found: list[int] = found) -> None:
                if self._first is not None and not self._first.dead:
                    found[0] = _waiting(self._first.near)

            self._do(look)
            if found[0] < 0:
                return
            if found[0] != last:
                last, since = found[0], _now()
            elif last > 0 and _now() - since > STUCK:
                return
            time.sleep(0.01)

    # The thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except BaseException as exc:
            self._error = exc
        finally:
            for pair in self._pairs:
                pair.close()

    def _turn(self) -> None:
        # It needs no descriptor, of which there may be none.
        selector = selectors.PollSelector()
        with selector:
            selector.register(self._wake, selectors.EVENT_READ)
            selector.register(self.listener, selectors.EVENT_READ)
            now = _now()
            timeout = 5.0
            interest: dict[socket.socket, int] = {}
            for pair in self._pairs:
                if pair.moves_from > now:
                    timeout = min(timeout, pair.moves_from - now)
                    continue
                for way in pair.ways:
                    if now < way.held_until < float("inf"):
                        timeout = min(timeout, way.held_until - now)
                    if not way.ended and not way.held and len(way.buffer) < CHUNK:
                        interest[way.source] = interest.get(way.source, 0) | selectors.EVENT_READ
                    if pair.room(way) != 0 and (way.buffer or (way.ended and not way.end_is_sent)):
                        interest[way.target] = interest.get(way.target, 0) | selectors.EVENT_WRITE
            for sock, events in interest.items():
                selector.register(sock, events)
            ready: dict[Any, int] = {key.fileobj: events for key, events in selector.select(timeout)}
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                self._wake.recv(4096)
            while not self._commands.empty():
                self._commands.get()()
        for pair in self._pairs:
            if pair.dead or pair.moves_from > _now():
                continue
            try:
                self._move(pair, ready)
            except OSError:
                pair.strike("reset")
        self._pairs = [pair for pair in self._pairs if not pair.dead]
        if self.listener in ready:
            self._accept()

    def _move(self, pair: _Pair, ready: dict[Any, int]) -> None:
        dribbles = False
        for way in pair.ways:
            if pair.dead:
                return
            if not way.ended and not way.held and ready.get(way.source, 0) & selectors.EVENT_READ:
                way.read()
            if ready.get(way.target, 0) & selectors.EVENT_WRITE:
                way.write(pair.room(way))
                dribbles |= way.dribbles > 0
            pair.pull_trigger()
            if way is pair.to_near and pair.to_near.ended and pair.to_near.end_is_sent:
                way.buffer.clear()
        if all(way.end_is_sent for way in pair.ways):
            pair.close()
        elif dribbles:
            # So that the other end has a chance to see a byte alone.
            time.sleep(0.0001)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            sock = self.listener.accept()[0]
            try:
                if self.tunnel:
                    self._answer_as_proxy(sock)
                far = socket.create_connection(self.target, PATIENCE)
            except OSError:
                sock.close()
                return
            near, far = (sock, far) if self.subject_dials else (far, sock)
            pair = _Pair(near, far, self.trigger if self._first is None else None)
            self._pairs.append(pair)
            if self._first is None:
                self._first = pair
                if self.tunnel:
                    pair.to_near.buffer += b"HTTP/1.1 200 Connection established\r\n\r\n"
            pair.pull_trigger()
            self._pairs = [pair for pair in self._pairs if not pair.dead]

    @staticmethod
    def _answer_as_proxy(sock: socket.socket) -> None:
        sock.settimeout(PATIENCE)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            data = sock.recv(1)
            if not data:
                raise ConnectionResetError
            head += data
