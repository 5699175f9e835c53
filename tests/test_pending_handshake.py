"""Accepted sockets of both APIs while they wait for their request.

How the bytes are parsed is tested in crates/driver/tests/accept.rs.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from support.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    from wirespeed import exceptions
    from wirespeed._native import PendingHandshake
    from wirespeed._options.server import AsyncServerOptions
    from wirespeed._server.accept import AcceptedSocket
    from wirespeed.asyncio import _accept as asyncio_accept
    from wirespeed.sync import _accept as sync_accept

PEER = ("192.0.2.1", 1234)

WHOLE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def make(tls: bool = False) -> Any:
    options = AsyncServerOptions({"ping_interval": None, "ping_timeout": None, "close_timeout": 1}).native
    return PendingHandshake(options, tls)


def test_error_is_kept_until_it_can_be_reported() -> None:
    """A malformed request is parsed once."""
    handshake = make()
    assert handshake.receive(b"GET ")
    assert not handshake.receive(b"/ HTTP/9\r\n\r\n")
    assert (handshake.is_complete, handshake.prefix) == (False, b"GET ")
    with pytest.raises(exceptions.InvalidHandshake):
        handshake.check()
    handshake.check()
    handshake.reject([("X-More", "1")])
    answer = handshake.take_output()
    assert answer.startswith(b"HTTP/1.1 505 ")
    assert b"X-More: 1\r\n" in answer


def test_incomplete_request_has_no_connection() -> None:
    handshake = make()
    with pytest.raises(RuntimeError, match="not complete"):
        handshake.finish()
    handshake.receive(WHOLE)
    handshake.finish()
    with pytest.raises(RuntimeError, match="not complete"):
        handshake.finish()


def test_tls_awaits_its_first_record() -> None:
    handshake = make(tls=True)
    assert handshake.receive(b"\x16\x03\x01\x00\x05")
    assert not handshake.receive(b"12345")
    assert (handshake.is_silent, handshake.is_complete, handshake.take_output()) == (False, False, b"")


@pytest.mark.parametrize("how", ["waits", "says more", "ends its half", "resets"])
def test_client_closed_after_its_request(how: str) -> None:
    """A reset client would not get the answer; a client that has only finished sending gets it."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        sock, _ = listener.accept()
        with sock, selectors.DefaultSelector() as selector:
            sock.setblocking(False)
            accepted = AcceptedSocket(sock, PEER, make())
            assert not accepted.handshake.receive(WHOLE)
            if how == "says more":
                client.sendall(b"x")
            elif how == "ends its half":
                client.shutdown(socket.SHUT_WR)
            elif how == "resets":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
            selector.register(sock, selectors.EVENT_READ)
            assert bool(selector.select(0 if how == "waits" else 10)) == (how != "waits")
            assert accepted.check_lost() == (how == "resets")
            assert accepted.handshake.is_complete == (how != "resets")
            if how == "resets":
                with pytest.raises(exceptions.InvalidMessage):
                    accepted.handshake.check()


# Those of a server


class HandshakeLimiter:
    """Has a place for every client, and records its calls."""

    def __init__(self) -> None:
        self.entered: list[Any] = []
        self.drops: list[Callable[[], None]] = []
        self.progressed: list[int] = []

    def enter(self, address: Any, sock: Any, drop: Any) -> int:
        assert address == PEER
        assert sock.fileno() >= 0
        self.entered.append(drop.args[0])
        self.drops.append(drop)
        return len(self.drops)

    def progress(self, key: int) -> None:
        self.progressed.append(key)


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


def on_loop(patience: float | None) -> tuple[Any, Loop, HandshakeLimiter, list[tuple[Any, bool]]]:
    loop, limiter = Loop(), HandshakeLimiter()
    came: list[tuple[Any, bool]] = []
    arguments: list[Any] = [loop, patience, limiter, make, lambda *who: came.append(who)]
    return asyncio_accept.PendingHandshakes(*arguments), loop, limiter, came


def test_loop_waits_for_the_request(pairs: Pairs) -> None:
    pending_handshakes, loop, limiter, came = on_loop(7.0)
    ours, theirs = pairs()
    pending_handshakes.add(ours, PEER)
    assert (came, loop.due()) == ([], [107])
    [pending] = limiter.entered
    assert (pending.sock, pending.key) == (ours, 1)
    loop.ready(ours)  # nothing has come
    theirs.send(WHOLE[:5])
    assert limiter.progressed == []
    loop.ready(ours)
    assert (came, limiter.progressed) == ([], [pending.key])
    theirs.send(WHOLE[5:])
    loop.ready(ours)
    # The next owner stops the watch, or replaces it.
    assert came == [(pending, True)]
    assert ours.fileno() in loop.watched
    loop.ready(ours)  # seen in the same turn of the loop
    assert len(came) == 1


@pytest.mark.parametrize("data", [WHOLE, b"\0\r\n", b""])
def test_loop_has_nothing_to_wait_for(pairs: Pairs, data: bytes) -> None:
    pending_handshakes, loop, limiter, came = on_loop(7.0)
    ours, theirs = pairs()
    if data:
        theirs.send(data)
    else:
        theirs.close()
    pending_handshakes.add(ours, PEER)
    [(pending, watched)] = came
    assert (pending.address, pending.key, watched) == (PEER, None, False)
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
    first, _, third = limiter.entered
    assert loop.due() == [107]
    loop.advance(4)
    assert (came, loop.due()) == ([(first, True)], [108])
    limiter.drops[1]()
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
    limiter.drops[0]()
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
        monkeypatch.setattr(sync_accept, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def in_thread(patience: float | None) -> tuple[Any, Selector, HandshakeLimiter]:
    selector, limiter = Selector(), HandshakeLimiter()
    arguments: list[Any] = [selector, patience, limiter, make]
    return sync_accept.PendingHandshakes(*arguments), selector, limiter


def test_thread_waits_for_the_request(pairs: Pairs, clock: Clock) -> None:
    pending_handshakes, selector, limiter = in_thread(7.0)
    ours, theirs = pairs()
    assert pending_handshakes.add(ours, PEER) is None
    [pending] = limiter.entered
    assert (pending.sock, pending.key, selector.watched) == (ours, 1, {ours: pending})
    assert not pending_handshakes.readable(pending)  # nothing has come
    limiter.progressed.clear()
    theirs.send(WHOLE[:5])
    assert not pending_handshakes.readable(pending)
    assert limiter.progressed == [pending.key]
    theirs.send(WHOLE[5:])
    assert pending_handshakes.readable(pending)
    assert (selector.watched, pending_handshakes.timeout(), pending_handshakes.release()) == ({}, None, None)
    assert not pending_handshakes.readable(pending)  # seen at the same time


@pytest.mark.parametrize("data", [WHOLE, b"\0\r\n", b""])
def test_thread_has_nothing_to_wait_for(pairs: Pairs, clock: Clock, data: bytes) -> None:
    pending_handshakes, selector, limiter = in_thread(7.0)
    ours, theirs = pairs()
    if data:
        theirs.send(data)
    else:
        theirs.close()
    pending = pending_handshakes.add(ours, PEER)
    assert (pending.address, pending.key, pending.deadline) == (PEER, None, 107)
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
    limiter.drops[0]()
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
