"""Opening connections: the forms of ``connect``, attributes of the new connection, failures."""

from __future__ import annotations

import asyncio
import base64
import contextvars
import socket
from collections.abc import Callable
from typing import Any

import pytest

from support.asyncio_tools import Run, soon
from support.checks import no_leaks
from support.connecting import Connect, echo, fails
from support.frames import Close, close, text
from support.replacing import REPLACEMENTS, replace
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import exceptions

BASIC = "Basic " + base64.b64encode(b"hello:iloveyou:)").decode()


# Forms of ``connect``


@pytest.mark.no_leaks
async def test_await(server: WebSocketsServer, connect: Connect) -> None:
    ws = await connect(server.uri)
    assert ws.state.name == "OPEN"
    await echo(ws)
    await ws.close()
    assert ws.state.name == "CLOSED"


@pytest.mark.wirespeed_only("uvloop connects by itself, without a socket of Python's")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("what", REPLACEMENTS)
async def test_replaced_sockets_are_used(
    server: WebSocketsServer, connect: Connect, monkeypatch: pytest.MonkeyPatch, what: str, host: str
) -> None:
    """A program that replaces sockets to use a proxy has no connection that bypasses it."""
    addresses: list[Any] = []
    # The loop uses its own sockets.
    addresses.append(replace(monkeypatch, what))
    async with connect(f"ws://{host}:{server.port}", proxy=None) as ws:
        await echo(ws)
    assert ("127.0.0.1", server.port) in addresses[0]


async def test_context_manager(scripted: Scripted, connect: Connect) -> None:
    server = scripted(accept_and_echo_close)
    async with connect(server.uri) as ws:
        assert ws.state.name == "OPEN"
    assert (ws.state.name, ws.close_code) == ("CLOSED", 1000)
    assert await server.wait_result() == Close(1000)


def accept_and_echo_close(wire: Wire) -> Close | None:
    wire.accept()
    received = wire.read_until_close()[1]
    if received is not None:
        wire.send(close(received.code, received.reason))
    return received


def test_context_manager_left_by_an_exception(scripted: Scripted, run: Run, connect: Connect) -> None:
    server = scripted(accept_and_echo_close)

    async def main() -> None:
        async with connect(server.uri):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(main)
    assert server.result == Close(1011)


async def test_context_manager_left_by_cancellation(scripted: Scripted, connect: Connect) -> None:
    server = scripted(accept_and_echo_close)

    async def stay() -> None:
        async with connect(server.uri):
            entered.set()
            await asyncio.sleep(60)

    entered = asyncio.Event()
    task = asyncio.ensure_future(stay())
    await entered.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert await server.wait_result() == Close(1011)


async def test_not_reentrant(server: WebSocketsServer, connect: Connect) -> None:
    connecting = connect(server.uri)
    async with connecting:
        with pytest.raises(RuntimeError, match="reentrant"):
            async with connecting:
                pass


@pytest.mark.wirespeed_only("websockets notices it only once the first is open")
@pytest.mark.no_leaks
async def test_not_reentrant_while_opening(server: WebSocketsServer, connect: Connect) -> None:
    connecting = connect(server.uri + "/slow?seconds=0.2")

    async def use() -> None:
        async with connecting:
            pass

    results = await asyncio.gather(use(), use(), return_exceptions=True)
    assert [type(result) for result in results] == [type(None), RuntimeError]


@pytest.mark.no_leaks
async def test_connect_is_reusable(server: WebSocketsServer, connect: Connect) -> None:
    connecting = connect(server.uri)
    for _ in range(2):
        async with connecting as ws:
            await echo(ws)
    with pytest.raises(ZeroDivisionError):
        async with connecting:
            raise ZeroDivisionError
    ws = await connecting
    await echo(ws)
    await ws.close()


@pytest.mark.no_leaks
async def test_connect_is_reusable_after_a_failure(connect: Connect, closed_port: int) -> None:
    connecting = connect(f"ws://127.0.0.1:{closed_port}/")
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            async with connecting:
                pass


def test_never_awaited(connect: Connect) -> None:
    """An unawaited ``connect`` opens nothing and does not warn."""
    with no_leaks():
        connect("ws://127.0.0.1:1/")


@pytest.mark.parametrize("how", ["gather", "wait_for", "ensure_future"])
@pytest.mark.no_leaks
async def test_functions_that_take_awaitables(server: WebSocketsServer, connect: Connect, how: str) -> None:
    connecting = connect(server.uri)
    if how == "gather":
        connections = list(await asyncio.gather(connecting, connect(server.uri)))
    elif how == "wait_for":
        connections = [await asyncio.wait_for(connecting, 5)]
    else:
        connections = [await asyncio.ensure_future(connecting)]
    for ws in connections:
        await echo(ws)
        await ws.close()


@pytest.mark.no_leaks
async def test_many_at_once(server: WebSocketsServer, connect: Connect) -> None:
    async def use(number: int) -> None:
        async with connect(server.uri) as ws:
            await echo(ws, str(number))

    await asyncio.gather(*map(use, range(30)))


@pytest.mark.loop(debug=True)
async def test_debug_mode(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        await echo(ws)


async def test_task_and_context_stay(server: WebSocketsServer, connect: Connect) -> None:
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(1)
    task = asyncio.current_task()
    async with connect(server.uri):
        assert asyncio.current_task() is task
        assert variable.get() == 1
    assert asyncio.current_task() is task


# Attributes of the connection


async def test_attributes(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri + "/headers", additional_headers={"X-Spam": "eggs"}) as ws:
        assert ws.request.path == "/headers"
        assert ws.request.headers["X-Spam"] == "eggs"
        assert ws.response.status_code == 101
        assert ws.remote_address[:2] == ("127.0.0.1", server.port)
        assert ws.local_address[0] == "127.0.0.1"
        seen = [message async for message in ws]
    assert "X-Spam: eggs" in seen
    assert f"Host: 127.0.0.1:{server.port}" in seen


@pytest.mark.wirespeed_only("ours")
async def test_io_backend(server: WebSocketsServer, connect: Connect, setting: Any) -> None:
    async with connect(server.uri) as ws:
        assert ws.io_backend == setting.io_backend


async def test_name(server: WebSocketsServer, connect: Connect) -> None:
    """Both ::1 and 127.0.0.1 are tried where the name has both."""
    async with connect(f"ws://localhost:{server.port}/") as ws:
        assert ws.remote_address[:2] == ("127.0.0.1", server.port)
        assert ws.request.headers["Host"] == f"localhost:{server.port}"


async def test_host(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(f"ws://example.com:{server.port}/headers", host="127.0.0.1") as ws:
        assert f"Host: example.com:{server.port}" in [message async for message in ws]


@pytest.mark.wirespeed_only("ours")
async def test_port_number(server: WebSocketsServer) -> None:
    from support.asyncio_subject import connect

    async with connect("ws://example.com/", host="localhost", port=server.port, family=socket.AF_INET) as ws:
        await echo(ws)


async def test_local_addr(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri + "/peer", local_addr=("127.0.0.5", 0)) as ws:
        assert (await ws.recv()).startswith("127.0.0.5 ")


# Failures


def test_refused(run: Run, connect: Connect, closed_port: int) -> None:
    fails(run, ConnectionRefusedError, lambda: connect(f"ws://127.0.0.1:{closed_port}/"))


def test_unknown_host(run: Run, connect: Connect) -> None:
    fails(run, OSError, lambda: connect("ws://host.invalid/"))


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_rejection(server: WebSocketsServer, run: Run, connect: Connect, status: int) -> None:
    exc = fails(run, exceptions.InvalidStatus, lambda: connect(server.uri + f"/status/{status}?retry=7"))
    assert str(exc).startswith(f"server rejected WebSocket connection: HTTP {status}")
    response = exc.response  # type: ignore[attr-defined]
    assert (response.status_code, response.headers["Retry-After"]) == (status, "7")
    assert response.body.endswith(b"ask again\n")


@pytest.mark.parametrize("end", [Wire.close, Wire.reset], ids=["close", "reset"])
@pytest.mark.parametrize(
    "after",
    [
        pytest.param(0, marks=pytest.mark.wirespeed_only("websockets may raise ConnectionClosedError from connect")),
        1,
        40,
    ],
    ids=["nothing", "request", "half"],
)
def test_server_ends_during_handshake(
    scripted: Scripted, run: Run, connect: Connect, after: int, end: Callable[..., Any]
) -> None:
    def script(wire: Wire) -> None:
        if after:
            wire.read_request()
            wire.send(wire.accept_bytes()[: after - 1])
        end(wire)

    server = scripted(script)
    exc = fails(run, (exceptions.InvalidMessage, OSError), lambda: connect(server.uri))
    assert isinstance(exc, OSError) or isinstance(exc.__cause__, (EOFError, OSError))


@pytest.mark.wirespeed_only("websockets does not read the answer then")
def test_refusal_without_reading_the_request(scripted: Scripted, run: Run, connect: Connect) -> None:
    """The answer counts, even if the request could not be sent."""

    def script(wire: Wire) -> None:
        wire.send(b"HTTP/1.1 431 Too large\r\nContent-Length: 0\r\n\r\n")
        wire.half_close()
        wire.read_to_end()

    server = scripted(script)
    headers = [("X-Spam", "x" * 60_000)] * 60
    exc = fails(run, exceptions.InvalidStatus, lambda: connect(server.uri, additional_headers=headers))
    assert exc.response.status_code == 431  # type: ignore[attr-defined]


# After the opening


async def test_messages_that_came_with_the_answer(scripted: Scripted, connect: Connect) -> None:
    server = scripted(lambda wire: wire.accept(then=text("one") + text("two") + close(1000, "bye")))
    async with connect(server.uri) as ws:
        assert [message async for message in ws] == ["one", "two"]
    assert ws.close_reason == "bye"


@pytest.mark.no_leaks
async def test_connection_that_is_lost_at_once(scripted: Scripted, connect: Connect) -> None:
    server = scripted(lambda wire: wire.accept())
    async with connect(server.uri) as ws:
        with pytest.raises(exceptions.ConnectionClosedError):
            await ws.recv()
        await soon(lambda: ws.state.name == "CLOSED")
