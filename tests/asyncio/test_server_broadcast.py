"""One message to many connections."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory

from support.asyncio_tools import Setting, soon
from support.connecting import Connect
from support.frames import BINARY, PING, TEXT, Close, Frame
from support.serving import Raw, dial, echo, idle, logged, masked, serve, uri
from support.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("broadcast is ours")

if IS_WIRESPEED:
    from wirespeed import Deflate, broadcast


async def opened(server: Any, count: int, **options: Any) -> list[Any]:
    """Clients of ``websockets``, in the order in which they were opened."""
    return [await dial(uri(server), **options) for _ in range(count)]


async def end(*clients: Any) -> None:
    await asyncio.gather(*[ws.close() for ws in clients])


# Messages


MESSAGES: list[tuple[Any, bool | None, Any]] = [
    ("hé", None, "hé"),
    ("", None, ""),
    (b"\x00\xff", None, b"\x00\xff"),
    (b"", None, b""),
    (bytearray(b"ab"), None, b"ab"),
    (memoryview(b"abcd")[::2].tobytes(), None, b"ac"),
    (memoryview(b"abcd")[1:3], None, b"bc"),
    ("hé".encode(), True, "hé"),
    ("hé", True, "hé"),
    ("hé", False, "hé".encode()),
    (b"x", False, b"x"),
    ("x" * 125, None, "x" * 125),
    ("x" * 126, None, "x" * 126),
    (b"x" * 65535, None, b"x" * 65535),
    (b"x" * 65536, None, b"x" * 65536),
    (bytes(range(256)) * 4000, None, bytes(range(256)) * 4000),
]


@pytest.mark.parametrize("compression", ["deflate", None])
@pytest.mark.no_leaks
async def test_messages(setting: Setting, compression: str | None) -> None:
    async with serve(setting, idle) as server:
        clients = await opened(server, 3, compression=compression)
        for message, text, expected in MESSAGES:
            assert broadcast(server.connections, message, text=text, slow="skip") == 3
            for ws in clients:
                assert await ws.recv() == expected
        await end(*clients)


async def test_no_connections(setting: Setting) -> None:
    assert broadcast([], "x") == 0
    assert broadcast(set(), b"x") == 0
    assert broadcast(iter(()), "x", raise_exceptions=True) == 0
    assert broadcast({}, "x") == 0
    async with serve(setting) as server:
        assert broadcast(server.connections, "x") == 0


@pytest.mark.no_leaks
async def test_many(setting: Setting) -> None:
    """200 connections each receive the messages in order; a generator is accepted."""
    async with serve(setting, idle) as server:
        raws = await asyncio.gather(*[Raw.open(server) for _ in range(200)])
        await soon(lambda: len(server.connections) == 200)
        for number in range(5):
            assert broadcast((ws for ws in server.connections), f"{number}") == 200
        for raw in raws:
            assert [(await raw.frame()).payload for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
            raw.close()


async def test_order(setting: Setting) -> None:
    """``send`` and ``broadcast`` alternate, awaited or not."""
    async with serve(setting, idle, compression=None) as server:
        with await Raw.open(server) as raw:
            [ws] = server.connections
            for number in range(0, 400, 4):
                await ws.send(f"{number}")
                broadcast([ws], f"{number + 1}")
                ws.send_nowait(f"{number + 2}")
                broadcast([ws], f"{number + 3}")
            received = [int((await raw.frame()).payload) for _ in range(400)]
            assert received == list(range(400))


async def test_duplicate_connections(setting: Setting) -> None:
    async with serve(setting, idle) as server:
        with await Raw.open(server) as raw:
            [ws] = server.connections
            assert broadcast([ws, ws], "x") == 2
            assert [await raw.frame() for _ in range(2)] == [Frame(TEXT, b"x", masked=False)] * 2


# Compression

OFFERS: list[dict[str, Any]] = [
    {},
    {"server_max_window_bits": 9, "client_max_window_bits": 9},
    {"server_max_window_bits": 9, "server_no_context_takeover": True},
    {"server_max_window_bits": 15, "client_max_window_bits": 15},
    {"server_max_window_bits": 12, "client_no_context_takeover": True},
    {"server_no_context_takeover": True, "client_no_context_takeover": True},
]


async def test_compressed(setting: Setting) -> None:
    """With any window, with context takeover or not; before and after ``send``, which continues with its own
    context.
    """
    chooser = random.Random(7)
    words = ["the quick brown fox ", "jumps over ", "the lazy dog ", "0123456789" * 30]

    def message(number: int) -> str:
        return f"{number} " + "".join(chooser.choices(words, k=chooser.randrange(40)))

    async with serve(setting, echo) as server:
        clients = [
            await dial(uri(server), compression=None, extensions=[ClientPerMessageDeflateFactory(**offer)])
            for offer in OFFERS
        ]
        clients.append(await dial(uri(server), compression=None))
        assert [len(ws.protocol.extensions) for ws in clients] == [1] * len(OFFERS) + [0]
        expected: list[str] = []
        for number in range(150):
            expected.append(message(number))
            if chooser.random() < 0.5:
                assert broadcast(server.connections, expected[-1]) == len(clients)
            else:
                for ws in server.connections:
                    await ws.send(expected[-1])
        for ws in clients:
            assert [await ws.recv() for _ in expected] == expected
            # The other direction is unaffected.
            for text in expected[:10]:
                await ws.send(text)
                assert await ws.recv() == text
        await end(*clients)


async def test_compressed_once(setting: Setting) -> None:
    """The message is compressed once; below the threshold it is not compressed."""
    async with serve(setting, idle, compression=Deflate(threshold=100)) as server:
        raws = [await Raw.open(server, "/", "Sec-WebSocket-Extensions: permessage-deflate") for _ in range(2)]
        broadcast(server.connections, "x" * 99)
        broadcast(server.connections, "x" * 100_000)
        for raw in raws:
            assert await raw.frame() == Frame(TEXT, b"x" * 99, masked=False)
        [first, second] = [await raw.frame() for raw in raws]
        assert first == second
        assert first.rsv == 4
        assert len(first.payload) < 1000
        for raw in raws:
            raw.close()


# Connections in other states


@pytest.mark.no_leaks
async def test_connections_that_are_not_open(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    """Closed, closing and connecting connections are skipped."""
    kept: list[Any] = []
    go = asyncio.Event()

    async def process(ws: Any, request: Any) -> None:
        kept.append(ws)
        if request.path == "/wait":
            await go.wait()

    async with serve(setting, idle, process_request=process, close_timeout=0.2) as server:
        live, closed, closing = [await Raw.open(server, path) for path in ("/1", "/2", "/3")]
        connecting = await Raw.connect(server)
        await connecting.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        await soon(lambda: len(kept) == 4)
        kept[1].abort()
        task = asyncio.ensure_future(kept[2].close())
        await asyncio.sleep(0)
        assert [ws.state.name for ws in kept] == ["OPEN", "CLOSED", "CLOSING", "CONNECTING"]
        for raising in (False, True):
            assert broadcast(kept, "x", raise_exceptions=raising, slow="close") == 1
        assert await live.frame() == Frame(TEXT, b"x", masked=False)
        assert await closing.until_close() == ([], Close(1000))
        go.set()
        assert (await connecting.reply()).status == 426
        await task
        for raw in (live, closed, closing, connecting):
            raw.close()
    assert logged(caplog) == []


@pytest.mark.no_leaks
async def test_connections_of_clients(setting: Setting, connect: Connect) -> None:
    """Clients mask their frames."""
    async with serve(setting, echo) as server:
        mine = [await connect(uri(server), compression=compression) for compression in ("deflate", None)]
        for message in ("x" * 1000, b"y"):
            assert broadcast(mine, message) == 2
            for ws in mine:
                assert await ws.recv() == message
        both = {*mine, *server.connections}
        assert broadcast(both, "to all") == 4
        for ws in mine:
            assert [await ws.recv(), await ws.recv()] == ["to all"] * 2
        await end(*mine)


@pytest.mark.parametrize("raising", [False, True])
async def test_inside_a_fragmented_message(setting: Setting, caplog: pytest.LogCaptureFixture, raising: bool) -> None:
    """The fragments of another message are not interrupted; other connections get the message."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def fragments() -> Any:
        yield "a"
        begun.set()
        await go.wait()
        yield "b"

    async def handler(ws: Any) -> None:
        if ws.request.path == "/fragments":
            await ws.send(fragments())
        await ws.wait_closed()

    async with serve(setting, handler) as server:
        busy, free = await dial(uri(server, "/fragments")), await dial(uri(server))
        await begun.wait()
        connections = server.connections
        if raising:
            with pytest.raises(BaseException) as raised:
                broadcast(connections, "x", raise_exceptions=True)
            [error] = getattr(raised.value, "exceptions", [raised.value])
            assert type(error).__name__ == "ConcurrencyError"
        else:
            assert broadcast(connections, "x") == 1
        assert await free.recv() == "x"
        go.set()
        assert await busy.recv() == "ab"
        assert broadcast(connections, "y") == 2
        assert [await ws.recv() for ws in (busy, free)] == ["y", "y"]
        await end(busy, free)
    assert [text.split(": ", 1)[1] for text in logged(caplog)] == ([] if raising else ["sending a fragmented message"])


@pytest.mark.no_leaks
async def test_connection_that_fails(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    """The peer has reset the connection, and the loop has not noticed yet."""
    async with serve(setting, idle) as server:
        raw, other = await Raw.open(server), await Raw.open(server)
        connections = server.connections
        raw.reset()
        for _ in range(3):
            assert 1 <= broadcast(connections, "x" * 100) <= 2
        for _ in range(3):
            assert (await other.frame()).payload == b"x" * 100
        await soon(lambda: len(server.connections) == 1)
        assert broadcast(connections, "x") == 1
        other.close()
    assert len(logged(caplog)) <= 1


async def test_wrong_connection_in_the_middle(setting: Setting) -> None:
    """The connections before the invalid one have got the message."""
    async with serve(setting, idle) as server:
        with await Raw.open(server) as raw:
            [ws] = server.connections
            with pytest.raises(TypeError, match="connections must be"):
                broadcast([ws, None, ws], "x")  # type: ignore[list-item]
            broadcast([ws], "y")
            assert (await raw.frame()).payload in (b"x", b"y")


# Broadcast during other operations


async def test_from_a_handler(setting: Setting) -> None:
    """A chat: every client receives each message."""

    async def handler(ws: Any) -> None:
        async for message in ws:
            broadcast(ws.server.connections, f"{ws.request.path} {message}")

    async with serve(setting, handler) as server:
        clients = [await dial(uri(server, f"/{number}")) for number in range(10)]
        for ws in clients:
            await ws.send("hello")
        for ws in clients:
            assert {await ws.recv() for _ in range(10)} == {f"/{number} hello" for number in range(10)}
        await end(*clients)


async def test_while_receiving(setting: Setting) -> None:
    """Messages and pings that arrive meanwhile are not lost."""
    async with serve(setting, echo) as server:
        with await Raw.open(server) as raw:
            for number in range(50):
                await raw.send(masked(TEXT, b"e%d" % number) + masked(PING, b"p%d" % number))
                assert broadcast(server.connections, b"b%d" % number) == 1
                await asyncio.sleep(0)
            frames = [await raw.frame() for _ in range(150)]
            assert [f.payload for f in frames if f.opcode == BINARY] == [b"b%d" % n for n in range(50)]
            assert [f.payload for f in frames if f.opcode == TEXT] == [b"e%d" % n for n in range(50)]
