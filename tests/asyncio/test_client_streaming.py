"""Receiving a message fragment by fragment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.asyncio_tools import cancelled, spin
from support.checks import within
from support.connecting import Connect
from support.faults import DEFLATE
from support.frames import CONT, TEXT, binary, deflate, frame, ping, text
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import exceptions


def serve(scripted: Scripted, data: bytes, *headers: str) -> str:
    """Starts a server that sends these bytes after the handshake; returns its address."""

    def script(wire: Wire) -> Any:
        wire.accept(*headers, then=data)
        return wire.read_until_close()

    return scripted(script).uri


async def pieces_of(ws: Any, **options: Any) -> list[Any]:
    return [piece async for piece in ws.recv_streaming(**options)]


async def test_fragments_of_text(scripted: Scripted, connect: Connect) -> None:
    data = text("one", fin=False) + frame(CONT, b"two", fin=False) + frame(CONT, b"three")
    uri = serve(scripted, data + text("next"))
    async with connect(uri) as ws:
        assert await pieces_of(ws) == ["one", "two", "three"]
        assert await ws.recv() == "next"


async def test_fragments_of_binary(scripted: Scripted, connect: Connect) -> None:
    uri = serve(scripted, binary(b"one", fin=False) + frame(CONT, b"two"))
    async with connect(uri) as ws:
        received = await pieces_of(ws)
    assert received == [b"one", b"two"]
    assert {type(piece) for piece in received} == {bytes}


async def test_unfragmented(scripted: Scripted, connect: Connect) -> None:
    uri = serve(scripted, text("whole") + binary(b"too") + text("") + text("next"))
    async with connect(uri) as ws:
        assert await pieces_of(ws) == ["whole"]
        assert await pieces_of(ws) == [b"too"]
        assert "".join(await pieces_of(ws)) == ""
        assert await ws.recv() == "next"


async def test_character_split_across_fragments(scripted: Scripted, connect: Connect) -> None:
    """Each piece is valid text by itself; a cut character comes with the piece that completes it."""
    uri = serve(scripted, text(b"a\xe2", fin=False) + frame(CONT, b"\x82", fin=False) + frame(CONT, b"\xacb"))
    async with connect(uri) as ws:
        pieces = await pieces_of(ws)
        assert pieces[0] == "a"
        assert "".join(pieces) == "a€b"


async def test_decode(scripted: Scripted, connect: Connect) -> None:
    pieces = text("é", fin=False) + frame(CONT, "€".encode())
    binaries = binary("é".encode(), fin=False) + frame(CONT, "€".encode())
    uri = serve(scripted, pieces + binaries)
    async with connect(uri) as ws:
        assert await pieces_of(ws, decode=False) == ["é".encode(), "€".encode()]
        assert await pieces_of(ws, decode=True) == ["é", "€"]


async def test_control_frames_between(scripted: Scripted, connect: Connect) -> None:
    data = text("one", fin=False) + ping(b"x") + frame(CONT, b"two", fin=False) + ping(b"y") + frame(CONT, b"three")
    uri = serve(scripted, data)
    async with connect(uri) as ws:
        assert "".join(await pieces_of(ws)) == "onetwothree"


async def test_pieces_arrive_before_the_message_ends(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("one", fin=False))
        server.pause()
        wire.send(frame(CONT, b"two"))
        wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri) as ws:
        with within(8):
            pieces = ws.recv_streaming()
            assert await pieces.__anext__() == "one"
            server.release.set()
            assert "".join([piece async for piece in pieces]) == "two"


async def test_compressed(scripted: Scripted, connect: Connect) -> None:
    data = deflate(b"Hello, Hello, Hello")
    uri = serve(scripted, text(data[:5], fin=False, rsv=4) + frame(CONT, data[5:]) + text("next"), DEFLATE)
    async with connect(uri) as ws:
        assert "".join(await pieces_of(ws)) == "Hello, Hello, Hello"
        assert await ws.recv() == "next"


async def test_a_real_server(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri + "/fragments?n=20&size=10000") as ws:
        await ws.send("go")
        pieces = await pieces_of(ws)
        assert len(pieces) >= 20
        assert "".join(pieces) == "".join(chr(ord("a") + index % 26) * 10_000 for index in range(20))


async def test_more_than_the_queue_holds(server: WebSocketsServer, connect: Connect) -> None:
    """Flow control works inside a message as well: many fragments are consumed slowly, and none is lost."""
    async with connect(server.uri + "/fragments?n=400&size=20000", max_size=None, max_queue=4) as ws:
        await ws.send("go")
        total = 0
        async for piece in ws.recv_streaming():
            total += len(piece)
            await asyncio.sleep(0.0002)
        assert total == 400 * 20_000


async def test_connection_lost_in_the_middle(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("one", fin=False))
        server.pause()

    server = scripted(script)
    ws = await connect(server.uri)
    pieces = ws.recv_streaming()
    assert await pieces.__anext__() == "one"
    server.release.set()
    with pytest.raises(exceptions.ConnectionClosedError):
        await pieces.__anext__()
    await ws.close()


async def test_bad_utf8_in_the_middle(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=text("one", fin=False) + frame(CONT, b"\xff", fin=False))
        return wire.read_until_close()

    server = scripted(script)
    ws = await connect(server.uri)
    received = []
    with pytest.raises(exceptions.ConnectionClosedError):
        async for piece in ws.recv_streaming():
            received.append(piece)
    assert received == ["one"]
    await ws.close()
    assert (await server.wait_result())[1].code == 1007


async def test_after_the_connection_closed(server: WebSocketsServer, connect: Connect) -> None:
    ws = await connect(server.uri)
    await ws.close()
    with pytest.raises(exceptions.ConnectionClosedOK):
        await ws.recv_streaming().__anext__()


async def test_max_size_still_holds(scripted: Scripted, connect: Connect) -> None:
    uri = serve(scripted, binary(bytes(600), fin=False) + frame(CONT, bytes(600), fin=False))
    ws = await connect(uri, max_size=1000)
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        await pieces_of(ws)
    assert raised.value.sent is not None
    assert raised.value.sent.code == 1009
    await ws.close()


async def test_opcode_of_the_first_fragment_decides(scripted: Scripted, connect: Connect) -> None:
    uri = serve(scripted, frame(TEXT, b"", fin=False) + frame(CONT, b"x"))
    async with connect(uri) as ws:
        assert "".join(await pieces_of(ws)) == "x"


@pytest.mark.wirespeed_only("the connection of websockets is unusable then")
async def test_iteration_abandoned_early(scripted: Scripted, connect: Connect) -> None:
    """The rest of the message is dropped, including parts that have not arrived yet, and the next message is whole."""

    def script(wire: Wire) -> None:
        wire.accept(then=text("one", fin=False) + frame(CONT, b"two", fin=False))
        server.pause()
        wire.send(frame(CONT, b"three") + text("next"))
        wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri) as ws:
        pieces = ws.recv_streaming()
        async for piece in pieces:
            assert piece == "one"
            break
        await pieces.aclose()
        server.release.set()
        assert await ws.recv() == "next"


@pytest.mark.wirespeed_only("the connection of websockets is unusable then")
async def test_cancelled_between_fragments(scripted: Scripted, connect: Connect) -> None:
    """A cancelled iteration is over, as that of every asynchronous generator; the next message is whole."""

    def script(wire: Wire) -> None:
        wire.accept(then=text("one", fin=False))
        server.pause()
        wire.send(frame(CONT, b"two") + text("next"))
        wire.read_until_close()

    server = scripted(script)
    received: list[Any] = []

    async def receive(ws: Any) -> None:
        async for piece in ws.recv_streaming():
            received.append(piece)

    async with connect(server.uri) as ws:
        task = asyncio.ensure_future(receive(ws))
        while not received:
            await asyncio.sleep(0.001)
        await spin()
        assert await cancelled(task)
        server.release.set()
        assert await ws.recv() == "next"
    assert received == ["one"]


async def test_cancelled_before_the_first_fragment(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()
        wire.send(text("one", fin=False) + frame(CONT, b"two"))
        wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri) as ws:
        task = asyncio.ensure_future(pieces_of(ws))
        await spin()
        assert await cancelled(task)
        server.release.set()
        assert await ws.recv() == "onetwo"


async def test_two_receivers_at_once(scripted: Scripted, connect: Connect) -> None:
    """A message in pieces belongs to one task: a second receiver is refused, or comes after it, but never in
    between.
    """

    def script(wire: Wire) -> None:
        wire.accept(then=text("one", fin=False))
        server.pause()
        wire.send(frame(CONT, b"two") + text("next"))
        wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri) as ws:
        first = ws.recv_streaming()
        assert await first.__anext__() == "one"
        second = asyncio.ensure_future(pieces_of(ws))
        await spin()
        server.release.set()
        assert [piece async for piece in first] == ["two"]
        try:
            assert await second == ["next"]
        except exceptions.ConcurrencyError:
            assert await ws.recv() == "next"


@pytest.mark.wirespeed_only("it looks at what is ours")
@pytest.mark.parametrize("taken", [1, 2, 3])
async def test_interrupted_when_a_fragment_is_taken(scripted: Scripted, connect: Connect, taken: int) -> None:
    """A signal handler raises before the fragment was delivered: the rest of that message is dropped, and no other."""
    from wirespeed.asyncio import ClientConnection

    class Interrupted(ClientConnection):
        left = taken

        async def _recv_fragment(self) -> Any:
            item = await super()._recv_fragment()
            self.left -= 1
            if not self.left:
                raise Interruption
            return item

    class Interruption(BaseException):
        pass

    data = text("one", fin=False) + frame(CONT, b"two", fin=False) + frame(CONT, b"three")
    uri = serve(scripted, data + text("next") + text("last"))
    async with connect(uri, create_connection=Interrupted) as ws:
        with pytest.raises(Interruption):
            await pieces_of(ws)
        assert await ws.recv() == "next"
        assert await pieces_of(ws) == ["last"]


@pytest.mark.wirespeed_only("it looks at what is ours")
async def test_interrupted_before_a_fragment_is_taken(scripted: Scripted, connect: Connect) -> None:
    """No message is dropped then."""
    from wirespeed.asyncio import ClientConnection

    class Interrupted(ClientConnection):
        interrupts = 1

        async def _recv_fragment(self) -> Any:
            if self.interrupts:
                self.interrupts -= 1
                raise Interruption
            return await super()._recv_fragment()

    class Interruption(BaseException):
        pass

    uri = serve(scripted, text("one", fin=False) + frame(CONT, b"two"))
    async with connect(uri, create_connection=Interrupted) as ws:
        with pytest.raises(Interruption):
            await pieces_of(ws)
        assert await pieces_of(ws) == ["one", "two"]
