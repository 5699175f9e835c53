"""Closing and aborting during other operations: in every order, from several tasks, twice, too early."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from support.asyncio_tools import cancelled, settled, soon, spin
from support.checks import as_close, open_descriptors, within
from support.connecting import Connect
from support.frames import Close, close, text
from support.load_scaling import load_scaled
from support.scripted import Disconnected, Scripted, ScriptedServer, Wire
from support.servers import WebSocketsServer
from support.subject import exceptions


@pytest.fixture
def stalled_server(scripted: Scripted) -> ScriptedServer:
    """A server that reads nothing until the test releases it."""

    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()

    server = scripted(script, receive_buffer=4096)
    return server


async def fill(ws: Any) -> None:
    """Sends until the connection is lost."""
    while True:
        await ws.send(bytes(1 << 18))


# The operations that another task waits in when the connection ends


async def fragments(ws: Any) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 18)

    await ws.send(pieces())


async def pong(ws: Any) -> None:
    await (await ws.ping())


async def streaming(ws: Any) -> None:
    async for _ in ws.recv_streaming():
        pass


WAITING: dict[str, Callable[[Any], Any]] = {
    "recv": lambda ws: ws.recv(),
    "streaming": streaming,
    "send": fill,
    "fragments": fragments,
    "pong": pong,
}
OURS = {"recv_many": lambda ws: ws.recv_many(), "flush": lambda ws: ws.flush()}


def waiting_cases(*deadlocks: str) -> list[Any]:
    """Cases as parameters; websockets cannot end some of them."""
    cases = {**WAITING, **OURS}
    ours = pytest.mark.wirespeed_only("ours, or websockets deadlocks")
    return [
        pytest.param(call, id=name, marks=[ours] if name in OURS or name in deadlocks else [])
        for name, call in cases.items()
    ]


async def begin(ws: Any, call: Callable[[Any], Any]) -> asyncio.Future[Any]:
    """Starts a call and waits until it blocks."""
    # A kernel buffer that was full may have room a moment later.
    for _ in range(20 if call is OURS["flush"] else 1):
        if call is OURS["flush"]:
            sending = asyncio.ensure_future(fill(ws))
            await settled(lambda: ws.stats()["bytes_sent"], 0.02)
            await cancelled(sending)
        task = asyncio.ensure_future(call(ws))
        await spin(10)
        if not task.done():
            return cast("asyncio.Future[Any]", task)
    raise AssertionError("it does not wait")


@pytest.mark.parametrize("call", waiting_cases("send", "fragments"))
async def test_close_wakes_waiting_tasks(
    stalled_server: ScriptedServer, connect: Connect, call: Callable[[Any], Any]
) -> None:
    """The server never answers: when ``close_timeout`` is over, both calls end."""
    ws = await connect(stalled_server.uri, compression=None, close_timeout=0.2)
    task = await begin(ws, call)
    with within(5):
        await ws.close()
        with pytest.raises(exceptions.ConnectionClosedError):
            await task
    assert ws.state.name == "CLOSED"


@pytest.mark.wirespeed_only("abort is ours")
@pytest.mark.parametrize("call", [*WAITING.values(), *OURS.values()], ids=[*WAITING, *OURS])
async def test_abort_wakes_waiting_tasks(
    stalled_server: ScriptedServer, connect: Connect, call: Callable[[Any], Any]
) -> None:
    ws = await connect(stalled_server.uri, compression=None, close_timeout=60)
    task = await begin(ws, call)
    closed = asyncio.ensure_future(ws.wait_closed())
    await spin()
    with within(3):
        ws.abort()
        assert ws.state.name == "CLOSED"
        assert not task.done(), "entered from inside another task"
        with pytest.raises(exceptions.ConnectionClosedError):
            await task
        await closed


@pytest.mark.parametrize("call", waiting_cases())
async def test_lost_connection_wakes_waiting_tasks(
    scripted: Scripted, connect: Connect, call: Callable[[Any], Any]
) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()
        wire.reset()

    server = scripted(script, receive_buffer=4096)
    ws = await connect(server.uri, compression=None)
    task = await begin(ws, call)
    server.release.set()
    with within(3), pytest.raises(exceptions.ConnectionClosedError):
        await task
    await ws.close()


async def test_close_while_another_task_receives(server: WebSocketsServer, connect: Connect) -> None:
    ws = await connect(server.uri)
    task = asyncio.ensure_future(ws.recv())
    await spin()
    await ws.close()
    with pytest.raises(exceptions.ConnectionClosedOK) as raised:
        await task
    assert as_close(raised.value.sent) == Close(1000)


async def test_close_from_many_tasks(server: WebSocketsServer, connect: Connect) -> None:
    ws = await connect(server.uri)
    waiting = [asyncio.ensure_future(ws.wait_closed()) for _ in range(3)]
    with within(5):
        await asyncio.gather(*(ws.close(1000 + number % 2) for number in range(8)), *waiting)
    assert ws.close_code == 1000
    assert ws.state.name == "CLOSED"


async def test_close_with_a_task_in_recv_that_closes_too(scripted: Scripted, connect: Connect) -> None:
    """As with two tasks that each use ``async with``."""

    def script(wire: Wire) -> Any:
        wire.accept(then=text("x"))
        received = wire.read_until_close()
        wire.send(close(1000))
        return received

    server = scripted(script)

    received: list[Any] = []

    async def receive(ws: Any) -> list[Any]:
        try:
            async for message in ws:
                received.append(message)
            return received
        finally:
            await ws.close(1011)

    async with connect(server.uri) as ws:
        task = asyncio.ensure_future(receive(ws))
        await soon(lambda: received)
    assert await task == ["x"]
    assert await server.wait_result() == ([], Close(1000))


async def test_close_in_the_middle_of_fragments(scripted: Scripted, connect: Connect) -> None:
    """The message cannot be completed: no final frame is invented, and the sender gets an exception."""

    def script(wire: Wire) -> Any:
        wire.accept()
        received = wire.read_until_close()
        if received[1] is not None:
            wire.send(close(received[1].code))
        return received

    server = scripted(script)
    more = asyncio.Event()

    async def pieces() -> AsyncIterator[str]:
        yield "one"
        await more.wait()
        yield "two"

    ws = await connect(server.uri, compression=None)
    task = asyncio.ensure_future(ws.send(pieces()))
    await spin()
    closing = asyncio.ensure_future(ws.close())
    await spin()
    more.set()
    with within(5):
        await closing
        with pytest.raises(exceptions.ConnectionClosed):
            await task
    frames, on_the_wire = await server.wait_result()
    assert [(frame.payload, frame.fin) for frame in frames] == [(b"one", False)]
    assert on_the_wire is not None


async def test_close_at_once_after_sending(scripted: Scripted, connect: Connect) -> None:
    """Sent messages leave before the close frame, without a flush and before the loop turns."""

    def script(wire: Wire) -> Any:
        wire.accept()
        received = wire.read_until_close()
        wire.send(close(1000))
        return received

    server = scripted(script)
    ws = await connect(server.uri, compression=None)
    for number in range(1000):
        await ws.send(str(number))
    await ws.close()
    frames, on_the_wire = await server.wait_result()
    assert [frame.payload for frame in frames] == [b"%d" % number for number in range(1000)]
    assert on_the_wire == Close(1000)


async def test_close_waits_for_a_slow_reader(scripted: Scripted, connect: Connect) -> None:
    """Megabytes are queued when close is called; all of them leave before the close frame."""

    def script(wire: Wire) -> Any:
        wire.accept()
        server.pause()
        received = wire.read_until_close()
        wire.send(close(1000))
        return received

    server = scripted(script, receive_buffer=4096)
    ws = await connect(server.uri, compression=None)
    sending = [asyncio.ensure_future(ws.send(bytes(1 << 20))) for _ in range(8)]
    await soon(server.reached.is_set)
    await spin()
    closing = asyncio.ensure_future(ws.close())
    await spin(10)
    assert not closing.done()
    server.release.set()
    await closing
    results = await asyncio.gather(*sending, return_exceptions=True)
    assert all(result is None or isinstance(result, exceptions.ConnectionClosed) for result in results)
    sent = results.count(None)
    frames, on_the_wire = await server.wait_result()
    assert on_the_wire == Close(1000)
    assert {len(frame.payload) for frame in frames} == {1 << 20}
    assert len(frames) >= sent


@pytest.mark.wirespeed_only("websockets deadlocks")
async def test_close_towards_a_stalled_peer_is_bounded(stalled_server: ScriptedServer, connect: Connect) -> None:
    """The close frame cannot leave, because the buffers are full and the peer does not read."""
    ws = await connect(stalled_server.uri, compression=None, close_timeout=0.3)
    task = await begin(ws, fill)
    with within(4):
        await ws.close()
        with pytest.raises(exceptions.ConnectionClosedError):
            await task


async def test_cancelled_close_continues(scripted: Scripted, connect: Connect) -> None:
    """The close frame is out: a second close waits for the same handshake, and the first code counts."""

    def script(wire: Wire) -> Any:
        wire.accept()
        received = wire.read_until_close()
        assert received[1] is not None
        server.pause()
        wire.send(close(received[1].code))
        return received

    server = scripted(script)
    ws = await connect(server.uri)
    closing = asyncio.ensure_future(ws.close(1001))
    await soon(server.reached.is_set)
    assert await cancelled(closing)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(ws.close(), 0.05)
    server.release.set()
    with within(3):
        await ws.close()
    assert ws.close_code == 1001
    assert await server.wait_result() == ([], Close(1001))


@pytest.mark.wirespeed_only("websockets forgets the deadline")
async def test_cancelled_close_keeps_its_deadline(scripted: Scripted, connect: Connect) -> None:
    """The socket is closed on time although no task waits any more."""
    server = scripted(lambda wire: (wire.accept(), wire.read_until_close(), wire.read_to_end()))
    ws = await connect(server.uri, close_timeout=0.3)
    closing = asyncio.ensure_future(ws.close())
    await spin()
    assert await cancelled(closing)
    with within(3):
        await asyncio.wait_for(ws.wait_closed(), 5)
    assert ws.state.name == "CLOSED"
    await ws.close()


@pytest.mark.wirespeed_only("abort is ours")
async def test_abort(scripted: Scripted, connect: Connect) -> None:
    server = scripted(lambda wire: (wire.accept(), wire.read_until_close())[1])
    ws = await connect(server.uri, close_timeout=60)
    number = ws.fileno()
    target = open_descriptors()[number]
    with within(3):
        ws.abort()
        assert ws.state.name == "CLOSED"
        await ws.wait_closed()
    assert target not in open_descriptors().values()
    for call in (ws.recv, lambda: ws.send("x"), ws.ping, ws.flush):
        with pytest.raises(exceptions.ConnectionClosedError):
            await call()
    assert (ws.close_code, ws.close_reason) == (1006, "")
    ws.abort()
    await ws.close()
    assert await server.wait_result() == ([], None), "no close frame"


@pytest.mark.wirespeed_only("abort is ours")
async def test_abort_while_closing(scripted: Scripted, connect: Connect) -> None:
    server = scripted(lambda wire: (wire.accept(), wire.read_until_close(), wire.read_to_end()))
    ws = await connect(server.uri, close_timeout=60)
    closing = asyncio.ensure_future(ws.close())
    await spin()
    with within(10):
        ws.abort()
        await closing
    assert ws.close_code == 1006


@pytest.mark.wirespeed_only("abort is ours")
async def test_messages_before_abort_are_delivered_after_it(scripted: Scripted, connect: Connect) -> None:
    server = scripted(lambda wire: (wire.accept(then=text("a") + text("b") + text("c")), wire.read_to_end()))
    ws = await connect(server.uri)
    assert await ws.recv() == "a"
    ws.abort()
    assert await ws.recv() == "b"
    assert await ws.recv() == "c"
    with pytest.raises(exceptions.ConnectionClosedError):
        await ws.recv()


STEPS: dict[str, Callable[[Any], Any]] = {
    "close": lambda ws: ws.close(),
    "recv": lambda ws: ws.recv(),
    "send": lambda ws: ws.send("x"),
    "ping": pong,
    "wait_closed": lambda ws: ws.wait_closed(),
}


@pytest.mark.parametrize("order", list(itertools.permutations(STEPS, 3)), ids="-".join)
@pytest.mark.no_leaks
async def test_calls_and_close_in_every_order(
    server: WebSocketsServer, connect: Connect, order: tuple[str, ...]
) -> None:
    """Three calls begin in one turn of the loop, and the connection is closed: all of them end."""
    ws = await connect(server.uri + "/sink")
    tasks = [asyncio.ensure_future(STEPS[name](ws)) for name in order]
    await spin(1)
    with within(5):
        await ws.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(result is None or isinstance(result, exceptions.ConnectionClosedOK) for result in results), results
    assert ws.close_code == 1000


class Interrupted(Exception):
    """An exception that a signal handler of the application raises."""


@pytest.mark.wirespeed_only("the transport is asked by our core")
@pytest.mark.parametrize("method", ["can_write_eof", "write_eof"])
def test_raising_signal_handler_does_not_prevent_half_close(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    from asyncio import selector_events

    from support import asyncio_subject

    def script(wire: Wire) -> float:
        wire.accept()
        assert connected.wait(10)
        wire.send(b"\xf3\x01x")  # a fault: reserved bits
        began = time.monotonic()
        with pytest.raises(Disconnected):
            while True:
                wire._receive()
        return time.monotonic() - began

    connected = threading.Event()
    server = scripted(script)
    transport = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    theirs = getattr(transport, method)
    raised: list[str] = []

    def once(self: Any) -> Any:
        if not raised and self.get_extra_info("peername") == (server.host, server.port):
            raised.append(method)
            raise Interrupted
        return theirs(self)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        ws = await asyncio_subject.connect(server.uri, io_backend="transport", close_timeout=10)
        connected.set()
        await ws.wait_closed()

    monkeypatch.setattr(transport, method, once)
    asyncio.run(main())
    assert raised == [method]
    assert server.result < load_scaled(5)
