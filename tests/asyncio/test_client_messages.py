"""Sending and receiving whole messages."""

from __future__ import annotations

import array
import asyncio
from typing import Any

import pytest

from support.checks import as_close
from support.connecting import Connect
from support.frames import BINARY, TEXT, Close, Frame, binary, close, frame, text
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import exceptions

# Around each change of the length encoding, and of the buffers behind it.
SIZES = [0, 1, 2, 7, 8, 63, 64, 65, 124, 125, 126, 127, 128, 4096, 65_535, 65_536, 65_537, 262_143, 262_145, 1 << 20]


def pattern(size: int) -> bytes:
    """Bytes that reveal a shift, a swap or a masking key that is applied at the wrong offset."""
    return bytes((index * 7 + index // 251) % 256 for index in range(min(size, 65_536))).ljust(size, b"\x5a")


def collect(wire: Wire) -> tuple[list[Frame], Close | None]:
    wire.accept()
    return wire.read_until_close()


# Echo


@pytest.mark.parametrize("compression", ["deflate", None])
async def test_binary(server: WebSocketsServer, connect: Connect, compression: str | None) -> None:
    async with connect(server.uri, compression=compression) as ws:
        for size in SIZES:
            message = pattern(size)
            await ws.send(message)
            received = await ws.recv()
            assert type(received) is bytes
            assert received == message


@pytest.mark.parametrize("compression", ["deflate", None])
@pytest.mark.parametrize("alphabet", ["a", "é€", "x\U0001f600", "\x00\x7f"], ids=["ascii", "bmp", "astral", "control"])
async def test_text(server: WebSocketsServer, connect: Connect, alphabet: str, compression: str | None) -> None:
    async with connect(server.uri, compression=compression) as ws:
        for size in SIZES[:-2]:
            message = (alphabet * size)[:size]
            await ws.send(message)
            received = await ws.recv()
            assert type(received) is str
            assert received == message


async def test_big_message_both_ways(server: WebSocketsServer, connect: Connect) -> None:
    message = pattern(65_536) * 256  # 16 MiB
    async with connect(server.uri, max_size=None, compression=None) as ws:
        await ws.send(message)
        assert await ws.recv() == message


async def test_many_messages_keep_their_order(server: WebSocketsServer, connect: Connect) -> None:
    messages = [f"{number:x}" * (number % 50) for number in range(2000)]
    async with connect(server.uri) as ws:
        for start in range(0, len(messages), 100):
            for message in messages[start : start + 100]:
                await ws.send(message)
            assert [await ws.recv() for _ in range(100)] == messages[start : start + 100]


@pytest.mark.parametrize(
    "message",
    [b"spam", bytearray(b"spam"), memoryview(b"spam"), memoryview(b"_spam_")[1:5]],
    ids=["bytes", "bytearray", "memoryview", "slice"],
)
async def test_bytes_like_is_binary(scripted: Scripted, connect: Connect, message: Any) -> None:
    server = scripted(collect)
    async with connect(server.uri, compression=None) as ws:
        await ws.send(message)
    assert await server.wait_result() == ([Frame(BINARY, b"spam")], Close(1000))


@pytest.mark.wirespeed_only("websockets takes bytes, bytearray and memoryview only")
async def test_any_contiguous_buffer_is_binary(scripted: Scripted, connect: Connect) -> None:
    server = scripted(collect)
    async with connect(server.uri, compression=None) as ws:
        await ws.send(array.array("H", [0x6161, 0x6262]))
        await ws.send(memoryview(array.array("I", [0x63636363, 0x64646464])))
    assert await server.wait_result() == ([Frame(BINARY, b"aabb"), Frame(BINARY, b"ccccdddd")], Close(1000))


async def test_sending_does_not_change_the_buffer(server: WebSocketsServer, connect: Connect) -> None:
    """Masking must not happen in the caller's memory."""
    message = bytearray(pattern(100_000))
    async with connect(server.uri, compression=None) as ws:
        await ws.send(message)
        assert await ws.recv() == message
    assert message == pattern(100_000)
    message.append(0)  # and the buffer is released


@pytest.mark.parametrize("size", [10, 1000, 300_000])
async def test_buffer_may_change_once_send_has_returned(server: WebSocketsServer, connect: Connect, size: int) -> None:
    """Messages in the queue are copies."""
    async with connect(server.uri, compression=None) as ws:
        buffer = bytearray(size)
        for number in range(10):
            buffer[:] = bytes([number]) * size
            await ws.send(buffer)
        buffer[:] = b"\xff" * size
        for number in range(10):
            assert await ws.recv() == bytes([number]) * size


async def test_str_is_text(scripted: Scripted, connect: Connect) -> None:
    server = scripted(collect)
    async with connect(server.uri, compression=None) as ws:
        await ws.send("späm")
    assert await server.wait_result() == ([Frame(TEXT, "späm".encode())], Close(1000))


@pytest.mark.parametrize(
    ("message", "as_text", "opcode"),
    [
        (b"spam", True, TEXT),
        (b"spam", False, BINARY),
        ("spam", True, TEXT),
        ("spam", False, BINARY),
        (bytearray(b"spam"), True, TEXT),
    ],
)
async def test_text_argument(scripted: Scripted, connect: Connect, message: Any, as_text: bool, opcode: int) -> None:
    server = scripted(collect)
    async with connect(server.uri, compression=None) as ws:
        await ws.send(message, text=as_text)
    assert await server.wait_result() == ([Frame(opcode, b"spam")], Close(1000))


async def test_frames_are_masked_with_fresh_keys(scripted: Scripted, connect: Connect) -> None:
    """RFC 6455 section 5.3: each frame has a masking key that cannot be predicted from another."""

    def script(wire: Wire) -> list[bytes]:
        wire.accept()
        return [wire.read_exactly(2 + 4 + 8) for _ in range(50)]

    server = scripted(script)
    ws = await connect(server.uri, compression=None)
    for _ in range(50):
        await ws.send(bytes(8))
    await ws.close()
    keys = {data[2:6] for data in await server.wait_result()}
    assert len(keys) == 50
    # The masked payload of zeros is the key, twice.
    assert all(data[6:] == data[2:6] * 2 for data in server.results[0])


# Types


@pytest.mark.parametrize("message", [None, 1, 1.5, ..., {"a": 1}, {}], ids=repr)
async def test_send_wrong_type(server: WebSocketsServer, connect: Connect, message: Any) -> None:
    async with connect(server.uri) as ws:
        with pytest.raises(TypeError):
            await ws.send(message)
        await ws.send("still open")
        assert await ws.recv() == "still open"


@pytest.mark.wirespeed_only("websockets fails the connection")
async def test_send_lone_surrogate(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        with pytest.raises(UnicodeEncodeError):
            await ws.send("\ud800")
        await ws.send("still open")
        assert await ws.recv() == "still open"


@pytest.mark.wirespeed_only("websockets does not check")
async def test_send_bytes_as_text_must_be_utf8(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        with pytest.raises(UnicodeDecodeError):
            await ws.send(b"\xff", text=True)
        await ws.send("still open")
        assert await ws.recv() == "still open"


async def test_decode(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("é") + binary("é".encode()) + text("é") + binary("é".encode()) + text("") + binary(b""))
        wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri) as ws:
        assert await ws.recv(decode=False) == "é".encode()
        assert await ws.recv(decode=True) == "é"
        assert await ws.recv(decode=None) == "é"
        assert await ws.recv() == "é".encode()
        assert await ws.recv(False) == b""
        assert await ws.recv(True) == ""


async def test_decode_binary_that_is_not_utf8(scripted: Scripted, connect: Connect) -> None:
    """The caller asked for text and the peer sent none: 1007, as for a text frame, or an error of the caller."""

    def script(wire: Wire) -> Any:
        wire.accept(then=binary(b"\xff"))
        return wire.read_until_close()

    server = scripted(script)
    ws = await connect(server.uri)
    with pytest.raises((exceptions.ConnectionClosedError, UnicodeDecodeError)):
        await ws.recv(decode=True)
    await ws.close()
    assert (await server.wait_result())[1].code in (1007, 1000)


# Iteration


@pytest.mark.parametrize("code", [1000, 1001])
async def test_iteration_ends_on_a_clean_close(scripted: Scripted, connect: Connect, code: int) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=text("a") + text("b") + close(code))
        return wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri) as ws:
        assert [message async for message in ws] == ["a", "b"]
        assert [message async for message in ws] == []
    assert await server.wait_result() == ([], Close(code))


@pytest.mark.parametrize("code", [1002, 1011, 3000, 4999])
async def test_iteration_raises_on_another_close(scripted: Scripted, connect: Connect, code: int) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=text("a") + close(code, "why"))
        return wire.read_until_close()

    server = scripted(script)
    received = []
    async with connect(server.uri) as ws:
        with pytest.raises(exceptions.ConnectionClosedError) as raised:
            async for message in ws:
                received.append(message)
    assert received == ["a"]
    assert as_close(raised.value.rcvd) == Close(code, "why")
    assert (await server.wait_result())[1] == Close(code, "why")


async def test_iteration_can_be_resumed(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=b"".join(map(text, "abcdef")) + close())
        wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri) as ws:
        for expected in "ab":
            async for message in ws:
                assert message == expected
                break
        assert await ws.recv() == "c"
        assert [message async for message in ws] == ["d", "e", "f"]


async def test_anext(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri + "/count?n=2") as ws:
        messages = ws.__aiter__()
        assert await messages.__anext__() == "0"
        assert await asyncio.wait_for(messages.__anext__(), 5) == "1"
        with pytest.raises(StopAsyncIteration):
            await messages.__anext__()


# What recv and send return


async def test_recv_is_a_coroutine_to_asyncio(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        for make in (asyncio.ensure_future, asyncio.get_running_loop().create_task, asyncio.gather):
            await ws.send("x")
            result = await make(ws.recv())
            assert result in ("x", ["x"])
        receive = ws.recv()
        assert asyncio.iscoroutine(receive)
        await ws.send("y")
        assert await receive == "y"
        with pytest.raises(RuntimeError):
            await receive


async def test_send_is_a_coroutine_to_asyncio(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        await asyncio.gather(ws.send("a"), asyncio.ensure_future(ws.send("b")))
        await asyncio.wait_for(ws.send("c"), 5)
        assert sorted([await ws.recv() for _ in range(3)]) == ["a", "b", "c"]
        assert asyncio.iscoroutine(sending := ws.send("d"))
        assert await sending is None
        assert await ws.recv() == "d"


async def test_recv_closed_without_await(server: WebSocketsServer, connect: Connect) -> None:
    """An unawaited recv has taken no message."""
    async with connect(server.uri) as ws:
        ws.recv().close()
        await ws.send("x")
        assert await ws.recv() == "x"


async def test_recv_that_is_thrown_into(server: WebSocketsServer, connect: Connect) -> None:
    """A task or a debugger may throw before the first step."""
    async with connect(server.uri) as ws:
        with pytest.raises(ZeroDivisionError):
            ws.recv().throw(ZeroDivisionError())
        await ws.send("x")
        assert await ws.recv() == "x"


# Faults


async def test_messages_before_a_protocol_error_are_delivered(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=text("a") + binary(b"b") + frame(3))
        return wire.read_until_close()

    server = scripted(script)
    ws = await connect(server.uri)
    received: list[Any] = []
    with pytest.raises(exceptions.ConnectionClosedError):
        while True:
            received.append(await ws.recv())
    assert received == ["a", b"b"]
    await ws.close()
    assert (await server.wait_result())[1].code == 1002
