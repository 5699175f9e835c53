"""Broadcast to connections whose peers do not read."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import sys
import types
import weakref
from typing import Any

import pytest

from support.asyncio_tools import Setting, soon
from support.checks import within
from support.frames import Close
from support.serving import LOGGER, Raw, idle, logged, serve, small_sends, unnamed
from support.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("broadcast is ours")

if IS_WIRESPEED:
    from wirespeed import Listener, State, broadcast
    from wirespeed.asyncio._broadcasting import report


BLOCK = bytes(60_000)
ROUNDS = 300


@pytest.fixture(autouse=True)
def lines(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Collects log records without their times."""
    from wirespeed.asyncio import _broadcasting as broadcasting

    now = [1000.0]
    monkeypatch.setattr(broadcasting, "_limiter", broadcasting._LineLimiter())
    monkeypatch.setattr(broadcasting, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    return now


async def pair(server: Any) -> tuple[Raw, Any, Raw, Any]:
    """A client that does not read, and one that does; each with its connection."""
    deaf = await Raw.open(server, "/deaf", receive_buffer=4096)
    quick = await Raw.open(server, "/quick")
    by_path = {ws.request.path: ws for ws in server.connections}
    return deaf, by_path["/deaf"], quick, by_path["/quick"]


async def flood(connections: list[Any], quick: Raw, **options: Any) -> int:
    """Broadcasts until a message is skipped; returns the number of messages that every client has got."""
    for number in range(ROUNDS):
        if broadcast(connections, BLOCK, **options) < len(connections):
            assert (await quick.frame()).payload == BLOCK
            return number
        assert (await quick.frame()).payload == BLOCK
    raise AssertionError("it takes everything")


@pytest.mark.no_leaks
async def test_skip(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    """The slow client misses messages and continues when it reads again; its queue does not grow."""
    async with serve(setting, idle, compression=None) as server:
        deaf, slow, quick, fast = await pair(server)
        taken = await flood([slow, fast], quick)
        kept = slow.stats()
        for _ in range(50):
            assert broadcast([slow, fast], BLOCK) == 1
            assert (await quick.frame()).payload == BLOCK
        assert slow.stats() == kept
        assert slow.state.name == "OPEN"
        for _ in range(taken):
            assert (await deaf.frame()).payload == BLOCK
        await soon(lambda: broadcast([slow], b"again") == 1)
        assert (await deaf.frame()).payload == b"again"
        deaf.close()
        quick.close()
    # One record at the start of each stall, and one with the number. The stall may have taken some attempts to end.
    first, *rest = logged(caplog)
    assert unnamed([first]) == ["skipped broadcast: its peer does not read"]
    assert "to /deaf)" in first
    [again] = unnamed(rest)
    match = re.fullmatch(r"broadcasts arrive again: (\d+) were skipped", again)
    assert match is not None
    assert int(match[1]) >= 51


async def test_endless_stall_is_logged_twice(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    """A client that no longer reads causes two log records, for any number of skipped messages."""
    async with serve(setting, idle, compression=None) as server:
        deaf, slow, quick, fast = await pair(server)
        await flood([slow, fast], quick)
        for _ in range(20):
            # An iterator can be gone through once.
            broadcast(iter([slow, fast]), BLOCK)
            assert (await quick.frame()).payload == BLOCK
        # Other broadcasts log nothing about it.
        assert broadcast([fast], b"x") == 1
        slow.abort()
        quick.close()
        deaf.close()
    assert unnamed(logged(caplog)) == [
        "skipped broadcast: its peer does not read",
        "connection closed without broadcasts: 21 were skipped",
    ]


class Missing:
    """A minimal connection for the tests of broadcast logs."""

    def __init__(self) -> None:
        self.logger = logging.getLogger(LOGGER)
        self._label = "it"
        self._state = State.OPEN

    def _closed_future(self, *, awaited: bool) -> asyncio.Future[None] | None:
        return None


def test_another_reason_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Another reason is logged, and the number starts again."""
    connection = Missing()
    for why in ("slow", "slow", "failed", "failed", "failed"):
        report([connection], [(connection, why)], False)
    report([], [], False)
    report([connection], [], False)
    report([connection], [], False)
    assert logged(caplog) == [
        "skipped broadcast (it): its peer does not read",
        "skipped broadcast (it): failed to write message",
        "broadcasts arrive again (it): 3 were skipped",
    ]


def test_many_slow_clients_do_not_fill_the_log(caplog: pytest.LogCaptureFixture, lines: list[float]) -> None:
    """Many clients that read nothing and reconnect do not fill the log."""
    connection = Missing()
    for _ in range(100):
        connection = Missing()
        report([connection], [(connection, "slow")], False)
    texts = logged(caplog)
    text = "skipped broadcast (it): its peer does not read"
    assert texts == [text] * 19 + [f"{text}; more like it in the next 10 s are left out"]
    lines[0] += 10
    report([connection], [], False)
    last = Missing()
    report([last], [(last, "failed")], False)
    assert logged(caplog)[20:] == ["skipped broadcast (it): failed to write message; 80 lines like it were left out"]


async def test_stalled_connection_is_freed(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    """The state of a stall keeps no connection alive, and is freed with it."""
    from wirespeed.asyncio import _broadcasting as broadcasting

    async with serve(setting, idle, compression=None) as server:
        deaf, slow, quick, fast = await pair(server)
        await flood([slow, fast], quick)
        assert len(broadcasting._stalls) == 1
        known = weakref.ref(slow)
        slow.abort()
        await slow.wait_closed()
        del slow
        quick.close()
        deaf.close()
        await soon(lambda: gc.collect() >= 0 and known() is None)
        assert not broadcasting._stalls
        assert not broadcasting._known
    assert unnamed(logged(caplog)) == ["skipped broadcast: its peer does not read"]


class Watched(Missing):
    """A connection that counts the waiters for its end."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[asyncio.Future[None]] = []

    def _closed_future(self, *, awaited: bool) -> asyncio.Future[None]:
        self.ends.append(asyncio.get_running_loop().create_future())
        return self.ends[-1]


def stalled(connection: Watched, times: int) -> None:
    """Makes the connection miss two broadcasts and get the third, repeatedly."""
    for _ in range(times):
        for missed in ([(connection, "slow")], [(connection, "slow")], []):
            report([connection], missed, False)


@pytest.mark.parametrize("is_slow", [True, False])
async def test_many_stalls_of_one(setting: Setting, caplog: pytest.LogCaptureFixture, is_slow: bool) -> None:
    """Repeated stalls do not accumulate state; the end of the connection is logged if it happens during one."""
    from wirespeed.asyncio import _broadcasting as broadcasting

    connection = Watched()
    stalled(connection, 5)
    if is_slow:
        for _ in range(3):
            report([connection], [(connection, "failed")], False)
    [end] = connection.ends
    assert len(broadcasting._known) == 1
    assert len(broadcasting._stalls) == is_slow
    end.set_result(None)
    await soon(lambda: not broadcasting._known)
    assert not broadcasting._stalls
    texts = ["skipped broadcast (it): its peer does not read", "broadcasts arrive again (it): 2 were skipped"] * 5
    if is_slow:
        texts += [
            "skipped broadcast (it): failed to write message",
            "connection closed without broadcasts (it): 3 were skipped",
        ]
    assert logged(caplog) == texts


async def test_freed_after_a_stall(setting: Setting) -> None:
    """The state for the next stall keeps no connection alive."""
    from wirespeed.asyncio import _broadcasting as broadcasting

    connection = Watched()
    stalled(connection, 1)
    known = weakref.ref(connection)
    del connection
    gc.collect()
    assert known() is None
    assert not broadcasting._known


@pytest.mark.no_leaks
async def test_drop(setting: Setting) -> None:
    async with serve(setting, idle, compression=None) as server:
        deaf, slow, quick, fast = await pair(server)
        await flood([slow, fast], quick, slow="drop")
        assert slow.state.name == "CLOSED"
        assert slow.close_code == 1006
        await soon(lambda: server.connections == {fast})
        assert broadcast([slow, fast], b"x", slow="drop", raise_exceptions=True) == 1
        assert (await quick.frame()).payload == b"x"
        # Without the rest of the queue, which would take time.
        with within(3):
            assert (await deaf.until_close())[1] is None
        deaf.close()
        quick.close()


@pytest.mark.parametrize("kind", [set, list])
async def test_drop_while_listeners_change_the_connections(setting: Setting, kind: type[Any]) -> None:
    """A listener that is notified of a lost connection may change the list of the broadcast: other connections get the
    message.
    """
    clients = kind()
    add, discard = (clients.add, clients.discard) if isinstance(clients, set) else (clients.append, clients.remove)

    class Member(Listener):
        def on_open(self, ws: Any) -> None:
            add(ws)

        def on_close(self, ws: Any, code: int, reason: str) -> None:
            discard(ws)

    async with serve(setting, None, listener=Member, compression=None) as server:
        deaf = await Raw.open(server, "/deaf", receive_buffer=4096)
        quick = [await Raw.open(server, "/quick") for _ in range(5)]
        for _ in range(ROUNDS):
            sent = broadcast(clients, BLOCK, slow="drop")
            for raw in quick:
                assert (await raw.frame()).payload == BLOCK
            if sent == 5:
                break
        assert len(clients) == 5
        for raw in (deaf, *quick):
            raw.close()


@pytest.mark.no_leaks
async def test_close(setting: Setting) -> None:
    """The close frame follows the messages sent before."""
    async with serve(setting, idle, compression=None, close_timeout=5) as server:
        deaf, slow, quick, fast = await pair(server)
        taken = await flood([slow, fast], quick, slow="close")
        assert slow.state.name == "CLOSING"
        assert broadcast([slow, fast], b"x", slow="close", raise_exceptions=True) == 1
        frames, end = await deaf.until_close()
        assert [frame.payload for frame in frames] == [BLOCK] * taken
        assert end is not None
        assert end.code == 1013
        deaf.close()
        quick.close()


@pytest.mark.no_leaks
async def test_close_of_a_client_that_never_reads(setting: Setting) -> None:
    """The connection ends within ``close_timeout``, although no task waits for it."""
    async with serve(setting, idle, compression=None, close_timeout=0.2) as server:
        deaf, slow, quick, fast = await pair(server)
        await flood([slow, fast], quick, slow="close")
        with within(3):
            await slow.wait_closed()
        assert slow.state.name == "CLOSED"
        deaf.close()
        quick.close()


@pytest.mark.no_leaks
async def test_raise(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    """One exception for each connection is raised, after all connections have been served."""
    async with serve(setting, idle, compression=None) as server:
        deaf, slow, quick, fast = await pair(server)
        await flood([slow, fast], quick)
        caplog.clear()
        with pytest.raises(Exception) as raised:
            broadcast([slow, fast, slow], b"x", raise_exceptions=True)
        errors = getattr(raised.value, "exceptions", [raised.value])
        if sys.version_info >= (3, 11):
            assert type(raised.value).__name__ == "ExceptionGroup"
            assert len(errors) == 2
        assert {type(error) for error in errors} == {BlockingIOError}
        assert "does not read" in str(errors[0])
        assert (await quick.frame()).payload == b"x"
        deaf.close()
        quick.close()
    assert logged(caplog) == []


@pytest.mark.no_leaks
async def test_inside_a_large_message(setting: Setting) -> None:
    """While ``send`` waits in the middle of a message, no other frame can come between its bytes."""
    large = bytes(range(256)) * 2000

    async def handler(ws: Any) -> None:
        if ws.request.path == "/deaf":
            await ws.send(large)
        await ws.wait_closed()

    async with serve(setting, handler, None, None, sock=small_sends(), compression=None) as server:
        deaf, slow, quick, fast = await pair(server)
        await asyncio.sleep(0.02)
        assert broadcast([slow, fast], b"x") == 1
        assert (await deaf.frame()).payload == large
        await soon(lambda: broadcast([slow, fast], b"y") == 2)
        assert (await deaf.frame()).payload == b"y"
        assert (await quick.frame()).payload == b"x"
        deaf.close()
        quick.close()


@pytest.mark.parametrize("limit", [0, 2**17])
@pytest.mark.no_leaks
async def test_write_limit(setting: Setting, limit: int) -> None:
    """``write_limit`` decides which connection is slow."""
    async with serve(setting, idle, compression=None, write_limit=limit) as server:
        with await Raw.open(server, receive_buffer=4096) as raw:
            [ws] = server.connections
            taken = 0
            while broadcast([ws], bytes(1000)):
                taken += 1
                if taken % 50 == 0:
                    await asyncio.sleep(0)
            kept = ws.stats()["send_queue_bytes"]
            # A transport reports that it is full once it has got the data of one turn.
            assert limit <= kept <= limit + 50 * 1004
            for _ in range(taken):
                assert len((await raw.frame()).payload) == 1000


@pytest.mark.no_leaks
async def test_sending_after_skipping(setting: Setting) -> None:
    """``send`` waits as usual, ``close`` is clean."""
    async with serve(setting, idle, compression=None) as server:
        deaf, slow, quick, fast = await pair(server)
        taken = await flood([slow, fast], quick)
        sending = asyncio.ensure_future(slow.send(b"mine"))
        await asyncio.sleep(0.01)
        assert not sending.done()
        for _ in range(taken):
            await deaf.frame()
        await sending
        assert (await deaf.frame()).payload == b"mine"
        closing = asyncio.ensure_future(slow.close())
        assert (await deaf.until_close()) == ([], Close(1000))
        deaf.close()
        quick.close()
        await closing
