"""The closing handshake, and connections that end without one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.asyncio_tools import Run
from support.checks import as_close, no_leaks, within
from support.connecting import Connect
from support.frames import CONT, PONG, Close, Frame, close, frame, ping, text
from support.scripted import Scripted, ScriptedServer, Wire
from support.servers import WebSocketsServer
from support.subject import exceptions


def reply_to_close(wire: Wire) -> tuple[list[Frame], Close | None]:
    """Accepts, reads until the close frame, echoes it, ends."""
    wire.accept()
    frames, received = wire.read_until_close()
    if received is not None:
        wire.send(close() if received.code == 1005 else close(received.code, received.reason))
    return frames, received


# By the client


async def test_close(scripted: Scripted, connect: Connect) -> None:
    server = scripted(reply_to_close)
    ws = await connect(server.uri)
    await ws.close()
    assert (ws.close_code, ws.close_reason) == (1000, "")
    assert ws.state.name == "CLOSED"
    assert await server.wait_result() == ([], Close(1000))


@pytest.mark.parametrize(
    ("code", "reason"),
    [(1000, "bye"), (1001, ""), (1003, "é" * 61), (1008, ""), (1011, "x" * 123), (3000, "library"), (4999, "mine")],
)
async def test_close_with_code_and_reason(scripted: Scripted, connect: Connect, code: int, reason: str) -> None:
    server = scripted(reply_to_close)
    ws = await connect(server.uri)
    await ws.close(code, reason)
    assert (ws.close_code, ws.close_reason) == (code, reason)
    assert await server.wait_result() == ([], Close(code, reason))


async def test_close_by_keyword(scripted: Scripted, connect: Connect) -> None:
    server = scripted(reply_to_close)
    ws = await connect(server.uri)
    await ws.close(code=1001, reason="moving")
    assert await server.wait_result() == ([], Close(1001, "moving"))


async def test_close_is_idempotent(scripted: Scripted, connect: Connect) -> None:
    server = scripted(reply_to_close)
    ws = await connect(server.uri)
    await ws.close(1001)
    await ws.close(1000)
    assert ws.close_code == 1001
    assert await server.wait_result() == ([], Close(1001))


@pytest.mark.parametrize("code", [0, 999, 1004, 1006, 1015, 2000, 5000, 70000, -1])
async def test_close_with_bad_code(server: WebSocketsServer, connect: Connect, code: int) -> None:
    async with connect(server.uri) as ws:
        with pytest.raises((exceptions.ProtocolError, ValueError)):
            await ws.close(code)
        await ws.send("still open")
        assert await ws.recv() == "still open"


async def test_close_with_long_reason(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        with pytest.raises((exceptions.ProtocolError, ValueError)):
            await ws.close(1000, "x" * 124)
        await ws.send("still open")
        assert await ws.recv() == "still open"


@pytest.mark.parametrize(("exception", "code"), [(None, 1000), (ZeroDivisionError, 1011)], ids=["quiet", "exception"])
def test_context_manager_closes(
    scripted: Scripted, run: Run, connect: Connect, exception: type[Exception] | None, code: int
) -> None:
    server = scripted(reply_to_close)

    async def main() -> None:
        async with connect(server.uri) as ws:
            await ws.send("x")
            if exception is not None:
                raise exception

    if exception is None:
        run(main)
    else:
        with pytest.raises(exception):
            run(main)
    assert server.result[1] == Close(code)


async def test_calls_after_close(server: WebSocketsServer, connect: Connect) -> None:
    ws = await connect(server.uri)
    await ws.close()
    for call in (ws.recv, lambda: ws.send("x"), ws.ping, ws.pong, lambda: ws.send(["a", "b"])):
        with pytest.raises(exceptions.ConnectionClosedOK) as raised:
            await call()
        assert as_close(raised.value.sent) == as_close(raised.value.rcvd) == Close(1000)
        assert raised.value.rcvd_then_sent is False
    assert str(raised.value) == "sent 1000 (OK); then received 1000 (OK)"
    assert [message async for message in ws] == []
    await ws.wait_closed()


@pytest.mark.wirespeed_only("ours")
async def test_more_calls_after_close(server: WebSocketsServer, connect: Connect) -> None:
    ws = await connect(server.uri)
    await ws.close()
    for call in (ws.recv_many, lambda: ws.send_many(["a"]), ws.flush):
        with pytest.raises(exceptions.ConnectionClosedOK):
            await call()
    for now in (ws.recv_nowait, lambda: ws.send_nowait("x")):
        with pytest.raises(exceptions.ConnectionClosedOK):
            now()
    ws.abort()
    assert ws.fileno() == -1


async def test_messages_received_before_close_are_delivered_after_it(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("first") + text("second"))
        wire.read_until_close()
        wire.send(close(1000))

    server = scripted(script)
    ws = await connect(server.uri)
    assert await ws.recv() == "first"
    await ws.close()
    assert await ws.recv() == "second"
    with pytest.raises(exceptions.ConnectionClosedOK):
        await ws.recv()


async def test_message_crossing_the_close_frame(scripted: Scripted, connect: Connect) -> None:
    """Messages that the server sent before it saw our close frame do not disturb the closing handshake."""

    def script(wire: Wire) -> Any:
        wire.accept()
        received = wire.read_until_close()
        wire.send(text("crossing") + ping(b"crossing") + close(1000))
        return received

    server = scripted(script)
    ws = await connect(server.uri)
    await ws.close()
    assert ws.close_code == 1000
    assert await server.wait_result() == ([], Close(1000))


# By the server


@pytest.mark.parametrize(
    ("code", "reason", "ok"),
    [
        (1000, "", True),
        (1000, "done", True),
        (1001, "away", True),
        (1002, "", False),
        (1008, "no", False),
        (1011, "", False),
        (1014, "", False),
        (3000, "", False),
        (4000, "€" * 41, False),
        (4999, "", False),
    ],
)
async def test_closed_by_the_server(scripted: Scripted, connect: Connect, code: int, reason: str, ok: bool) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=text("last") + close(code, reason))
        return wire.read_until_close()

    server = scripted(script)
    ws = await connect(server.uri)
    assert await ws.recv() == "last"
    with pytest.raises(exceptions.ConnectionClosedOK if ok else exceptions.ConnectionClosedError) as raised:
        await ws.recv()
    assert as_close(raised.value.rcvd) == as_close(raised.value.sent) == Close(code, reason)
    assert raised.value.rcvd_then_sent is True
    assert (ws.close_code, ws.close_reason) == (code, reason)
    await ws.close()
    assert await server.wait_result() == ([], Close(code, reason))


async def test_closed_by_the_server_without_code(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=close())
        return wire.read_until_close()

    server = scripted(script)
    ws = await connect(server.uri)
    with pytest.raises(exceptions.ConnectionClosedOK) as raised:
        await ws.recv()
    assert raised.value.rcvd is not None
    assert raised.value.rcvd.code == 1005
    assert (ws.close_code, ws.close_reason) == (1005, "")
    await ws.close()
    assert await server.wait_result() == ([], Close(1005)), (
        "RFC 6455 section 5.5.1: the reply echoes, so it is empty too"
    )


@pytest.mark.parametrize("code", [1000, 1011, 4000])
async def test_closed_by_a_real_server(server: WebSocketsServer, connect: Connect, code: int) -> None:
    ws = await connect(server.uri + f"/close?code={code}&reason=because")
    with pytest.raises(exceptions.ConnectionClosed) as raised:
        await ws.recv()
    assert as_close(raised.value.rcvd) == Close(code, "because")
    await ws.close()


async def test_closed_by_the_server_without_a_receiver(scripted: Scripted, connect: Connect) -> None:
    """The close frame is answered, and the socket closed, without any call of the application."""
    server = scripted(lambda wire: (wire.accept(then=close(1001, "restart")), wire.read_until_close())[1])
    ws = await connect(server.uri, ping_interval=None)
    with within(5):
        await ws.wait_closed()
    assert ws.state.name == "CLOSED"
    assert (ws.close_code, ws.close_reason) == (1001, "restart")
    assert await server.wait_result() == ([], Close(1001, "restart"))


async def test_data_after_the_close_frame_is_ignored(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=close(1000) + text("too late") + ping(b"too late") + b"\xff\xff")
        return wire.read_until_close()

    server = scripted(script)
    ws = await connect(server.uri)
    with pytest.raises(exceptions.ConnectionClosedOK):
        await ws.recv()
    await ws.close()
    assert await server.wait_result() == ([], Close(1000))


@pytest.mark.websockets_differs("treats it as a protocol error: Autobahn 7.1.5")
async def test_close_frame_inside_a_fragmented_message(scripted: Scripted, connect: Connect) -> None:
    """Section 5.4: a control frame may be injected in the middle of a fragmented message."""

    def script(wire: Wire) -> Any:
        wire.accept(then=text("begun", fin=False) + close(1000) + frame(CONT, b"ended"))
        return wire.read_until_close()

    server = scripted(script)
    ws = await connect(server.uri)
    with pytest.raises(exceptions.ConnectionClosedOK):
        await ws.recv()
    await ws.close()
    assert await server.wait_result() == ([], Close(1000))


async def test_send_after_the_server_closed(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=close(1001, "restart"))
        return wire.read_until_close()

    server = scripted(script)
    ws = await connect(server.uri)
    with pytest.raises(exceptions.ConnectionClosedOK):
        await ws.recv()
    with pytest.raises(exceptions.ConnectionClosedOK) as raised:
        await ws.send("x")
    assert as_close(raised.value.rcvd) == Close(1001, "restart")
    await ws.close()
    assert (await server.wait_result())[0] == []


async def test_send_notices_the_close_frame_of_the_server(scripted: Scripted, connect: Connect) -> None:
    """An application that only sends gets an exception with the server's reason."""

    def script(wire: Wire) -> None:
        wire.accept(then=close(1013, "try again later"))
        wire.read_until_close()

    server = scripted(script)
    ws = await connect(server.uri, close_timeout=5)
    with pytest.raises(exceptions.ConnectionClosedError) as raised, within(8):
        while True:
            await ws.send(bytes(1000))
            await asyncio.sleep(0)
    assert as_close(raised.value.rcvd) == Close(1013, "try again later")
    await ws.close()


async def test_both_close_at_once(scripted: Scripted, connect: Connect) -> None:
    """The server's close frame is on its way when the client sends its own."""

    def script(wire: Wire) -> Any:
        wire.accept()
        wire.read_frame()
        wire.send(close(1001, "server"))
        server.reached.set()
        return wire.read_until_close()

    server = scripted(script)
    ws = await connect(server.uri)
    await ws.send("x")
    server.wait_reached()  # the loop does not turn meanwhile
    await ws.close(1000, "client")
    assert ws.state.name == "CLOSED"
    with pytest.raises(exceptions.ConnectionClosedOK) as raised:
        await ws.recv()
    assert as_close(raised.value.rcvd) == Close(1001, "server")
    assert ws.close_code == 1001
    sent = as_close(raised.value.sent)
    # The first frame decides; each order is a clean close.
    assert (await server.wait_result())[1] == sent
    assert sent in (Close(1000, "client"), Close(1001, "server"))


async def test_pings_are_answered_before_the_close(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=ping(b"a") + ping(b"b") + close(1000))
        return wire.read_until_close()

    server = scripted(script)
    ws = await connect(server.uri)
    with pytest.raises(exceptions.ConnectionClosedOK):
        await ws.recv()
    await ws.close()
    assert await server.wait_result() == ([Frame(PONG, b"a"), Frame(PONG, b"b")], Close(1000))


def test_socket_is_closed(run: Run, connect: Connect) -> None:
    """The descriptor is closed when close returns, not at a later collection."""

    async def main(uri: str) -> None:
        ws = await connect(uri)
        await ws.close()
        assert ws.state.name == "CLOSED"

    with no_leaks(), ScriptedServer(reply_to_close) as server:
        run(lambda: main(server.uri))


async def test_close_without_close_timeout(scripted: Scripted, connect: Connect) -> None:
    server = scripted(reply_to_close)
    ws = await connect(server.uri, close_timeout=None)
    with within(5):
        await ws.close()
    assert ws.close_code == 1000
