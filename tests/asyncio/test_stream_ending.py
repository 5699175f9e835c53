"""The end of a stream of bytes, its resources, and its options."""

from __future__ import annotations

import asyncio
import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from support.asyncio_tools import Run, Setting, cancelled, spin
from support.checks import as_close, within
from support.frames import BINARY, Close, Frame, binary, close
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from wirespeed import ConnectionClosedError, ProtocolError, StreamClosedError, open_stream

pytestmark = pytest.mark.wirespeed_only("websockets has no streams")

Open = Callable[..., Any]


@pytest.fixture
def stream(setting: Setting) -> Open:
    return functools.partial(open_stream, io_backend=setting.io_backend)


def collect(wire: Wire) -> tuple[list[Frame], Close | None]:
    """Accepts, reads until the close frame, answers it."""
    wire.accept()
    frames, received = wire.read_until_close()
    wire.send(close(1000))
    return frames, received


def sending(*pieces: bytes) -> Callable[[Wire], Any]:
    """A script that sends bytes, then reads until the client closes."""

    def script(wire: Wire) -> Any:
        wire.accept(then=b"".join(pieces))
        return wire.read_until_close()

    return script


# The end


@pytest.mark.parametrize("code", [1000, 1001, None])
async def test_clean_end(scripted: Scripted, stream: Open, code: int | None) -> None:
    server = scripted(sending(binary(b"last"), close(code)))
    reader, writer = await stream(server.uri)
    with pytest.raises(asyncio.IncompleteReadError) as raised:
        await reader.readexactly(10)
    assert (raised.value.partial, raised.value.expected) == (b"last", 10)
    assert reader.at_eof()
    assert writer.is_closing()
    writer.write(b"too late")
    with pytest.raises(StreamClosedError):
        await writer.drain()
    writer.close()
    with pytest.raises(StreamClosedError):
        await writer.wait_closed()


async def test_clean_end_with_nothing_to_send_is_no_error(scripted: Scripted, stream: Open) -> None:
    server = scripted(sending(binary(b"last"), close(1000)))
    reader, writer = await stream(server.uri)
    assert await reader.read() == b"last"
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    ("end", "code"),
    [(close(1011, "broken"), 1011), (close(4000), 4000), (b"", 1006), (b"\xff\xff", 1006)],
    ids=["1011", "4000", "lost", "protocol"],
)
async def test_end_with_an_error(scripted: Scripted, stream: Open, end: bytes, code: int) -> None:
    """The error is raised after the received data, repeatedly, and is a ConnectionResetError too."""

    def script(wire: Wire) -> None:
        wire.accept(then=binary(b"one\ntwo") + end)
        if end:
            wire.read_until_close()

    server = scripted(script)
    reader, writer = await stream(server.uri)
    assert await reader.readline() == b"one\n"
    for call in (reader.readline, functools.partial(reader.readexactly, 4), reader.read):
        with pytest.raises(StreamClosedError) as raised:
            await call()
        assert isinstance(raised.value, ConnectionClosedError)
        assert isinstance(raised.value, ConnectionResetError)
        assert raised.value.code == code
    if end == b"\xff\xff":
        assert isinstance(raised.value.__cause__, ProtocolError)
    assert not reader.at_eof()
    assert await reader.read(10) == b"two"
    with pytest.raises(StreamClosedError):
        await reader.read(10)
    assert not reader.at_eof()
    writer.write(b"x")
    with pytest.raises(ConnectionResetError):
        await writer.drain()
    writer.close()
    with pytest.raises(ConnectionResetError):
        await writer.wait_closed()


async def test_error_says_what_happened(scripted: Scripted, stream: Open) -> None:
    server = scripted(sending(close(1011, "database gone")))
    reader, _ = await stream(server.uri)
    with pytest.raises(StreamClosedError) as raised:
        await reader.read()
    assert as_close(raised.value.rcvd) == Close(1011, "database gone")
    assert "received 1011 (internal error) database gone" in str(raised.value)
    assert raised.value.errno == 104


async def test_close_sends_what_was_written(scripted: Scripted, stream: Open) -> None:
    server = scripted(collect)
    _, writer = await stream(server.uri)
    assert not writer.is_closing()
    writer.write(b"last words")
    writer.close()
    assert writer.is_closing()
    writer.write(b"dropped, as with asyncio")
    writer.close()
    await writer.wait_closed()
    await writer.wait_closed()
    assert await server.wait_result() == ([Frame(BINARY, b"last words")], Close(1000))


async def test_closing_does_not_need_the_writer(scripted: Scripted, stream: Open) -> None:
    server = scripted(collect)
    reader, writer = await stream(server.uri)
    connection = writer.connection
    writer.write(b"bye")
    writer.close()
    del reader, writer
    gc.collect()
    await connection.wait_closed()
    await spin()
    assert await server.wait_result() == ([Frame(BINARY, b"bye")], Close(1000))


async def test_write_eof(scripted: Scripted, stream: Open) -> None:
    """The server may send data after it has read our close frame and before its own."""

    def script(wire: Wire) -> Any:
        wire.accept()
        received = wire.read_until_close()
        wire.send(binary(b"last ") + binary(b"words") + close(1000))
        return received

    server = scripted(script)
    reader, writer = await stream(server.uri)
    assert writer.can_write_eof() is False
    writer.write(b"the question")
    writer.write_eof()
    writer.write_eof()
    with pytest.raises(RuntimeError, match="after write_eof"):
        writer.write(b"more")
    assert await reader.read() == b"last words"
    await writer.wait_closed()
    assert await server.wait_result() == ([Frame(BINARY, b"the question")], Close(1000))


async def test_wait_closed_by_the_server(scripted: Scripted, stream: Open) -> None:
    server = scripted(sending(close(1000)))
    _, writer = await stream(server.uri)
    await writer.wait_closed()
    assert writer.is_closing()


# Resources


async def test_no_tasks(server: WebSocketsServer, stream: Open) -> None:
    before = len(asyncio.all_tasks())
    streams = [await stream(server.uri) for _ in range(5)]
    for reader, writer in streams:
        writer.write(b"ping")
        await writer.drain()
        assert await reader.readexactly(4) == b"ping"
    assert len(asyncio.all_tasks()) == before
    for _, writer in streams:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for _, writer in streams))


@pytest.mark.no_leaks
async def test_forgotten_stream_warns(server: WebSocketsServer, stream: Open) -> None:
    reader, writer = await stream(server.uri)
    writer.write(b"x")
    await reader.read(1)
    await spin()
    gc.disable()
    try:
        with pytest.warns(ResourceWarning, match="unclosed connection"):
            del reader, writer
    finally:
        gc.enable()


async def test_failure_keeps_no_frames(scripted: Scripted, stream: Open) -> None:
    """Stored exceptions must not keep objects of the frames that they passed."""
    server = scripted(sending(close(1011)))

    class Big:
        pass

    async def reads(reader: Any) -> weakref.ref[Big]:
        big = Big()
        try:
            await reader.read()
        except StreamClosedError:
            return weakref.ref(big)
        raise AssertionError("it did not raise")

    reader, writer = await stream(server.uri)
    gc.collect()
    gc.disable()
    try:
        assert (await reads(reader))() is None
    finally:
        gc.enable()
    writer.close()
    await writer.wait_closed()


async def test_extra_info(server: WebSocketsServer, stream: Open) -> None:
    reader, writer = await stream(server.uri)
    assert writer.get_extra_info("peername") == ("127.0.0.1", server.port)
    assert writer.get_extra_info("sockname")[0] == "127.0.0.1"
    assert writer.get_extra_info("subprotocol") is None
    assert writer.get_extra_info("connection") is writer.connection
    assert writer.get_extra_info("sslcontext", "none") == "none"
    assert "OPEN" in repr(reader)
    assert "OPEN" in repr(writer)
    writer.close()
    await writer.wait_closed()


# Options


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"limit": 0}, ValueError),
        ({"limit": None}, TypeError),
        ({"message_size": 0}, ValueError),
        ({"message_size": 1.5}, TypeError),
        ({"listener": ...}, TypeError),
        ({"zero_copy": True}, TypeError),
    ],
    ids=repr,
)
def test_wrong_options(run: Run, stream: Open, options: dict[str, Any], expected: type[Exception]) -> None:
    with pytest.raises(expected, match=next(iter(options))):
        run(lambda: stream("ws://127.0.0.1:1", **options))


@pytest.mark.parametrize(("options", "negotiated"), [({}, b""), ({"compression": "deflate"}, b"permessage-deflate")])
async def test_compression(server: WebSocketsServer, stream: Open, options: dict[str, Any], negotiated: bytes) -> None:
    """Off by default: most streams are encrypted or compressed already."""
    reader, writer = await stream(f"{server.uri}/negotiated", **options)
    await spin()
    if negotiated:
        assert (await reader.read(100)).startswith(negotiated)
    else:
        assert "Sec-WebSocket-Extensions" not in writer.connection.response.headers
    writer.close()
    await writer.wait_closed()


async def test_tls(secure_server: WebSocketsServer, certificates: Any, stream: Open) -> None:
    import wirespeed

    reader, writer = await stream(secure_server.uri, ssl=wirespeed.TLS(ca=certificates.ca_file))
    writer.write(b"x" * 300_000)
    await writer.drain()
    assert await reader.readexactly(300_000) == b"x" * 300_000
    writer.close()
    await writer.wait_closed()


async def test_reading_is_bounded_in_time(scripted: Scripted, stream: Open) -> None:
    """A server that sends without end does not starve the rest of the loop."""

    def script(wire: Wire) -> None:
        wire.accept()
        block = binary(b"x" * 1000) * 50
        while not server.stopping:
            wire.send(block)

    server = scripted(script)
    reader, writer = await stream(server.uri)

    async def read_all() -> None:
        while True:
            await reader.readexactly(5000)

    task = asyncio.ensure_future(read_all())
    with within(4):
        for _ in range(20):
            await asyncio.sleep(0.005)
    assert await cancelled(task)
    server.stopping = True
    writer.connection.abort()
