"""An accepted socket, and its first bytes before there is a request."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from interop.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    from wirespeed._handshake.pending_handshake import PendingHandshake, has_unread
    from wirespeed.asyncio._pending_handshake import PendingHandshakes as LoopGreetings
    from wirespeed.sync import _pending_handshake as sync_greeting

PEER = ("192.0.2.1", 1234)

# RFC 8446, section 5.1: a record of a handshake with a body of 259 bytes.
RECORD = b"\x16\x03\x01\x01\x03" + bytes(259)


class Opening:
    """Complete after an empty line; fails at a NUL."""

    def __init__(self) -> None:
        self.taken = b""
        self.done = False

    def feed(self, data: bytes) -> None:
        if b"\0" in data:
            raise ValueError("no request")
        self.taken += data
        self.done = b"\r\n\r\n" in self.taken


def make() -> Any:
    return Opening()


@pytest.fixture
def pending() -> Iterator[Any]:
    with socket.socket() as sock:
        yield PendingHandshake(sock, PEER)


def test_no_data_yet(pending: Any) -> None:
    assert (pending.address, pending.deadline, pending.entry) == (PEER, None, None)
    assert (pending.opening, pending.data) == (None, None)
    assert (pending.is_silent, pending.is_complete, pending.is_request_only) == (True, False, False)
    pending.drop()  # no server to notify


def test_request_in_pieces(pending: Any) -> None:
    assert pending.receive(b"GET /", make)
    first = pending.opening
    assert (pending.is_silent, pending.is_complete, pending.is_request_only) == (False, False, False)
    assert pending.receive(b" HTTP/1.1\r\n", make)
    assert not pending.receive(b"\r\n", make)
    assert pending.opening is first
    assert first.taken == b"GET / HTTP/1.1\r\n\r\n"
    assert (pending.data, pending.is_complete, pending.is_request_only) == (None, True, True)


def test_message_behind_the_request(pending: Any) -> None:
    assert not pending.receive(b"GET / HTTP/1.1\r\n\r\n\x81", make)
    assert (pending.data, pending.is_complete, pending.is_request_only) == (None, True, False)


def test_invalid_request(pending: Any) -> None:
    """The code that reports the error gets all bytes."""
    assert pending.receive(b"GET ", make)
    assert not pending.receive(b"\0", make)
    assert (pending.opening, pending.data, pending.is_complete) == (None, b"GET \0", False)


@pytest.mark.parametrize("before", [b"", b"GET "])
def test_end(pending: Any, before: bytes) -> None:
    """After a part of the request, which is included, and with no data, the end is reported."""
    if before:
        assert pending.receive(before, make)
    assert not pending.receive(b"", make)
    assert pending.data == b""
    assert (pending.is_silent, pending.opening is None) == (not before, not before)


@pytest.mark.parametrize("size", [1, 4, 5, 6, 260, len(RECORD) - 1])
def test_first_record_of_tls(pending: Any, size: int) -> None:
    """It is awaited, and passed to TLS with all received bytes."""
    assert pending.receive(RECORD[:size], None)
    assert not pending.is_silent
    assert not pending.receive(RECORD[size:] + b"more", None)
    assert (pending.data, pending.opening, pending.is_complete) == (RECORD + b"more", None, False)


def test_record_in_one_piece(pending: Any) -> None:
    assert not pending.receive(RECORD, None)
    assert pending.data == RECORD


@pytest.mark.parametrize("data", [b"G", b"\x17", b"\x15\x03\x01\x00\x02"])
def test_record_that_is_no_handshake(pending: Any, data: bytes) -> None:
    assert not pending.receive(data, None)
    assert (pending.data, pending.is_silent) == (data, False)


@pytest.mark.parametrize("before", [b"", b"\x16\x03"])
def test_end_instead_of_tls(pending: Any, before: bytes) -> None:
    if before:
        assert pending.receive(before, None)
    assert not pending.receive(b"", None)
    assert (pending.data, pending.is_silent) == (before, not before)


@pytest.mark.parametrize("make_opening", [make, None], ids=["plain", "tls"])
def test_end_is_a_loss(pending: Any, make_opening: Any) -> None:
    pending.receive(b"\x16\x03", make_opening)
    assert not pending.check_lost()
    pending.receive(b"", make_opening)
    assert pending.check_lost()


@pytest.mark.parametrize("how", ["waits", "says more", "ends its half", "resets"])
def test_client_closed_after_its_request(how: str) -> None:
    """A reset client would not get the answer; a client that has only finished sending gets it."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        sock, _ = listener.accept()
        with sock, selectors.DefaultSelector() as selector:
            sock.setblocking(False)
            pending = PendingHandshake(sock, PEER)
            assert not pending.receive(b"GET / HTTP/1.1\r\n\r\n", make)
            if how == "says more":
                client.sendall(b"x")
            elif how == "ends its half":
                client.shutdown(socket.SHUT_WR)
            elif how == "resets":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
            selector.register(sock, selectors.EVENT_READ)
            assert bool(selector.select(0 if how == "waits" else 10)) == (how != "waits")
            assert pending.check_lost() == (how == "resets")
            assert pending.is_complete == (how != "resets")
            assert pending.is_lost == (how == "resets")


def test_dropped_by_its_owner() -> None:
    dropped: list[Any] = []
    with socket.socket() as sock:
        pending = PendingHandshake(sock, PEER, 7.5, dropped.append)
        assert (pending.sock, pending.deadline) == (sock, 7.5)
        pending.drop()
    assert dropped == [pending]


def test_unread() -> None:
    """Unread data stays available; so do the end and an error."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        pending = PendingHandshake(ours, PEER)
        assert (has_unread(ours), pending.has_unread()) == (False, False)
        theirs.send(b"x")
        assert (has_unread(ours), pending.has_unread()) == (True, True)
        assert ours.recv(9) == b"x"
        assert not has_unread(ours)
        theirs.close()
        assert has_unread(ours)
    assert has_unread(ours)  # EBADF


# Those of a server


class HandshakeLimiter:
    """Has a place for every client, and records its calls."""

    def __init__(self) -> None:
        self.entered: list[Any] = []
        self.progressed: list[Any] = []

    def enter(self, candidate: Any, address: Any) -> Any:
        assert address == PEER
        self.entered.append(candidate)
        return ("place of", candidate)

    def progress(self, entry: Any) -> None:
        self.progressed.append(entry)


class Selector:
    def __init__(self) -> None:
        self.watched: dict[Any, Any] = {}

    def register(self, sock: Any, events: int, data: Any) -> None:
        assert events == selectors.EVENT_READ
        self.watched[sock] = data

    def unregister(self, sock: Any) -> None:
        del self.watched[sock]


class Timer:
    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when = when
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    def __init__(self) -> None:
        self.now = 100.0
        self.watched: dict[int, tuple[Any, ...]] = {}
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when, call))
        return self.timers[-1]

    def add_reader(self, descriptor: int, *call: Any) -> None:
        self.watched[descriptor] = call

    def remove_reader(self, descriptor: int) -> bool:
        return self.watched.pop(descriptor, None) is not None

    def ready(self, sock: socket.socket) -> None:
        call, *arguments = self.watched[sock.fileno()]
        call(*arguments)

    def due(self) -> list[float]:
        return [timer.when for timer in self.timers if not timer.is_cancelled]

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for timer in [timer for timer in self.timers if timer.when <= self.now]:
            self.timers.remove(timer)
            if not timer.is_cancelled:
                timer.call()


@pytest.fixture
def pairs() -> Iterator[Callable[[], tuple[socket.socket, socket.socket]]]:
    """Makes pairs of an accepted socket and its client."""
    with contextlib.ExitStack() as stack:

        def make_pair() -> tuple[socket.socket, socket.socket]:
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            return stack.enter_context(ours), stack.enter_context(theirs)

        yield make_pair


Pairs = Callable[[], tuple[socket.socket, socket.socket]]

WHOLE = b"GET / HTTP/1.1\r\n\r\n"


def on_loop(patience: float | None) -> tuple[Any, Loop, HandshakeLimiter, list[tuple[Any, bool]]]:
    loop, limiter = Loop(), HandshakeLimiter()
    came: list[tuple[Any, bool]] = []
    arguments: list[Any] = [loop, patience, limiter, make, lambda *who: came.append(who)]
    return LoopGreetings(*arguments), loop, limiter, came


def test_loop_waits_for_the_request(pairs: Pairs) -> None:
    pending_handshakes, loop, limiter, came = on_loop(7.0)
    ours, theirs = pairs()
    pending_handshakes.add(ours, PEER)
    assert (came, loop.due()) == ([], [107])
    [pending] = limiter.entered
    assert (pending.sock, pending.entry) == (ours, ("place of", pending))
    loop.ready(ours)  # nothing has come
    theirs.send(WHOLE[:5])
    assert limiter.progressed == []
    loop.ready(ours)
    assert (came, limiter.progressed) == ([], [pending.entry])
    theirs.send(WHOLE[5:])
    loop.ready(ours)
    # The next owner stops the watch, or replaces it.
    assert came == [(pending, True)]
    assert ours.fileno() in loop.watched
    loop.ready(ours)  # seen in the same turn of the loop
    assert len(came) == 1


@pytest.mark.parametrize("data", [WHOLE, b"\0", b""])
def test_loop_has_nothing_to_wait_for(pairs: Pairs, data: bytes) -> None:
    pending_handshakes, loop, limiter, came = on_loop(7.0)
    ours, theirs = pairs()
    if data:
        theirs.send(data)
    else:
        theirs.close()
    pending_handshakes.add(ours, PEER)
    [(pending, watched)] = came
    assert (pending.address, pending.entry, watched) == (PEER, None, False)
    assert (limiter.entered, loop.watched, loop.due()) == ([], {}, [])


def test_loop_has_one_timer(pairs: Pairs) -> None:
    """It never fires before a time is over."""
    pending_handshakes, loop, limiter, came = on_loop(7.0)
    socks = []
    for _ in range(3):
        ours, _ = pairs()
        socks.append(ours)
        pending_handshakes.add(ours, PEER)
        loop.now += 1
    first, second, third = limiter.entered
    assert loop.due() == [107]
    loop.advance(4)
    assert (came, loop.due()) == ([(first, True)], [108])
    second.drop()
    loop.advance(1)
    assert (came[1:], loop.due()) == ([], [109])
    loop.advance(1)
    assert (came[1:], loop.due()) == ([(third, True)], [])


def test_loop_without_limit(pairs: Pairs) -> None:
    pending_handshakes, loop, limiter, came = on_loop(None)
    ours, _ = pairs()
    pending_handshakes.add(ours, PEER)
    assert (loop.due(), limiter.entered[0].deadline) == ([], None)
    pending_handshakes.release()
    assert came == [(limiter.entered[0], True)]


def test_loop_passes_all_bytes_on(pairs: Pairs) -> None:
    pending_handshakes, loop, limiter, came = on_loop(7.0)
    for _ in range(2):
        pending_handshakes.add(pairs()[0], PEER)
    pending_handshakes.release()
    assert came == [(pending, True) for pending in limiter.entered]
    assert loop.due() == []
    pending_handshakes.release()
    assert len(came) == 2
    # It may continue.
    pending_handshakes.add(pairs()[0], PEER)
    assert loop.due() == [107]


def test_loop_forgets_dropped_sockets(pairs: Pairs) -> None:
    pending_handshakes, loop, limiter, came = on_loop(7.0)
    ours, theirs = pairs()
    pending_handshakes.add(ours, PEER)
    call, *arguments = loop.watched[ours.fileno()]
    limiter.entered[0].drop()
    assert (loop.watched, ours.fileno(), theirs.recv(1)) == ({}, -1, b"")
    call(*arguments)  # seen in the same turn of the loop
    pending_handshakes.release()
    assert came == []


def test_loop_reports_errors(pairs: Pairs) -> None:
    """Later code sees the errors again."""
    pending_handshakes, loop, limiter, came = on_loop(7.0)
    ours, _ = pairs()
    pending_handshakes.add(ours, PEER)
    call, *arguments = loop.watched[ours.fileno()]
    ours.close()
    call(*arguments)
    assert came == [(limiter.entered[0], True)]


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(sync_greeting, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def in_thread(patience: float | None) -> tuple[Any, Selector, HandshakeLimiter]:
    selector, limiter = Selector(), HandshakeLimiter()
    arguments: list[Any] = [selector, patience, limiter, make]
    return sync_greeting.PendingHandshakes(*arguments), selector, limiter


def test_thread_waits_for_the_request(pairs: Pairs, clock: Clock) -> None:
    pending_handshakes, selector, limiter = in_thread(7.0)
    ours, theirs = pairs()
    assert pending_handshakes.add(ours, PEER) is None
    [pending] = limiter.entered
    assert (pending.sock, pending.entry, selector.watched) == (ours, ("place of", pending), {ours: pending})
    assert not pending_handshakes.readable(pending)  # nothing has come
    limiter.progressed.clear()
    theirs.send(WHOLE[:5])
    assert not pending_handshakes.readable(pending)
    assert limiter.progressed == [pending.entry]
    theirs.send(WHOLE[5:])
    assert pending_handshakes.readable(pending)
    assert (selector.watched, pending_handshakes.timeout(), pending_handshakes.release()) == ({}, None, None)
    assert not pending_handshakes.readable(pending)  # seen at the same time


@pytest.mark.parametrize("data", [WHOLE, b"\0", b""])
def test_thread_has_nothing_to_wait_for(pairs: Pairs, clock: Clock, data: bytes) -> None:
    pending_handshakes, selector, limiter = in_thread(7.0)
    ours, theirs = pairs()
    if data:
        theirs.send(data)
    else:
        theirs.close()
    pending = pending_handshakes.add(ours, PEER)
    assert (pending.address, pending.entry, pending.deadline) == (PEER, None, 107)
    assert (limiter.entered, selector.watched, pending_handshakes.timeout()) == ([], {}, None)


def test_thread_returns_timed_out_sockets(pairs: Pairs, clock: Clock) -> None:
    pending_handshakes, selector, limiter = in_thread(7.0)
    assert (pending_handshakes.timeout(), pending_handshakes.expired()) == (None, None)
    for _ in range(2):
        pending_handshakes.add(pairs()[0], PEER)
        clock.now += 1
    first, second = limiter.entered
    assert (pending_handshakes.timeout(), pending_handshakes.expired()) == (5, None)
    clock.now = 106.9999
    assert (pending_handshakes.timeout(), pending_handshakes.expired()) == (0.001, None)
    clock.now = 107
    assert (pending_handshakes.expired(), pending_handshakes.expired()) == (first, None)
    assert list(selector.watched.values()) == [second]
    clock.now = 999
    assert pending_handshakes.timeout() == 0.001
    assert (pending_handshakes.expired(), pending_handshakes.timeout()) == (second, None)


def test_thread_without_limit(pairs: Pairs, clock: Clock) -> None:
    pending_handshakes, selector, limiter = in_thread(None)
    pending_handshakes.add(pairs()[0], PEER)
    clock.now += 9999
    assert (pending_handshakes.timeout(), pending_handshakes.expired()) == (None, None)
    assert pending_handshakes.release() is limiter.entered[0]
    assert (selector.watched, pending_handshakes.release()) == ({}, None)


def test_thread_forgets_dropped_sockets(pairs: Pairs, clock: Clock) -> None:
    pending_handshakes, selector, limiter = in_thread(7.0)
    ours, theirs = pairs()
    pending_handshakes.add(ours, PEER)
    limiter.entered[0].drop()
    assert (selector.watched, ours.fileno(), theirs.recv(1)) == ({}, -1, b"")
    assert not pending_handshakes.readable(limiter.entered[0])
    assert (pending_handshakes.timeout(), pending_handshakes.release()) == (None, None)


def test_thread_reports_errors(pairs: Pairs, clock: Clock) -> None:
    """Later code sees the errors again."""
    pending_handshakes, _, limiter = in_thread(7.0)
    ours, _ = pairs()
    pending_handshakes.add(ours, PEER)
    ours.close()
    assert pending_handshakes.readable(limiter.entered[0])
