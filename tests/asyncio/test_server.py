"""The server: messages of every kind, and the ends of a handler."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import uuid
import weakref
from typing import Any

import pytest
from websockets.sync.client import connect as websockets_sync_connect

from support.asyncio_tools import Setting, soon, spin
from support.connecting import Connect
from support.frames import CONT, PING, PONG, TEXT, Close, Frame, close
from support.serving import LOGGER, Raw, dial, echo, idle, logged, masked, request, serve, unnamed, uri
from support.subject import exceptions

pytestmark = pytest.mark.wirespeed_only("the server is ours")


LARGE = os.urandom(1000) * 10_486


@pytest.fixture(params=["wirespeed", "websockets"])
def client(request: pytest.FixtureRequest, connect: Connect) -> Connect:
    return connect if request.param == "wirespeed" else dial


# Messages


@pytest.mark.parametrize(
    "message",
    ["", "hé", "x" * 70_000, b"", b"\x00\xff", LARGE],
    ids=["empty", "text", "long", "none", "binary", "10MB"],
)
@pytest.mark.parametrize("compression", ["deflate", None])
@pytest.mark.no_leaks
async def test_echo(setting: Setting, client: Connect, message: Any, compression: str | None) -> None:
    async with serve(setting, max_size=None) as server:
        async with client(uri(server), compression=compression, max_size=None) as ws:
            for _ in range(1 if message is LARGE else 2):
                await ws.send(message)
                assert await ws.recv() == message
        assert ws.close_code == 1000


async def test_blocking_clients(setting: Setting) -> None:
    from wirespeed.sync import connect

    def use(opening: Any) -> int:
        with opening as ws:
            for message in ("hé", b"\x00" * 100_000):
                ws.send(message)
                assert ws.recv(timeout=10) == message
        code: int = ws.close_code
        return code

    async with serve(setting) as server:
        assert await asyncio.to_thread(lambda: use(connect(uri(server)))) == 1000
        assert await asyncio.to_thread(lambda: use(websockets_sync_connect(uri(server), proxy=None))) == 1000


async def test_fragments_in(setting: Setting) -> None:
    """With a ping between them, which is answered at once."""
    async with serve(setting) as server:
        with await Raw.open(server) as raw:
            await raw.send(masked(TEXT, "é".encode()[:1], fin=False))
            await raw.send(masked(PING, b"now"))
            assert await raw.frame() == Frame(PONG, b"now", masked=False)
            await raw.send(masked(CONT, "é".encode()[1:], fin=False) + masked(CONT, b"!"))
            assert await raw.frame() == Frame(TEXT, "é!".encode(), masked=False)


async def test_fragments_out(setting: Setting) -> None:
    async def handler(ws: Any) -> None:
        fragments = [fragment async for fragment in ws.recv_streaming()]
        await ws.send(fragments)

    async with serve(setting, handler, compression=None) as server:
        async with dial(uri(server)) as ws:
            await ws.send(["a", "b", "c"])
            assert "".join([fragment async for fragment in ws.recv_streaming()]) == "abc"
        with await Raw.open(server) as raw:
            await raw.send(masked(TEXT, b"a", fin=False) + masked(CONT, b"b"))
            frames, end = await raw.until_close()
            assert b"".join(frame.payload for frame in frames) == b"ab"
            assert [frame.opcode for frame in frames] == [TEXT] + [CONT] * (len(frames) - 1)
            assert len(frames) > 1
            assert end == Close(1000)


@pytest.mark.parametrize("bits", [9, 15])
async def test_compressed_by_other_windows(setting: Setting, bits: int) -> None:
    """Hundreds of messages that refer to earlier ones, both ways."""
    from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory

    offer = ClientPerMessageDeflateFactory(server_max_window_bits=bits, client_max_window_bits=bits)
    texts = [f"{number % 7} the quick brown fox {number}" * (number % 30) for number in range(300)]
    async with serve(setting) as server, dial(uri(server), compression=None, extensions=[offer]) as ws:
        assert len(ws.protocol.extensions) == 1
        for text in texts:
            await ws.send(text)
        assert [await ws.recv() for _ in texts] == texts


async def test_frames_behind_the_request(setting: Setting) -> None:
    """Frames may be in the same packet as the request."""
    async with serve(setting) as server:
        with await Raw.connect(server) as raw:
            await raw.send(request() + masked(TEXT, b"1") + masked(TEXT, b"2") + masked(8, close(1000)[2:]))
            assert (await raw.head()).status == 101
            frames, end = await raw.until_close()
            assert [frame.payload for frame in frames] == [b"1", b"2"]
            assert end == Close(1000)
            assert await raw.rest() == b""


async def test_unmasked_frame(setting: Setting) -> None:
    async with serve(setting) as server:
        with await Raw.open(server) as raw:
            await raw.send(b"\x81\x01a")
            frames, end = await raw.until_close()
            assert frames == []
            assert end is not None
            assert end.code == 1002


@pytest.mark.no_leaks
async def test_many_connections(setting: Setting, client: Connect) -> None:
    arrived: list[int] = []

    async def use(server: Any, number: int, go: asyncio.Event) -> None:
        async with client(uri(server, f"/{number}")) as ws:
            for turn in range(3):
                await ws.send(f"{number} {turn}")
                assert await ws.recv() == f"{number} {turn}"
            arrived.append(number)
            await asyncio.wait_for(go.wait(), 15)

    go = asyncio.Event()
    async with serve(setting) as server:
        users = [asyncio.ensure_future(use(server, number, go)) for number in range(100)]
        await soon(lambda: len(arrived) == 100, 15)
        connections = server.connections
        assert {ws.request.path for ws in connections} == {f"/{number}" for number in range(100)}
        assert len({ws.id for ws in connections}) == 100
        go.set()
        await asyncio.gather(*users)
        await soon(lambda: server.connections == set())


async def test_attributes(setting: Setting) -> None:
    seen: list[Any] = []

    async def handler(ws: Any) -> None:
        seen.append(ws)
        assert ws.state.name == "OPEN"
        assert ws.request.path == "/path?query=1"
        assert ws.request.headers["X-Mine"] == "yes"
        assert ws.response.status_code == 101
        assert ws.response.headers["Upgrade"] == "websocket"
        assert ws.subprotocol is None
        assert isinstance(ws.id, uuid.UUID)
        assert ws.logger is logging.getLogger(LOGGER)
        await ws.send(repr((ws.local_address, ws.remote_address)))

    async with serve(setting, handler) as server:
        with await Raw.open(server, "/path?query=1", "X-Mine: yes") as raw:
            own = raw.sock.getsockname(), raw.sock.getpeername()
            assert (await raw.frame()).payload.decode() == repr(own[::-1])
            assert (await raw.until_close())[1] == Close(1000)
        assert seen[0].server is server


# The end of a handler


async def test_handler_returns(setting: Setting, client: Connect, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(ws: Any) -> None:
        await ws.send("bye")

    async with serve(setting, handler) as server, client(uri(server)) as ws:
        assert await ws.recv() == "bye"
        with pytest.raises(Exception, match="1000") as raised:
            await ws.recv()
        assert type(raised.value).__name__ == "ConnectionClosedOK"
        assert ws.close_code == 1000
    assert logged(caplog) == []


async def test_handler_raises(setting: Setting, client: Connect, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(ws: Any) -> None:
        raise ZeroDivisionError("mine")

    async with serve(setting, handler) as server, client(uri(server)) as ws:
        with pytest.raises(Exception, match="1011"):
            await ws.recv()
        assert ws.close_code == 1011
    [record] = [record for record in caplog.records if record.name == LOGGER]
    assert (record.levelname, *unnamed([record.getMessage()])) == ("ERROR", "connection handler failed")
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "mine"


async def test_handler_is_no_coroutine_function(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    async with serve(setting, lambda ws: 1) as server:  # type: ignore[arg-type,return-value]
        with await Raw.open(server) as raw:
            assert (await raw.until_close())[1] == Close(1011)
    assert unnamed(logged(caplog)) == ["connection handler failed"]


@pytest.mark.parametrize("how", ["task", "raise"])
@pytest.mark.no_leaks
async def test_handler_is_cancelled(setting: Setting, caplog: pytest.LogCaptureFixture, how: str) -> None:
    """The connection is closed, and nothing is reported."""
    tasks: list[Any] = []

    async def handler(ws: Any) -> None:
        if how == "raise":
            raise asyncio.CancelledError
        tasks.append(asyncio.current_task())
        await ws.recv()

    async with serve(setting, handler) as server:
        with await Raw.open(server) as raw:
            if how == "task":
                await soon(lambda: tasks)
                tasks[0].cancel()
            assert (await raw.until_close())[1] == Close(1011)
            await raw.send(masked(8, close(1011)[2:]))
            assert await raw.rest() == b""
        await soon(lambda: server.connections == set())
    assert logged(caplog) == []


@pytest.mark.parametrize("how", ["reset", "eof", "close"])
@pytest.mark.parametrize("doing", ["recv", "send", "idle", "iterate"])
@pytest.mark.no_leaks
@pytest.mark.within(8)
async def test_connection_ends_inside_the_handler(
    setting: Setting, caplog: pytest.LogCaptureFixture, how: str, doing: str
) -> None:
    """The handler gets an exception; no error is logged, because this is normal."""
    codes: list[int] = []

    async def handler(ws: Any) -> None:
        try:
            if doing == "recv":
                await ws.recv()
            elif doing == "idle":
                await ws.wait_closed()
            elif doing == "iterate":
                await echo(ws)
            else:
                while True:
                    await ws.send(b"x" * 10_000)
        finally:
            codes.append(ws.close_code)

    async with serve(setting, handler, close_timeout=0.2) as server:
        raw = await Raw.open(server)
        if how == "close":
            await raw.send(masked(8, close(4001, "mine")[2:]))
            await raw.until_close()
        if how == "reset":
            raw.reset()
        else:
            raw.close()
        await soon(lambda: codes)
        await soon(lambda: server.connections == set())
    assert len(codes) == 1
    if doing != "send":
        assert codes == [4001 if how == "close" else 1006]
    assert logged(caplog) == []


async def test_handler_closes(setting: Setting) -> None:
    done: list[bool] = []

    async def handler(ws: Any) -> None:
        await ws.close(4000, "mine")
        with pytest.raises(exceptions.ConnectionClosed):
            await ws.send("x")
        done.append(True)

    async with serve(setting, handler) as server:
        with await Raw.open(server) as raw:
            assert (await raw.until_close())[1] == Close(4000, "mine")
            await raw.send(masked(8, close(4000, "mine")[2:]))
            assert await raw.rest() == b""
    assert done == [True]


async def test_handler_outlives_the_connection(setting: Setting) -> None:
    """``wait_closed`` of the server waits for it."""
    steps: list[str] = []

    async def handler(ws: Any) -> None:
        await ws.wait_closed()
        await asyncio.sleep(0.05)
        steps.append("handler")

    async with serve(setting, handler) as server:
        (await Raw.open(server)).close()
        await soon(lambda: server.connections == set())
    steps.append("server")
    assert steps == ["handler", "server"]


async def test_messages_before_the_end(setting: Setting) -> None:
    """Messages that were sent before a close frame can be received later."""
    received: list[Any] = []

    async def handler(ws: Any) -> None:
        await ws.wait_closed()
        received.extend([message async for message in ws])

    async with serve(setting, handler) as server:
        with await Raw.open(server) as raw:
            await raw.send(b"".join(masked(TEXT, b"%d" % n) for n in range(5)) + masked(8, close(1001)[2:]))
            assert (await raw.until_close())[1] == Close(1001)
        await soon(lambda: len(received) == 5)
    assert received == ["0", "1", "2", "3", "4"]


async def test_no_references(setting: Setting) -> None:
    """The server drops a connection that is over."""
    references: list[Any] = []

    async def handler(ws: Any) -> None:
        references.append(weakref.ref(ws))

    async with serve(setting, handler) as server:
        for _ in range(5):
            with await Raw.open(server) as raw:
                await raw.until_close()
        await soon(lambda: server.connections == set())
        await soon(lambda: not server._tasks)
        await spin()
        gc.collect()
        assert [reference() for reference in references] == [None] * 5


@pytest.mark.no_leaks
async def test_idle_connections_hold_nothing_up(setting: Setting) -> None:
    async with serve(setting, idle) as server:
        raws = [await Raw.open(server) for _ in range(20)]
        assert len(server.connections) == 20
        for raw in raws:
            raw.close()
        await soon(lambda: server.connections == set())
