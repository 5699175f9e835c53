"""A WebSocket as a stream of bytes: writing and reading."""

from __future__ import annotations

import asyncio
import functools
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest

from support import asyncio_tools
from support.asyncio_tools import Setting, cancelled, spin
from support.frames import BINARY, CONT, PONG, Close, Frame, binary, close, frame, ping, text
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from wirespeed import ConnectionClosedOK, StreamReader, open_stream

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


# Writing


@pytest.mark.no_leaks
async def test_echo(server: WebSocketsServer, stream: Open) -> None:
    reader, writer = await stream(server.uri)
    writer.write(b"hello\n")
    await writer.drain()
    assert await reader.readline() == b"hello\n"
    writer.close()
    await writer.wait_closed()
    assert await reader.read() == b""
    assert reader.at_eof()


async def test_writes_of_an_iteration_are_one_message(scripted: Scripted, stream: Open) -> None:
    server = scripted(collect)
    _, writer = await stream(server.uri)
    writer.write(b"a")
    writer.write(bytearray(b"bc"))
    writer.writelines([memoryview(b"_d_")[1:2], b"", b"e"])
    await spin()
    writer.write(b"f")
    await writer.drain()
    writer.write(b"g")
    writer.write(b"")
    writer.close()
    await writer.wait_closed()
    assert await server.wait_result() == (
        [Frame(BINARY, b"abcde"), Frame(BINARY, b"f"), Frame(BINARY, b"g")],
        Close(1000),
    )


async def test_nothing_written_is_no_message(scripted: Scripted, stream: Open) -> None:
    server = scripted(collect)
    _, writer = await stream(server.uri)
    writer.write(b"")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert await server.wait_result() == ([], Close(1000))


async def test_bytes_may_be_changed_after_the_call(scripted: Scripted, stream: Open) -> None:
    server = scripted(collect)
    _, writer = await stream(server.uri)
    data = bytearray(b"before")
    writer.write(data)
    data[:] = b"after!!"
    writer.close()
    await writer.wait_closed()
    assert (await server.wait_result())[0] == [Frame(BINARY, b"before")]


async def test_size_of_messages(scripted: Scripted, stream: Open) -> None:
    server = scripted(collect)
    sent = bytes(range(256)) * 10
    _, writer = await stream(server.uri, message_size=1000)
    writer.write(sent[:999])
    writer.write(sent[999:])
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    payloads = [each.payload for each in (await server.wait_result())[0]]
    assert b"".join(payloads) == sent
    assert [len(payload) for payload in payloads] == [1000, 1000, 560]


async def test_reading_sends_what_was_written(server: WebSocketsServer, stream: Open) -> None:
    reader, writer = await stream(server.uri)
    for number in range(100):
        writer.write(b"%d\n" % number)
        assert await reader.readline() == b"%d\n" % number
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("data", ["text", 3, None, ["a"]], ids=repr)
async def test_only_bytes_are_written(server: WebSocketsServer, stream: Open, data: Any) -> None:
    reader, writer = await stream(server.uri)
    with pytest.raises(TypeError, match="bytes-like"):
        writer.write(data)
    writer.write(b"ok")
    assert await reader.read(9) == b"ok"
    writer.close()
    await writer.wait_closed()


# Reading


async def test_message_boundaries_have_no_meaning(scripted: Scripted, stream: Open) -> None:
    """Neither do message types, fragments, empty messages and pings between them."""
    server = scripted(
        sending(
            binary(b"ab"),
            text("cé"),
            binary(b""),
            frame(BINARY, b"d", fin=False),
            ping(b"?"),
            frame(CONT, b"e"),
            text(""),
            binary(b"f" * 10),
            close(1000),
        )
    )
    reader, _ = await stream(server.uri)
    assert await reader.readexactly(3) == b"abc"
    assert await reader.readexactly(0) == b""
    assert await reader.read(0) == b""
    assert await reader.readexactly(2) == "é".encode()
    assert await reader.readexactly(3) == b"def"
    assert await reader.read(4) == b"ffff"
    assert not reader.at_eof()
    assert await reader.read() == b"fffff"
    assert reader.at_eof()
    assert await reader.read() == await reader.read(1) == b""
    assert (await server.wait_result())[0] == [Frame(PONG, b"?")]


async def test_lines(scripted: Scripted, stream: Open) -> None:
    server = scripted(sending(binary(b"one\ntw"), text("o\n\n"), binary(b"last"), close(1001)))
    reader, _ = await stream(server.uri)
    assert [line async for line in reader] == [b"one\n", b"two\n", b"\n", b"last"]
    assert await reader.readline() == b""


async def outcome(call: Any) -> Any:
    """Returns the result or exception of a call in a form that compares."""
    try:
        return await call
    except (EOFError, asyncio.LimitOverrunError, ValueError) as exc:
        return type(exc), exc.args, vars(exc)


def operations(rng: random.Random) -> list[Callable[[Any], Any]]:
    separators: list[Any] = [b"\n", b"\r\n", b";", b"aa", b"abab"]
    if sys.version_info >= (3, 13):
        separators += [(b"\n", b"b"), (b"ab", b"abab", b"ba"), (b";",)]
    calls: list[Callable[[Any], Any]] = [lambda reader: reader.readline()]
    calls += [lambda reader, n=n: reader.readexactly(n) for n in range(10)]  # type: ignore[misc]
    calls += [lambda reader, each=each: reader.readuntil(each) for each in separators * 2]  # type: ignore[misc]
    return rng.choices(calls, k=30)


class Pieces:
    """The receiving side of a connection, as a list of messages that arrive one at a time."""

    connection: Any

    def __init__(self, pieces: list[bytes]) -> None:
        self.connection = self
        self.left = list(pieces)

    async def recv_many(self, *, decode: bool) -> list[bytes]:
        if not self.left:
            raise ConnectionClosedOK(None, None)
        return [self.left.pop(0)]

    def push(self) -> None:
        pass


@pytest.mark.parametrize("seed", range(50))
def test_same_as_asyncio(seed: int) -> None:
    """Results, exceptions with their attributes, and remaining data are compared with the standard library's reader.

    ``read`` returns the bytes that have arrived, which depends on time; it ends the comparison.
    """
    rng = random.Random(seed)
    pieces = [bytes(rng.choices(b"ab\r\n;", k=rng.randint(0, 12))) for _ in range(20)]
    calls = operations(rng)
    limit = rng.randint(1, 8)

    async def main() -> None:
        oracle = asyncio.StreamReader(limit=limit)
        reader = StreamReader(Pieces(pieces), limit)  # type: ignore[arg-type]
        left = list(pieces)
        for call in calls:
            expected = asyncio.ensure_future(outcome(call(oracle)))
            await spin(2)
            # One piece at a time, as late as it is needed.
            while not expected.done():
                if left:
                    oracle.feed_data(left.pop(0))
                else:
                    oracle.feed_eof()
                await spin(2)
            assert await outcome(call(reader)) == expected.result()
        for piece in left:
            oracle.feed_data(piece)
        oracle.feed_eof()
        assert await reader.read() == await oracle.read()

    asyncio_tools.run(main)


async def test_limit_does_not_lose_bytes(scripted: Scripted, stream: Open) -> None:
    server = scripted(sending(*[binary(b"12345")] * 4, binary(b"\nnext\n")))
    reader, writer = await stream(server.uri, limit=10)
    with pytest.raises(asyncio.LimitOverrunError) as raised:
        await reader.readuntil()
    assert raised.value.consumed > 10
    assert await reader.readexactly(20) == b"12345" * 4
    assert await reader.readline() == b"\n"
    assert await reader.readline() == b"next\n"
    writer.close()
    await writer.wait_closed()


async def test_several_separators(scripted: Scripted, stream: Open) -> None:
    server = scripted(sending(binary(b"a;b\r"), binary(b"\nc;d")))
    reader, writer = await stream(server.uri)
    for expected in (b"a;", b"b\r\n", b"c;"):
        assert await reader.readuntil((b"\r\n", b";")) == expected
    for bad in ((), b"", (b"a", b"")):
        with pytest.raises(ValueError, match="Separator"):
            await reader.readuntil(bad)
    writer.close()
    await writer.wait_closed()


async def test_negative_sizes(scripted: Scripted, stream: Open) -> None:
    server = scripted(sending(binary(b"all "), binary(b"of it"), close(1000)))
    reader, _ = await stream(server.uri)
    with pytest.raises(ValueError, match="less than zero"):
        await reader.readexactly(-1)
    assert await reader.read(-1) == b"all of it"


async def test_large_message_in_small_reads(scripted: Scripted, stream: Open) -> None:
    content = random.Random(1).randbytes(1 << 20)
    server = scripted(sending(binary(content), close(1000)))
    reader, _ = await stream(server.uri)
    found = bytearray()
    while data := await reader.read(1000):
        found += data
    assert found == content


async def test_one_reader_at_a_time(scripted: Scripted, stream: Open) -> None:
    server = scripted(sending())
    reader, writer = await stream(server.uri)
    first = asyncio.ensure_future(reader.read(1))
    await spin()
    for call in (reader.read(1), reader.readexactly(1), reader.readline(), reader.readuntil(b"x")):
        with pytest.raises(RuntimeError, match=r"\(\) called while another coroutine is already waiting"):
            await call
    assert not reader.at_eof()
    assert await cancelled(first)
    writer.close()
    await writer.wait_closed()


async def test_cancelled_reads_lose_nothing(scripted: Scripted, stream: Open) -> None:
    pieces = [b"%d," % number for number in range(300)]

    def script(wire: Wire) -> None:
        wire.accept()
        for number, piece in enumerate(pieces):
            wire.send(binary(piece))
            if number % 7 == 0:
                server.release.wait(0.001)
        wire.send(close(1000))

    server = scripted(script)
    reader, _ = await stream(server.uri)
    found, delay = bytearray(), 0.0
    while not reader.at_eof():
        delay = (delay + 0.0003) % 0.004
        try:
            found += await asyncio.wait_for(reader.readexactly(50), delay)
        except asyncio.TimeoutError:
            continue
        except asyncio.IncompleteReadError as exc:
            found += exc.partial
    assert found == b"".join(pieces)
