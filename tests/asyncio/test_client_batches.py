"""Batches of messages in one call, and calls that do not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.asyncio_tools import soon, spin
from support.checks import within
from support.connecting import Connect
from support.frames import BINARY, TEXT, Close, Frame, binary, close, frame, text
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import exceptions

pytestmark = pytest.mark.wirespeed_only("ours")


def collect(wire: Wire) -> tuple[list[Frame], Close | None]:
    wire.accept()
    return wire.read_until_close()


def sending(data: bytes) -> Callable[[Wire], Any]:
    def script(wire: Wire) -> Any:
        wire.accept(then=data)
        return wire.read_until_close()

    return script


NUMBERS = b"".join(text(str(number)) for number in range(100))


# recv_many


async def test_recv_many_returns_queued_messages(scripted: Scripted, connect: Connect) -> None:
    server = scripted(sending(NUMBERS))
    async with connect(server.uri) as ws:
        received: list[Any] = []
        while len(received) < 100:
            batch = await ws.recv_many(30)
            assert type(batch) is list
            assert 1 <= len(batch) <= 30
            received += batch
        assert received == [str(number) for number in range(100)]


async def test_recv_many_waits_for_the_first(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()
        wire.send(NUMBERS)
        wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri) as ws:
        task = asyncio.ensure_future(ws.recv_many())
        await asyncio.sleep(0.05)
        assert not task.done()
        server.release.set()
        received = await task
        assert received[0] == "0"
        while len(received) < 100:
            received += await ws.recv_many()
        assert received == [str(number) for number in range(100)]


async def test_recv_many_decode(scripted: Scripted, connect: Connect) -> None:
    server = scripted(sending(text("é") + binary(b"b")))
    async with connect(server.uri) as ws:
        received: list[Any] = []
        while len(received) < 2:
            received += await ws.recv_many(decode=False)
        assert received == ["é".encode(), b"b"]


async def test_recv_many_delivers_messages_before_protocol_error(scripted: Scripted, connect: Connect) -> None:
    server = scripted(sending(text("a") + binary(b"b") + frame(3)))
    ws = await connect(server.uri)
    received: list[Any] = []
    with pytest.raises(exceptions.ConnectionClosedError):
        while True:
            received += await ws.recv_many(10)
    assert received == ["a", b"b"]
    await ws.close()
    assert (await server.wait_result())[1].code == 1002


@pytest.mark.parametrize("limit", [0, -1])
async def test_recv_many_needs_a_positive_limit(server: WebSocketsServer, connect: Connect, limit: int) -> None:
    async with connect(server.uri) as ws:
        with pytest.raises(ValueError, match="limit"):
            await ws.recv_many(limit)


# recv_nowait


async def test_recv_nowait(scripted: Scripted, connect: Connect) -> None:
    server = scripted(sending(text("a") + text("b") + binary(b"c")))
    async with connect(server.uri) as ws:
        assert await ws.recv() == "a"
        assert ws.recv_nowait() == "b"
        assert ws.recv_nowait(decode=True) == "c"
        with pytest.raises(BlockingIOError):
            ws.recv_nowait()


async def test_recv_nowait_finds_new_messages(server: WebSocketsServer, connect: Connect) -> None:
    """Messages are found without any call that waits for them."""
    async with connect(server.uri) as ws:
        with pytest.raises(BlockingIOError):
            ws.recv_nowait()
        await ws.send("x")
        await soon(lambda: ws.stats()["receive_queue_messages"])
        assert ws.recv_nowait() == "x"


async def test_recv_nowait_does_not_overtake_waiting_task(scripted: Scripted, connect: Connect) -> None:
    """A waiting task gets the message first; a message is never delivered twice."""

    def script(wire: Wire) -> Any:
        wire.accept()
        server.pause()
        wire.send(text("a") + text("b"))
        return wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri) as ws:
        waiting = asyncio.ensure_future(ws.recv())
        await spin()
        with pytest.raises(BlockingIOError):
            ws.recv_nowait()
        server.release.set()
        assert await waiting == "a"
        assert await ws.recv() == "b"


async def test_recv_nowait_on_closed_connection(scripted: Scripted, connect: Connect) -> None:
    server = scripted(sending(text("a") + close(4000)))
    ws = await connect(server.uri)
    await ws.wait_closed()
    assert ws.recv_nowait() == "a"
    with pytest.raises(exceptions.ConnectionClosedError):
        ws.recv_nowait()


# send_many


@pytest.mark.parametrize("make", [list, tuple, iter], ids=["list", "tuple", "iterator"])
async def test_send_many(scripted: Scripted, connect: Connect, make: Callable[..., Any]) -> None:
    server = scripted(collect)
    async with connect(server.uri, compression=None) as ws:
        await ws.send_many(make(["a", b"b", bytearray(b"c"), "é"]))
        await ws.send_many([])
    expected = [Frame(TEXT, b"a"), Frame(BINARY, b"b"), Frame(BINARY, b"c"), Frame(TEXT, "é".encode())]
    assert await server.wait_result() == (expected, Close(1000))


async def test_send_many_to_a_real_server(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri + "/sink") as ws:
        await ws.send_many([bytes(64)] * 20_000)
        await ws.send("?")
        assert await ws.recv() == str(64 * 20_000)


async def test_send_many_wrong_type(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        for wrong in ("text", b"bytes"):  # one message, not many of one character
            with pytest.raises(TypeError):
                await ws.send_many(wrong)
        with pytest.raises(TypeError):
            await ws.send_many([1])
        await ws.send("still open")
        assert await ws.recv() == "still open"


async def test_send_many_sends_messages_before_invalid_one(scripted: Scripted, connect: Connect) -> None:
    """The messages before the invalid one are sent."""
    server = scripted(collect)
    async with connect(server.uri, compression=None) as ws:
        with pytest.raises(TypeError):
            await ws.send_many(["a", "b", None, "c"])
        await ws.send("d")
    assert [frame.payload for frame in (await server.wait_result())[0]] == [b"a", b"b", b"d"]


# send_nowait, flush


async def test_send_nowait(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        for number in range(100):
            assert ws.send_nowait(str(number)) is None
        ws.send_nowait(b"binary", text=True)
        assert [await ws.recv() for _ in range(100)] == [str(number) for number in range(100)]
        assert await ws.recv() == "binary"


@pytest.mark.parametrize("message", [None, 1, ["a", "b"], {}], ids=repr)
async def test_send_nowait_wrong_type(server: WebSocketsServer, connect: Connect, message: Any) -> None:
    """``send_nowait`` takes one message: iterating may block."""
    async with connect(server.uri) as ws:
        with pytest.raises(TypeError):
            ws.send_nowait(message)
        await ws.send("still open")
        assert await ws.recv() == "still open"


async def test_send_methods_keep_one_order(scripted: Scripted, connect: Connect) -> None:
    server = scripted(collect)
    async with connect(server.uri, compression=None) as ws:
        await ws.send("0")
        ws.send_nowait("1")
        await ws.send_many(["2", "3"])
        await ws.ping("4")
        ws.send_nowait("5")
        await ws.pong("6")
        await ws.send("7")
        await ws.flush()
        ws.send_nowait("8")
    assert [frame.payload for frame in (await server.wait_result())[0]] == [b"%d" % number for number in range(9)]


async def test_first_send_is_written_immediately(scripted: Scripted, connect: Connect) -> None:
    """The first send does not wait for the loop to turn."""

    def script(wire: Wire) -> Any:
        wire.accept()
        received = wire.read_frame()
        server.reached.set()
        wire.read_until_close()
        return received

    server = scripted(script)
    async with connect(server.uri, compression=None) as ws:
        await spin()
        with within(3):
            await ws.send("x")
            server.wait_reached()


async def test_flush_writes_queued_messages(scripted: Scripted, connect: Connect) -> None:
    """All queued messages are with the system when flush returns."""

    def script(wire: Wire) -> Any:
        wire.accept()
        received = [wire.read_frame().payload for _ in range(100)]
        server.reached.set()
        wire.read_until_close()
        return received

    server = scripted(script)
    async with connect(server.uri, compression=None) as ws:
        for number in range(100):
            ws.send_nowait(str(number))
        with within(3):
            await ws.flush()
            assert ws.stats()["send_queue_bytes"] == 0
            server.wait_reached()
        await ws.flush()
    assert await server.wait_result() == [b"%d" % number for number in range(100)]


async def test_queued_messages_are_written_at_end_of_iteration(scripted: Scripted, connect: Connect) -> None:
    """Queued messages leave without a flush and without any other call."""

    def script(wire: Wire) -> Any:
        wire.accept()
        received = [wire.read_frame().payload for _ in range(100)]
        server.reached.set()
        wire.read_until_close()
        return received

    server = scripted(script)
    async with connect(server.uri, compression=None) as ws:
        for number in range(100):
            ws.send_nowait(str(number))
        await soon(server.reached.is_set, 3)


# stats


async def test_stats(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri, compression=None) as ws:
        before = ws.stats()
        assert set(before.values()) == {0}
        await ws.send("hello")
        await ws.send_many([b"12", "é"])
        assert [await ws.recv() for _ in range(3)] == ["hello", b"12", "é"]
        await ws.flush()
        assert ws.stats() == {
            **before,
            "messages_sent": 3,
            "messages_received": 3,
            "bytes_sent": 9,
            "bytes_received": 9,
        }


async def test_stats_count_the_queue(scripted: Scripted, connect: Connect) -> None:
    server = scripted(sending(text("first") + b"".join(text("x" * 10) for _ in range(5))))
    async with connect(server.uri) as ws:
        assert await ws.recv() == "first"
        await soon(lambda: ws.stats()["receive_queue_messages"] == 5)
        assert ws.stats()["receive_queue_bytes"] == 50
        await ws.recv()
        assert ws.stats()["receive_queue_messages"] == 4


@pytest.mark.wirespeed_only("yield_after is ours")
@pytest.mark.parametrize(("options", "most"), [({}, 1024), ({"yield_after": 10}, 10), ({"yield_after": 1}, 1)])
async def test_long_batches_yield_to_other_tasks(
    server: WebSocketsServer, connect: Connect, options: Any, most: int
) -> None:
    """A long iterable lets other tasks of the loop run."""
    async with connect(server.uri, **options) as ws:
        taken, longest = 0, 0

        def messages() -> Iterator[bytes]:
            nonlocal taken
            while taken < 4000:
                taken += 1
                yield b""

        async def watch() -> None:
            nonlocal longest
            while taken < 4000:
                before = taken
                await asyncio.sleep(0)
                longest = max(longest, taken - before)

        watching = asyncio.ensure_future(watch())
        await asyncio.sleep(0)
        await ws.send_many(messages())
        await watching
        assert 0 < longest <= most
        received = 0
        while received < 4000:
            received += len(await ws.recv_many())
