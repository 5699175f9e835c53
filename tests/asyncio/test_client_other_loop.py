"""Calls on another event loop than the connection's, in the same thread: each raises an error that names both loops.

A message that such a call queued could leave only when the connection's own loop runs again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from support.asyncio_tools import Setting, new_loop
from support.connecting import Connect
from support.frames import Close, close
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import IS_WIRESPEED, exceptions

pytestmark = pytest.mark.wirespeed_only("it looks at what is ours")

if IS_WIRESPEED:
    from wirespeed import broadcast


# Longer than any wait here, shorter than the time limit of a test.
PATIENCE = 5.0


async def fragments() -> AsyncIterator[str]:
    yield "a"


async def several_sends(ws: Any) -> None:
    """The first message of an iteration is written immediately, later ones are queued."""
    for _ in range(3):
        await ws.send("x")


async def at_once(call: Callable[[], Any]) -> None:
    call()


CALLS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "send": lambda ws: ws.send("x"),
    "sends": several_sends,
    "large": lambda ws: ws.send("x" * 300_000),
    "fragments": lambda ws: ws.send(iter(["a", "b"])),
    "async_fragments": lambda ws: ws.send(fragments()),
    "send_many": lambda ws: ws.send_many(["x", "y"]),
    "flush": lambda ws: ws.flush(),
    "recv": lambda ws: ws.recv(),
    "recv_many": lambda ws: ws.recv_many(),
    "anext": lambda ws: ws.__anext__(),
    "ping": lambda ws: ws.ping(),
    "pong": lambda ws: ws.pong(),
    "close": lambda ws: ws.close(),
    "send_nowait": lambda ws: at_once(lambda: ws.send_nowait("x")),
    "recv_nowait": lambda ws: at_once(ws.recv_nowait),
    "broadcast": lambda ws: at_once(lambda: broadcast([ws], "x")),
}


class Loops:
    """The loop that has opened a connection, and another one."""

    def __init__(self, kind: str) -> None:
        self.own, self.other = new_loop(kind), new_loop(kind)

    def run(self, awaitable: Awaitable[Any], loop: asyncio.AbstractEventLoop | None = None) -> Any:
        return (loop or self.own).run_until_complete(asyncio.wait_for(awaitable, PATIENCE))


@pytest.fixture
def loops(setting: Setting) -> Iterator[Loops]:
    loops = Loops(setting.loop)
    yield loops
    for loop in (loops.own, loops.other):
        loop.close()


@pytest.fixture
def ws(loops: Loops, server: WebSocketsServer, connect: Connect) -> Iterator[Any]:
    async def opened() -> Any:
        return await connect(server.uri, ping_interval=None)

    ws = loops.run(opened())
    yield ws
    if not loops.own.is_closed():
        loops.run(ws.close())


async def echoes(ws: Any, text: str) -> None:
    await ws.send(text)
    assert await ws.recv() == text


@pytest.mark.parametrize("before", ["", "echo", "send"])
@pytest.mark.parametrize("call", CALLS)
def test_call_is_refused(loops: Loops, ws: Any, call: str, before: str) -> None:
    """The text names both loops, and the connection is unchanged."""

    async def prepare() -> None:
        if before == "echo":
            await echoes(ws, "before")
        elif before == "send":
            await asyncio.sleep(0)
            await ws.send("before")

    async def main() -> None:
        text = f"on.* {re.escape(repr(loops.other))}.* belongs to {re.escape(repr(loops.own))}, which does not run"
        with pytest.raises(RuntimeError, match=text):
            await CALLS[call](ws)

    loops.run(prepare())
    loops.run(main(), loops.other)

    async def after() -> None:
        if before == "send":
            assert await ws.recv() == "before"
        await echoes(ws, "after")

    loops.run(after())


def test_queued_message_is_not_lost(loops: Loops, ws: Any) -> None:
    async def receive_one_of_two() -> None:
        await ws.send_many(["1", "2"])
        assert await ws.recv() == "1"

    async def refused() -> None:
        with pytest.raises(RuntimeError, match="belongs to"):
            await ws.recv()

    loops.run(receive_one_of_two())
    loops.run(refused(), loops.other)
    assert loops.run(ws.recv()) == "2"


def test_abort_from_another_loop(loops: Loops, scripted: Scripted, connect: Connect) -> None:
    """A connection can be aborted from any loop. The socket of a transport is closed by its loop."""

    def accept(wire: Wire) -> bool:
        wire.accept()
        return wire.read_to_end() == b""

    server = scripted(accept)

    async def opened() -> Any:
        return await connect(server.uri, ping_interval=None)

    ws = loops.run(opened())
    loops.run(at_once(ws.abort), loops.other)
    assert ws.state.name == "CLOSED"
    loops.run(asyncio.sleep(0))
    assert server.result is True


def test_closed_connection_is_closed_everywhere(loops: Loops, scripted: Scripted, connect: Connect) -> None:
    def accept(wire: Wire) -> Close | None:
        wire.accept()
        received = wire.read_until_close()[1]
        wire.send(close(1000))
        return received

    server = scripted(accept)

    async def closed() -> Any:
        ws = await connect(server.uri, ping_interval=None)
        await ws.close()
        return ws

    ws = loops.run(closed())

    async def after() -> None:
        await ws.close()
        with pytest.raises(exceptions.ConnectionClosedOK):
            await ws.send("x")
        with pytest.raises(exceptions.ConnectionClosedOK):
            await ws.recv()

    loops.run(after(), loops.other)
    assert server.result == Close(1000)


@pytest.mark.parametrize("call", ["send", "flush", "recv", "close"])
def test_loop_that_is_closed(loops: Loops, ws: Any, call: str, setting: Setting) -> None:
    """``asyncio.run`` once for the connection, and once more for its use."""
    if setting.io_backend == "transport":
        pytest.skip("asyncio warns of a transport whose loop is closed")

    async def main() -> None:
        with pytest.raises(RuntimeError, match="closed=True"):
            await CALLS[call](ws)

    loops.own.close()
    loops.run(main(), loops.other)
    ws.abort()
