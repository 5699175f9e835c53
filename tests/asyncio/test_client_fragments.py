"""Fragmented messages: sent from iterables of both kinds, received whole."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from support.asyncio_tools import Run, cancelled, soon, spin
from support.checks import as_close, within
from support.connecting import Connect
from support.frames import BINARY, CONT, TEXT, Close, Frame
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import exceptions


def collect(wire: Wire) -> tuple[list[Frame], Close | None]:
    wire.accept()
    return wire.read_until_close()


async def asynchronous(pieces: Any) -> AsyncIterator[Any]:
    for piece in pieces:
        await asyncio.sleep(0)
        yield piece


class WithoutGenerator:
    """An asynchronous iterable without ``aclose``."""

    def __init__(self, pieces: Any) -> None:
        self.pieces = iter(pieces)

    def __aiter__(self) -> WithoutGenerator:
        return self

    async def __anext__(self) -> Any:
        for piece in self.pieces:
            return piece
        raise StopAsyncIteration


MAKERS: dict[str, Callable[..., Any]] = {
    "list": list,
    "tuple": tuple,
    "iterator": iter,
    "generator": lambda pieces: (piece for piece in pieces),
    "async-generator": asynchronous,
    "async-iterator": WithoutGenerator,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize(
    ("pieces", "opcode"), [(["a", "é", "c"], TEXT), ([b"a", b"\xc3\xa9", b"c"], BINARY)], ids=["text", "binary"]
)
async def test_send_fragments(
    scripted: Scripted, connect: Connect, make: Callable[..., Any], pieces: list[Any], opcode: int
) -> None:
    server = scripted(collect)
    async with connect(server.uri, compression=None) as ws:
        await ws.send(make(pieces))
        await ws.send("next")
    frames, on_the_wire = await server.wait_result()
    assert on_the_wire == Close(1000)
    assert frames.pop() == Frame(TEXT, b"next")
    assert [frame.opcode for frame in frames] == [opcode] + [CONT] * (len(frames) - 1)
    assert [frame.fin for frame in frames] == [False] * (len(frames) - 1) + [True]
    payloads = [frame.payload for frame in frames]
    assert payloads[:2] == [b"a", "é".encode()]  # one frame for each item
    assert b"".join(payloads) == "aéc".encode()


@pytest.mark.parametrize("compression", ["deflate", None])
@pytest.mark.parametrize("make", [list, asynchronous], ids=["list", "async"])
async def test_send_fragments_to_a_real_server(
    server: WebSocketsServer, connect: Connect, make: Callable[..., Any], compression: str | None
) -> None:
    pieces = [str(number) * 100 for number in range(50)]
    async with connect(server.uri, compression=compression) as ws:
        await ws.send(make(pieces))
        assert await ws.recv() == "".join(pieces)


async def test_send_fragments_text_argument(scripted: Scripted, connect: Connect) -> None:
    server = scripted(collect)
    async with connect(server.uri, compression=None) as ws:
        await ws.send([b"a", b"b"], text=True)
        await ws.send(asynchronous([b"a", b"b"]), text=True)
        await ws.send(["a", "b"], text=False)
        await ws.send(asynchronous(["a", "b"]), text=False)
    opcodes = [frame.opcode for frame in (await server.wait_result())[0] if frame.opcode != CONT]
    assert opcodes == [TEXT, TEXT, BINARY, BINARY]


async def test_text_in_bytes_that_split_characters(scripted: Scripted, connect: Connect) -> None:
    """RFC 6455 5.6: only the whole message has to be UTF-8."""
    server = scripted(collect)
    async with connect(server.uri, compression=None) as ws:
        await ws.send([b"a\xc3", b"\xa9", bytearray(b"\xf0\x9f"), b"", b"\x98\x80b"], text=True)
    assert await server.wait_result() == (
        [
            Frame(TEXT, b"a\xc3", fin=False),
            *(Frame(CONT, piece, fin=False) for piece in (b"\xa9", b"\xf0\x9f", b"", b"\x98\x80b")),
            Frame(CONT, b""),
        ],
        Close(1000),
    )


@pytest.mark.wirespeed_only("websockets sends what the peer has to refuse")
@pytest.mark.parametrize("pieces", [[b"a", b"\xff"], [b"a\xc3", b"x"], [b"a\xc3"]], ids=["alone", "joined", "end"])
async def test_text_fragments_that_are_not_utf8(scripted: Scripted, connect: Connect, pieces: list[bytes]) -> None:
    server = scripted(collect)
    ws = await connect(server.uri, compression=None)
    with pytest.raises(UnicodeDecodeError):
        await ws.send(pieces, text=True)
    await ws.close()
    assert await server.wait_result() == (
        [Frame(TEXT, pieces[0], fin=False)],
        Close(1011, "error in fragmented message"),
    )


@pytest.mark.wirespeed_only("calls of websockets from other threads are undefined")
async def test_send_fragments_that_ends_in_another_thread(scripted: Scripted, connect: Connect) -> None:
    """When the sending coroutine is closed in another thread, as by garbage collection, the connection's loop sends
    the fragments that are queued and then a close frame.
    """

    def script(wire: Wire) -> tuple[list[Frame], Close | None]:
        wire.accept()
        server.release.wait(10)
        return wire.read_until_close()

    server = scripted(script)
    ws = await connect(server.uri, compression=None)
    sending = ws.send(bytes(1_000_000) for _ in range(100))
    while sending.send(None) is None:  # a turn of the loop
        pass
    thread = threading.Thread(target=sending.close)
    thread.start()
    thread.join()
    server.release.set()
    with within(5):
        await ws.wait_closed()
    frames, close = await server.wait_result()
    assert all(not frame.fin for frame in frames)
    assert close is not None
    assert close.code == 1011


async def test_fragments_are_sent_as_they_are_produced(scripted: Scripted, connect: Connect) -> None:
    """A fragment is on the wire while the iterable is asked for the next one."""

    def script(wire: Wire) -> list[bytes]:
        wire.accept()
        received = [wire.read_frame().payload]
        server.reached.set()
        frames, _ = wire.read_until_close()
        return received + [frame.payload for frame in frames if frame.payload]

    server = scripted(script)

    async def pieces() -> AsyncIterator[str]:
        yield "first"
        await soon(server.reached.is_set)
        yield "second"

    async with connect(server.uri, compression=None) as ws:
        await ws.send(pieces())
    assert await server.wait_result() == [b"first", b"second"]


@pytest.mark.parametrize("empty", [list, tuple, iter, asynchronous])
async def test_send_no_fragments(scripted: Scripted, connect: Connect, empty: Callable[..., Any]) -> None:
    server = scripted(collect)
    async with connect(server.uri) as ws:
        await ws.send(empty([]))
    assert await server.wait_result() == ([], Close(1000))


@pytest.mark.parametrize("make", [list, asynchronous], ids=["list", "async"])
@pytest.mark.parametrize("pieces", [["a", b"b"], [b"a", "b"], ["a", 1]], ids=repr)
async def test_send_fragments_of_mixed_types(
    scripted: Scripted, connect: Connect, pieces: list[Any], make: Callable[..., Any]
) -> None:
    """Half of the message is out and cannot be taken back: the connection fails with 1011."""
    server = scripted(collect)
    ws = await connect(server.uri)
    with pytest.raises((TypeError, exceptions.ConnectionClosedError)):
        await ws.send(make(pieces))
    with pytest.raises(exceptions.ConnectionClosedError):
        await ws.send("x")
    await ws.close()
    assert (await server.wait_result())[1].code == 1011


@pytest.mark.parametrize("kind", ["list", "async"])
async def test_send_fragments_from_a_failing_iterable(scripted: Scripted, connect: Connect, kind: str) -> None:
    def pieces() -> Iterator[str]:
        yield "a"
        raise ZeroDivisionError

    server = scripted(collect)
    ws = await connect(server.uri)
    with pytest.raises(ZeroDivisionError):
        await ws.send(pieces() if kind == "list" else asynchronous(pieces()))
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        await ws.recv()
    await ws.close()
    sent = as_close(raised.value.sent)
    assert sent is not None
    assert sent.code == 1011
    assert (await server.wait_result())[1] == sent


@pytest.mark.parametrize("kind", ["list", "async"])
async def test_send_fragments_from_an_iterable_that_fails_first(
    server: WebSocketsServer, connect: Connect, kind: str
) -> None:
    """Nothing was sent yet: the connection stays usable."""

    def pieces() -> Iterator[str]:
        raise ZeroDivisionError
        yield "a"

    async with connect(server.uri) as ws:
        with pytest.raises(ZeroDivisionError):
            await ws.send(pieces() if kind == "list" else asynchronous(pieces()))
        await ws.send("still open")
        assert await ws.recv() == "still open"


async def test_other_messages_wait_for_the_last_fragment(scripted: Scripted, connect: Connect) -> None:
    """Messages of other tasks wait in order; pings go in between."""
    server = scripted(collect)
    inside, proceed = asyncio.Event(), asyncio.Event()

    async def pieces() -> AsyncIterator[str]:
        yield "one"
        inside.set()
        await proceed.wait()
        yield "two"

    async with connect(server.uri, compression=None) as ws:
        sending = asyncio.ensure_future(ws.send(pieces()))
        await inside.wait()
        others = [asyncio.ensure_future(ws.send(other)) for other in ("three", ["four", "five"], "six")]
        await spin()
        await ws.ping(b"ping")
        assert not any(task.done() for task in others)
        proceed.set()
        await asyncio.gather(sending, *others)
    frames, on_the_wire = await server.wait_result()
    assert on_the_wire == Close(1000)
    assert [frame.payload for frame in frames if frame.payload] == [
        b"one", b"ping", b"two", b"three", b"four", b"five", b"six",
    ]  # fmt: skip
    assert [frame.opcode for frame in frames if frame.opcode in (TEXT, BINARY)] == [TEXT] * 4


@pytest.mark.wirespeed_only("ours")
async def test_other_tasks_send_before_the_first_fragment(scripted: Scripted, connect: Connect) -> None:
    """Other tasks, and the iterable itself, can send until the first fragment is there."""
    server = scripted(collect)
    inside, proceed = asyncio.Event(), asyncio.Event()

    async with connect(server.uri, compression=None) as ws:

        async def pieces() -> AsyncIterator[str]:
            await ws.send("one")
            inside.set()
            await proceed.wait()
            yield "three"

        sending = asyncio.ensure_future(ws.send(pieces()))
        await inside.wait()
        with within(5):
            await ws.send("two")
        proceed.set()
        await sending
    assert [frame.payload for frame in (await server.wait_result())[0]] == [b"one", b"two", b"three", b""]


async def test_nowait_calls_are_refused_between_fragments(scripted: Scripted, connect: Connect) -> None:
    server = scripted(collect)
    proceed = asyncio.Event()

    async def pieces() -> AsyncIterator[str]:
        yield "one"
        await proceed.wait()
        yield "two"

    async with connect(server.uri, compression=None) as ws:
        sending = asyncio.ensure_future(ws.send(pieces()))
        await spin()
        with pytest.raises((BlockingIOError, exceptions.ConcurrencyError)):
            ws.send_nowait("x")
        many = asyncio.ensure_future(ws.send_many(["a", "b"]))
        await spin()
        proceed.set()
        await asyncio.gather(sending, many)
    assert [frame.payload for frame in (await server.wait_result())[0] if frame.payload] == [b"one", b"two", b"a", b"b"]


@pytest.mark.wirespeed_only("websockets waits forever")
@pytest.mark.parametrize("how", ["send", "send_many", "fragments", "later"])
def test_iterable_of_fragments_cannot_send(scripted: Scripted, run: Run, connect: Connect, how: str) -> None:
    """The iterable would wait for itself. Another task waits for the end of the message."""
    server = scripted(collect)
    others: list[asyncio.Future[None]] = []

    async def main() -> None:
        async def pieces() -> AsyncIterator[str]:
            yield "one"
            if how == "send":
                await ws.send("x")
            elif how == "send_many":
                await ws.send_many(["x", "y"])
            elif how == "fragments":
                await ws.send(["x", "y"])
            else:
                others.append(asyncio.ensure_future(ws.send("x")))
                await spin()
            yield "two"

        async with connect(server.uri, compression=None) as ws:
            if how == "later":
                await ws.send(pieces())
                await others[0]
                return
            with pytest.raises(exceptions.ConcurrencyError, match="this task is sending a message in fragments"):
                await ws.send(pieces())

    run(main)
    frames, on_the_wire = server.result
    payloads = [frame.payload for frame in frames if frame.payload]
    if how == "later":
        assert (payloads, on_the_wire.code) == ([b"one", b"two", b"x"], 1000)
    else:
        assert (payloads, on_the_wire.code) == ([b"one"], 1011)


@pytest.mark.wirespeed_only("websockets sends an incomplete message")
async def test_cancelled_between_fragments(scripted: Scripted, connect: Connect) -> None:
    """The message can be neither completed nor taken back: the connection fails with a clear reason."""
    server = scripted(collect)
    closed = []

    async def pieces() -> AsyncIterator[str]:
        try:
            yield "one"
            await asyncio.sleep(60)
        finally:
            closed.append(True)

    ws = await connect(server.uri, compression=None)
    sending = asyncio.ensure_future(ws.send(pieces()))
    await spin()
    assert await cancelled(sending)
    assert closed == [True]
    with pytest.raises(exceptions.ConnectionClosedError):
        await ws.send("x")
    await ws.close()
    frames, on_the_wire = await server.wait_result()
    assert [(frame.payload, frame.fin) for frame in frames] == [(b"one", False)]
    assert on_the_wire is not None
    assert on_the_wire.code == 1011


async def test_cancelled_before_the_first_fragment(server: WebSocketsServer, connect: Connect) -> None:
    """Nothing was sent: the connection stays usable."""

    async def pieces() -> AsyncIterator[str]:
        await asyncio.sleep(60)
        yield "never"

    async with connect(server.uri) as ws:
        sending = asyncio.ensure_future(ws.send(pieces()))
        await spin()
        assert await cancelled(sending)
        await ws.send("still open")
        assert await ws.recv() == "still open"


async def test_cancelled_while_waiting_for_another_message(scripted: Scripted, connect: Connect) -> None:
    server = scripted(collect)
    proceed = asyncio.Event()

    async def pieces() -> AsyncIterator[str]:
        yield "one"
        await proceed.wait()
        yield "two"

    async with connect(server.uri, compression=None) as ws:
        sending = asyncio.ensure_future(ws.send(pieces()))
        await spin()
        impatient = asyncio.ensure_future(ws.send("impatient"))
        patient = asyncio.ensure_future(ws.send("patient"))
        await spin()
        assert await cancelled(impatient)
        proceed.set()
        await asyncio.gather(sending, patient)
    assert [frame.payload for frame in (await server.wait_result())[0] if frame.payload] == [b"one", b"two", b"patient"]


async def test_receive_fragments(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri + "/fragments?n=30&size=1000") as ws:
        await ws.send("go")
        message = await ws.recv()
        assert message == "".join(chr(ord("a") + index % 26) * 1000 for index in range(30))
