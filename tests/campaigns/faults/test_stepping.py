"""Cancellation of every awaitable, at every point where it may be suspended.

Afterwards nothing is left, no message is lost or doubled, and the connection is usable, or closed where documented.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import wirespeed
from support import asyncio_tools
from support.asyncio_tools import Setting
from support.certificates import Certificates
from support.frames import Close
from support.scripted import ScriptedServer, Wire
from support.servers import WebSocketsServer
from wirespeed.compat.websockets.asyncio import client as drop_in_client

from .stepping import Cancel, connecting, points, still_open

pytestmark = pytest.mark.wirespeed_only("it looks at what is ours")


# Connecting


@points(1)
async def test_connect(cancel: Cancel, setting: Setting, server: WebSocketsServer) -> None:
    outcome = await cancel(lambda: connecting(setting, server.uri))
    if not outcome.cancelled:
        await still_open(outcome.result)
        await outcome.result.close()


@points(1)
async def test_connect_with_tls(
    cancel: Cancel, setting: Setting, secure_server: WebSocketsServer, certificates: Certificates
) -> None:
    tls = wirespeed.TLS(ca=certificates.ca_file)
    outcome = await cancel(lambda: connecting(setting, secure_server.uri, ssl=tls))
    if not outcome.cancelled:
        await still_open(outcome.result)
        await outcome.result.close()


@points(1)
async def test_drop_in_connect(cancel: Cancel, server: WebSocketsServer) -> None:
    outcome = await cancel(lambda: drop_in_client.connect(server.uri, proxy=None, ping_interval=None))
    if not outcome.cancelled:
        await still_open(outcome.result)
        await outcome.result.close()


@points(2)
async def test_context_of_a_connection(cancel: Cancel, setting: Setting, server: WebSocketsServer) -> None:
    """Cancelled anywhere, the connection is closed when the block is left."""
    entered: list[Any] = []

    async def use() -> None:
        async with connecting(setting, server.uri) as ws:
            entered.append(ws)
            await still_open(ws)

    await cancel(use)
    for ws in entered:
        assert ws.state in (wirespeed.State.CLOSING, wirespeed.State.CLOSED)
        await ws.wait_closed()


@points(4)
async def test_reconnecting(cancel: Cancel, setting: Setting, server: WebSocketsServer) -> None:
    """Two rounds of the iterator: one is refused and retried; the connection of the last is closed."""

    async def use() -> str:
        connect = connecting(setting, f"{server.uri}/close?code=1012", reconnect_delays=lambda: iter([0.001] * 9))
        rounds = 0
        async for ws in connect:
            with contextlib.suppress(wirespeed.ConnectionClosed):
                await ws.recv()
            rounds += 1
            if rounds == 2:
                await ws.close()
                break
        return "done"

    before = asyncio.all_tasks()
    outcome = await cancel(use)
    assert outcome.cancelled or outcome.result == "done"
    # Connections that the iterator left open are closed in the background.
    await asyncio_tools.soon(lambda: asyncio.all_tasks() <= before)


# Receiving: the next call receives messages that were not returned


RECEIVING: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "recv": lambda ws: ws.recv(),
    "recv_many": lambda ws: ws.recv_many(1),
    "anext": lambda ws: ws.__aiter__().__anext__(),
}


@points(1)
@pytest.mark.parametrize("call", RECEIVING)
async def test_receiving(cancel: Cancel, setting: Setting, server: WebSocketsServer, call: str) -> None:
    async with connecting(setting, server.uri) as ws:
        await ws.send("1")
        outcome = await cancel(lambda: RECEIVING[call](ws))
        if outcome.cancelled:
            assert await ws.recv() == "1"
        else:
            assert outcome.result in ("1", ["1"])
        await still_open(ws)


@points(1)
async def test_receiving_in_pieces(cancel: Cancel, setting: Setting, server: WebSocketsServer) -> None:
    """The remaining fragments of a message are dropped; the next message is the next one."""
    async with connecting(setting, f"{server.uri}/fragments?n=5&size=100") as ws:
        await ws.send("go")

        async def take() -> str:
            return "".join([piece async for piece in ws.recv_streaming(decode=True)])

        outcome = await cancel(take)
        whole = "".join(letter * 100 for letter in "abcde")
        if not outcome.cancelled:
            assert outcome.result == whole
        await ws.send("go")
        got = await ws.recv()
        # Before the first fragment was taken, the message is still available.
        if got != whole or outcome.cancelled:
            assert got == whole


@points(1)
async def test_pong(cancel: Cancel, setting: Setting, server: WebSocketsServer) -> None:
    async def ping() -> float:
        return float(await (await ws.ping()))

    async with connecting(setting, server.uri) as ws:
        outcome = await cancel(ping)
        assert outcome.cancelled or outcome.result > 0
        await still_open(ws)


# Sending, while the peer does not read


@pytest.fixture
def reader(scripted: Callable[..., ScriptedServer]) -> ScriptedServer:
    """Reads nothing for a moment, and then everything, for each connection; the frames are the results."""

    def script(wire: Wire) -> Any:
        wire.accept()
        # Until the client signals it separately: the test sets it when the call is suspended.
        server.release.wait(0.05)
        return wire.read_until_close()

    server: ScriptedServer = scripted(script, receive_buffer=4096)
    return server


BIG = [bytes([65 + number]) * 3_000_000 for number in range(2)]


def check_delivery(server: ScriptedServer, accepted: list[bytes], given: list[bytes], *, whole: bool = True) -> None:
    """Checks that accepted messages have arrived once and in order, and cancelled ones whole or not at all."""
    frames, end = server.results[-1]
    arrived = [frame.payload for frame in frames if frame.opcode in (1, 2)]
    assert all(message in given for message in arrived)
    assert [message for message in given if message in arrived] == arrived
    assert [message for message in accepted if message not in arrived] == []
    if whole:
        assert end == Close(1000)


async def finished(server: ScriptedServer, count: int) -> None:
    await asyncio_tools.soon(lambda: len(server.results) >= count or server.error, timeout=20)


SENDING: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "send": lambda ws: ws.send(BIG[0]),
    "send_many": lambda ws: ws.send_many(BIG),
}


@points(1)
@pytest.mark.parametrize("call", SENDING)
async def test_sending(cancel: Cancel, setting: Setting, reader: ScriptedServer, call: str) -> None:
    runs = len(reader.results) + 1
    given = BIG[: 1 if call == "send" else 2]
    async with connecting(setting, reader.uri, compression=None) as ws:
        outcome = await cancel(lambda: SENDING[call](ws))
        await ws.send(b"last")
    await finished(reader, runs)
    accepted = [b"last"] if outcome.cancelled else [*given, b"last"]
    check_delivery(reader, accepted, [*given, b"last"])


@points(1)
async def test_flush(cancel: Cancel, setting: Setting, reader: ScriptedServer) -> None:
    runs = len(reader.results) + 1
    async with connecting(setting, reader.uri, compression=None, write_limit=2**24) as ws:
        ws.send_nowait(BIG[0])
        await cancel(ws.flush)
        await ws.send(b"last")
    await finished(reader, runs)
    check_delivery(reader, [BIG[0], b"last"], [BIG[0], b"last"])


@points(1)
async def test_sending_in_pieces(cancel: Cancel, setting: Setting, reader: ScriptedServer) -> None:
    """A partly sent message can be neither completed nor taken back: the connection fails with a clear reason."""
    runs = len(reader.results) + 1

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x" * 2_000_000
        await asyncio.sleep(0)
        yield b"y" * 2_000_000

    failed = False
    ws = await connecting(setting, reader.uri, compression=None, close_timeout=5)
    outcome = await cancel(lambda: ws.send(pieces()))
    try:
        await ws.send(b"last")
    except wirespeed.ConnectionClosedError:
        failed = True
    await ws.close()
    await finished(reader, runs)
    frames, _ = reader.results[-1]
    ends = [frame for frame in frames if frame.fin and frame.opcode < 8]
    if not outcome.cancelled:
        assert not failed
    if failed:
        assert not ends
    else:
        assert ends[-1].payload == b"last"


# The end


@points(1)
async def test_close(cancel: Cancel, setting: Setting, server: WebSocketsServer) -> None:
    ws = await connecting(setting, server.uri)
    await cancel(ws.close)
    await ws.close()
    assert ws.close_code == 1000


@points(1)
async def test_wait_closed(cancel: Cancel, setting: Setting, server: WebSocketsServer) -> None:
    ws = await connecting(setting, f"{server.uri}/close?code=1000")
    await cancel(ws.wait_closed)
    await ws.wait_closed()
    assert ws.close_code == 1000


# Streams


async def _stream(setting: Setting, uri: str, **options: Any) -> Any:
    return await wirespeed.open_stream(uri, io_backend=setting.io_backend, proxy=None, ping_interval=None, **options)


READING: dict[str, Callable[[Any], Awaitable[bytes]]] = {
    "read": lambda reader: reader.read(4),
    "readexactly": lambda reader: reader.readexactly(4),
    "readline": lambda reader: reader.readline(),
    "readuntil": lambda reader: reader.readuntil(b"\n"),
}


@points(1)
@pytest.mark.parametrize("call", READING)
async def test_reading_a_stream(cancel: Cancel, setting: Setting, server: WebSocketsServer, call: str) -> None:
    source, writer = await _stream(setting, server.uri)
    for piece in (b"1", b"23", b"\n"):
        writer.write(piece)
        await writer.drain()
    outcome = await cancel(lambda: READING[call](source))
    got = b"" if outcome.cancelled else outcome.result
    assert got + await source.readexactly(4 - len(got)) == b"123\n"
    writer.close()
    await writer.wait_closed()


@points(1)
async def test_opening_a_stream(cancel: Cancel, setting: Setting, server: WebSocketsServer) -> None:
    outcome = await cancel(lambda: _stream(setting, server.uri))
    if not outcome.cancelled:
        outcome.result[1].close()
        await outcome.result[1].wait_closed()


@points(1)
@pytest.mark.parametrize("call", ["drain", "wait_closed"])
async def test_writing_a_stream(cancel: Cancel, setting: Setting, reader: ScriptedServer, call: str) -> None:
    runs = len(reader.results) + 1
    data = b"".join(BIG)
    _, writer = await _stream(setting, reader.uri)
    writer.write(data)
    if call == "drain":
        await cancel(writer.drain)
    writer.close()
    if call == "wait_closed":
        await cancel(writer.wait_closed)
    await writer.wait_closed()
    await finished(reader, runs)
    frames, end = reader.results[-1]
    assert b"".join(frame.payload for frame in frames if frame.opcode < 8) == data
    assert end == Close(1000)
