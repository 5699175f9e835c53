"""Pings and pongs, by the application and by the connection itself."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from support.asyncio_tools import cancelled, soon, spin
from support.checks import as_close, within
from support.connecting import Connect
from support.frames import BINARY, CLOSE, PING, PONG, TEXT, Close, Frame, close, frame, ping, pong, text
from support.load_scaling import load_scaled
from support.pace import ENOUGH, check_pace, pace
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.slow import read_slowly, send_slowly
from support.subject import IS_WIRESPEED, exceptions


def answering(wire: Wire) -> list[Frame]:
    """Accepts, answers pings and close, returns the other frames and the pings."""
    wire.accept()
    frames: list[Frame] = []
    while True:
        received = wire.read_frame()
        if received.opcode == CLOSE:
            wire.send(frame(CLOSE, received.payload))
            return frames
        frames.append(received)
        if received.opcode == PING:
            wire.send(pong(received.payload))


def silent(wire: Wire) -> tuple[list[Frame], Close | None]:
    """Accepts and never answers."""
    wire.accept()
    return wire.read_until_close()


def measured(latency: float) -> bool:
    """Returns whether a round trip was measured. websockets uses the clock of the loop: in uvloop it has
    milliseconds.
    """
    return latency > 0 or not IS_WIRESPEED


async def round_trip(ws: Any, *data: Any) -> float:
    """Pings and waits for the pong; returns the latency."""
    latency: float = await (await ws.ping(*data))
    return latency


# Pings of the server


async def test_pings_are_answered_during_recv(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri + "/ping?data=spam") as ws:
        assert await ws.recv() == "pong spam"


async def test_pings_are_answered_at_once_and_in_order(scripted: Scripted, connect: Connect) -> None:
    """recv does not return for a ping."""

    def script(wire: Wire) -> list[Frame]:
        wire.accept()
        frames = []
        for number in range(5):
            wire.send(ping(b"%d" % number))
            frames.append(wire.read_frame())
        wire.send(text("done"))
        wire.read_until_close()
        return frames

    server = scripted(script)
    async with connect(server.uri) as ws:
        assert await ws.recv() == "done"
    assert await server.wait_result() == [Frame(PONG, b"%d" % number) for number in range(5)]


async def test_pings_are_answered_while_a_message_arrives(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> Frame:
        wire.accept(then=text("a", fin=False) + ping(b"inside"))
        answer = wire.read_frame()
        wire.send(frame(0, b"b"))
        wire.read_until_close()
        return answer

    server = scripted(script)
    async with connect(server.uri) as ws:
        assert await ws.recv() == "ab"
    assert await server.wait_result() == Frame(PONG, b"inside")


# Pings of the application


async def test_ping(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        assert ws.latency == 0
        latency = await round_trip(ws)
        assert isinstance(latency, float)
        assert measured(latency)
        assert latency < load_scaled(5)
        assert ws.latency == pytest.approx(latency, abs=0.05)


@pytest.mark.parametrize(
    ("data", "payload"),
    [("é", "é".encode()), (b"\x00\xff", b"\x00\xff"), (bytearray(b"x"), b"x"), ("", b""), (b"x" * 125, b"x" * 125)],
)
async def test_ping_data(scripted: Scripted, connect: Connect, data: Any, payload: bytes) -> None:
    server = scripted(answering)
    async with connect(server.uri) as ws:
        await round_trip(ws, data)
    assert await server.wait_result() == [Frame(PING, payload)]


async def test_ping_data_by_default_differs(scripted: Scripted, connect: Connect) -> None:
    server = scripted(answering)
    async with connect(server.uri) as ws:
        for _ in range(5):
            await round_trip(ws)
    assert len({frame.payload for frame in await server.wait_result()}) == 5


async def test_wait_for_a_pong_times_out(scripted: Scripted, connect: Connect) -> None:
    """The object that ``ping`` returned can be awaited again."""
    server = scripted(silent)
    async with connect(server.uri, close_timeout=0.1) as ws:
        waiter = await ws.ping()
        for _ in range(2):
            with within(0.6, at_least=0.1), pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(waiter), 0.1)
        assert ws.latency == 0
    with pytest.raises(exceptions.ConnectionClosedError):
        await waiter


async def test_pong_can_be_waited_for_many_times(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        waiter = await ws.ping()
        first = await waiter
        assert await waiter == first
        assert list(await asyncio.gather(waiter, waiter)) == [first, first]
        done, _ = await asyncio.wait([asyncio.ensure_future(waiter)])
        assert [future.result() for future in done] == [first]


async def test_two_tasks_wait_for_one_pong(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        mine = wire.read_frame()
        server.pause()
        wire.send(pong(mine.payload))
        wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri) as ws:
        waiter = await ws.ping()

        async def wait() -> Any:
            return await waiter

        tasks = [asyncio.ensure_future(wait()) for _ in range(3)]
        await spin()
        server.release.set()
        assert len(set(await asyncio.gather(*tasks))) == 1


async def test_pong_without_a_waiter(scripted: Scripted, connect: Connect) -> None:
    """Neither the pong nor a lost connection is reported as never retrieved."""

    def script(wire: Wire) -> None:
        wire.accept()
        first = wire.read_frame()
        wire.read_frame()
        wire.send(pong(first.payload))
        wire.reset()

    server = scripted(script)
    ws = await connect(server.uri)
    await ws.ping()
    await ws.ping()
    with pytest.raises(exceptions.ConnectionClosedError):
        await ws.recv()
    await ws.close()


@pytest.mark.parametrize("data", [1, None, {}, ["a"]], ids=repr)
async def test_pong_wrong_type(server: WebSocketsServer, connect: Connect, data: Any) -> None:
    async with connect(server.uri) as ws:
        with pytest.raises(TypeError):
            await ws.pong(data)
        if data is not None:
            with pytest.raises(TypeError):
                await ws.ping(data)


@pytest.mark.parametrize("data", [b"x" * 126, "é" * 63], ids=["bytes", "str"])
async def test_ping_too_long(server: WebSocketsServer, connect: Connect, data: Any) -> None:
    async with connect(server.uri) as ws:
        for call in (ws.ping, ws.pong):
            with pytest.raises((exceptions.ProtocolError, ValueError)):
                await call(data)
        await ws.send("still open")
        assert await ws.recv() == "still open"


async def test_ping_twice_with_the_same_data(scripted: Scripted, connect: Connect) -> None:
    server = scripted(silent)
    async with connect(server.uri, close_timeout=0.1) as ws:
        await ws.ping("x")
        with pytest.raises(exceptions.ConcurrencyError):
            await ws.ping("x")


async def test_ping_again_after_the_pong(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        await round_trip(ws, "x")
        await round_trip(ws, "x")


async def test_pong_acknowledges_earlier_pings(scripted: Scripted, connect: Connect) -> None:
    """RFC 6455 section 5.5.3: a peer may answer only the most recent ping."""

    def script(wire: Wire) -> None:
        wire.accept()
        last = [wire.read_frame() for _ in range(3)][-1]
        wire.send(pong(last.payload))
        wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri) as ws:
        waiters = [await ws.ping() for _ in range(3)]
        await asyncio.gather(*waiters)


async def test_unsolicited_pong_acknowledges_nothing(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        wire.read_frame()
        wire.send(pong(b"something else") + text("after the pong"))
        wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri, close_timeout=0.1) as ws:
        waiter = asyncio.ensure_future(await ws.ping("mine"))
        assert await ws.recv() == "after the pong"
        await spin()
        assert not waiter.done()
        await cancelled(waiter)


async def test_waiting_for_a_pong_loses_no_message(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        mine = wire.read_frame()
        wire.send(text("a") + text("b") + pong(mine.payload) + text("c"))
        wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri) as ws:
        await round_trip(ws)
        assert [await ws.recv() for _ in range(3)] == ["a", "b", "c"]


async def test_cancelling_the_wait_for_a_pong(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        waiter = await ws.ping("x")
        task = asyncio.ensure_future(asyncio.wait_for(waiter, 5))
        await spin(1)
        await cancelled(task)
        await round_trip(ws)
        await ws.send("still open")
        assert await ws.recv() == "still open"


@pytest.mark.parametrize(("data", "payload"), [(None, b""), ("é", "é".encode()), (b"x", b"x")])
async def test_pong(scripted: Scripted, connect: Connect, data: Any, payload: bytes) -> None:
    server = scripted(silent)
    async with connect(server.uri, close_timeout=0.1) as ws:
        await (ws.pong() if data is None else ws.pong(data))
    assert (await server.wait_result())[0] == [Frame(PONG, payload)]


# Keepalive


@pytest.mark.parametrize("receiving", [True, False], ids=["receiving", "idle"])
async def test_keepalive_pings(scripted: Scripted, connect: Connect, receiving: bool) -> None:
    """Keepalive pings are sent during any activity of the application."""
    seen = threading.Event()
    server = scripted(pace(0.1, seen))
    async with connect(server.uri, ping_interval=0.1, ping_timeout=5) as ws:
        if receiving:
            assert await ws.recv() == ENOUGH
        else:
            await soon(seen.is_set, 18)
        assert measured(ws.latency)
    check_pace(await server.wait_result(), 0.1)


@pytest.mark.parametrize("call", ["recv", "iteration", "wait_closed"])
async def test_keepalive_timeout(scripted: Scripted, connect: Connect, call: str) -> None:
    server = scripted(silent)
    ws = await connect(server.uri, ping_interval=0.1, ping_timeout=0.2, close_timeout=0.5)
    with within(3, at_least=0.25):
        if call == "wait_closed":
            await ws.wait_closed()
        with pytest.raises(exceptions.ConnectionClosedError) as raised:
            await (ws.__aiter__().__anext__() if call == "iteration" else ws.recv())
    assert raised.value.rcvd is None
    assert as_close(raised.value.sent) == Close(1011, "keepalive ping timeout")
    assert ws.close_code == 1006
    await ws.close()
    frames, on_the_wire = await server.wait_result()
    assert [frame.opcode for frame in frames] == [PING]
    assert on_the_wire == Close(1011, "keepalive ping timeout")


@pytest.mark.wirespeed_only("websockets counts pongs only")
async def test_a_large_message_that_arrives_slowly_keeps_the_connection_alive(
    scripted: Scripted, connect: Connect
) -> None:
    """No pong fits inside a frame."""
    server = scripted(send_slowly(100_000, 2.5))
    async with connect(server.uri, ping_interval=0.4, ping_timeout=0.6, close_timeout=0.2) as ws:
        assert len(await ws.recv()) == 100_000


@pytest.mark.wirespeed_only("websockets counts pongs only")
async def test_peer_that_stops_inside_a_large_message_times_out(scripted: Scripted, connect: Connect) -> None:
    server = scripted(send_slowly(100_000, 2.5, stop_at=0.5))
    ws = await connect(server.uri, ping_interval=0.4, ping_timeout=0.6, close_timeout=0.2)
    with within(5, at_least=1.2), pytest.raises(exceptions.ConnectionClosedError) as raised:
        await ws.recv()
    assert as_close(raised.value.sent) == Close(1011, "keepalive ping timeout")


@pytest.mark.wirespeed_only("websockets counts pongs only")
async def test_a_peer_that_reads_slowly_is_alive(scripted: Scripted, connect: Connect) -> None:
    """The ping waits behind messages in the kernel's buffer."""
    server = scripted(read_slowly(20_000, 0.05, 3), receive_buffer=16_384)
    async with connect(server.uri, ping_interval=0.4, ping_timeout=0.6) as ws:
        for _ in range(20):
            await ws.send(bytes(200_000))
        assert ws.state.name == "OPEN"
    frames, closed = await server.wait_result()
    assert sum(len(frame.payload) for frame in frames if frame.opcode == BINARY) == 20 * 200_000
    assert closed == Close(1000)


@pytest.mark.wirespeed_only("websockets counts pongs only")
async def test_a_peer_that_only_sends_is_alive(scripted: Scripted, connect: Connect) -> None:
    """The peer's pongs may wait behind its own messages."""

    def script(wire: Wire) -> Any:
        wire.accept()
        for _ in range(75):
            wire.send(text("data"))
            time.sleep(0.02)
        wire.send(text("last"))
        return wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri, ping_interval=0.1, ping_timeout=0.4, close_timeout=0.2) as ws:
        while await ws.recv() != "last":
            pass
    assert (await server.wait_result())[1] == Close(1000)


async def test_late_pong_in_time(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> Any:
        wire.accept()
        first = wire.read_frame()
        server.release.wait(0.3)
        wire.send(pong(first.payload))
        wire.read_frame()
        wire.send(text("alive"))
        return wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri, ping_interval=0.1, ping_timeout=5) as ws:
        assert await ws.recv() == "alive"
        assert ws.latency >= 0.29


async def test_no_ping_timeout(scripted: Scripted, connect: Connect) -> None:
    """Pings are sent, and a peer that never answers is not closed."""
    pinged = threading.Event()

    def script(wire: Wire) -> Any:
        wire.accept()
        assert [wire.read_frame().opcode for _ in range(3)] == [PING] * 3
        pinged.set()
        return wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri, ping_interval=0.05, ping_timeout=None, close_timeout=0.1) as ws:
        await soon(pinged.is_set)
        await ws.send("still open")
    frames, on_the_wire = await server.wait_result()
    assert next(frame for frame in frames if frame.opcode == TEXT).payload == b"still open"
    assert on_the_wire == Close(1000)


async def test_no_keepalive(scripted: Scripted, connect: Connect) -> None:
    server = scripted(silent)
    async with connect(server.uri, ping_interval=None, ping_timeout=0.05, close_timeout=0.1):
        await asyncio.sleep(0.2)
    assert await server.wait_result() == ([], Close(1000))


@pytest.mark.wirespeed_only("websockets counts the time in which the loop did not turn")
async def test_blocked_loop_does_not_fail_keepalive(scripted: Scripted, connect: Connect) -> None:
    """The pong is waiting in the socket when the loop turns again."""

    def script(wire: Wire) -> Any:
        wire.accept()
        first = wire.read_frame()
        wire.send(pong(first.payload))
        server.reached.set()
        return wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri, ping_interval=0.1, ping_timeout=0.2, close_timeout=0.2) as ws:
        await asyncio.sleep(0.105)
        await spin()
        server.wait_reached()
        time.sleep(0.5)  # an application that computes
        await asyncio.sleep(0.02)
        assert ws.state.name == "OPEN"
        assert measured(ws.latency)


async def test_close_waits_for_no_pong(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> Any:
        wire.accept()
        received = wire.read_until_close()
        wire.send(close(1000))
        return received

    server = scripted(script)
    ws = await connect(server.uri, ping_interval=0.05, ping_timeout=20)
    await asyncio.sleep(0.15)
    with within(2):
        await ws.close()
    assert ws.close_code == 1000


async def test_many_connections_are_kept_alive(server: WebSocketsServer, connect: Connect) -> None:
    """Each connection has its own interval, and one that ends does not stop the others."""
    connections = [
        await connect(server.uri, ping_interval=0.05 * (1 + number % 4), ping_timeout=5) for number in range(20)
    ]
    for ws in connections[::2]:
        await ws.close()
    await soon(lambda: all(measured(ws.latency) for ws in connections[1::2]))
    await asyncio.gather(*(ws.close() for ws in connections))
