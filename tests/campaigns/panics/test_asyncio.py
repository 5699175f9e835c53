"""A panic in a connection on an event loop: calls that wait on it raise, and other connections are unaffected."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from websockets.asyncio.client import connect as foreign

import wirespeed
from support.asyncio_tools import SETTINGS, Setting, run, spin
from support.certificates import Certificates
from support.servers import WebSocketsServer
from support.serving import serve
from wirespeed import ClientConnection, ConnectionClosed, ConnectionClosedError, Listener, State

from .tools import PANICS, Failpoints, no_descriptors

pytestmark = [
    pytest.mark.wirespeed_only("the panics are ours"),
    pytest.mark.parametrize("setting", SETTINGS, ids=str),
]

# Long enough to be compressed.
TEXT = "a message " * 500

# Longer than any wait here.
MOST = 20.0


def dial(setting: Setting, uri: str, **options: Any) -> Any:
    options = {"proxy": None, "ping_interval": None, "io_backend": setting.io_backend, **options}
    return wirespeed.connect(uri, **options)


async def exchange(connection: ClientConnection) -> None:
    await connection.send(TEXT)
    assert await asyncio.wait_for(connection.recv(), MOST) == TEXT


async def attempt(call: Callable[[], Awaitable[Any]]) -> BaseException | None:
    """Makes a call that may panic where it is made or where it is awaited; returns the exception."""
    try:
        await asyncio.wait_for(wrapped(call), MOST)
    except PANICS as exc:
        return exc
    return None


async def wrapped(call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


async def assert_over(connection: ClientConnection) -> None:
    await asyncio.wait_for(connection.wait_closed(), MOST)
    for call in (connection.recv, lambda: connection.send("late"), connection.ping, connection.flush):
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(call(), MOST)
    assert connection.state is State.CLOSED


async def counted(server: WebSocketsServer, count: int) -> None:
    async def wait() -> None:
        while server.connections() != count:
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), MOST)


def with_another(
    setting: Setting, server: WebSocketsServer, test: Callable[[list[dict[str, Any]]], Awaitable[None]], **options: Any
) -> None:
    """Runs a test beside a connection that must be unaffected. The test handles the reports of the loop."""

    async def main() -> None:
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        async with dial(setting, server.uri, **options) as other:
            there = server.connections()
            waiting = asyncio.ensure_future(other.recv())
            await test(reported)
            await counted(server, there)
            await other.send("still here")
            assert await asyncio.wait_for(waiting, MOST) == "still here"

    with no_descriptors():
        run(main, loop=setting.loop, timeout=60)


@pytest.mark.parametrize(
    "place",
    [
        "protocol.receive",
        "protocol.inflate",
        "protocol.send",
        "protocol.deflate",
        "driver.read",
        "driver.write",
        "python.step",
        "python.readable",
        "python.message",
    ],
)
def test_exchanging(place: str, setting: Setting, failpoints: Failpoints, server: WebSocketsServer) -> None:
    """A task waits for a message, another sends one: both end."""
    if setting.io_backend == "transport" and place in {"python.readable", "driver.read", "driver.write"}:
        pytest.skip("a transport reads and writes for the connection")

    async def test(_: list[dict[str, Any]]) -> None:
        connection = await dial(setting, server.uri)
        await exchange(connection)
        receiving = [asyncio.ensure_future(connection.recv()) for _ in range(2)]
        await spin()
        with failpoints.once(place):
            sent = await attempt(lambda: connection.send(TEXT))
            flushed = await attempt(connection.flush)
            done, pending = await asyncio.wait(receiving, timeout=MOST)
        assert not pending, (sent, flushed)
        outcomes = [task.exception() for task in done]
        # One of them may have got messages received before the panic.
        assert any(isinstance(outcome, PANICS) for outcome in outcomes)
        assert all(outcome is None or isinstance(outcome, PANICS) for outcome in outcomes)
        await assert_over(connection)

    with_another(setting, server, test)


def test_cause_is_reported(setting: Setting, failpoints: Failpoints, server: WebSocketsServer) -> None:
    async def test(_: list[dict[str, Any]]) -> None:
        connection = await dial(setting, server.uri)
        receiving = asyncio.ensure_future(connection.recv())
        await spin()
        with failpoints.once("protocol.send"), pytest.raises(RuntimeError, match="panic"):
            connection.send_nowait("x")
        with pytest.raises(ConnectionClosedError) as raised:
            await asyncio.wait_for(receiving, MOST)
        assert "panic" in str(raised.value.__cause__)
        await assert_over(connection)

    with_another(setting, server, test)


@pytest.mark.parametrize("call", ["ping", "pong", "close", "send_many", "fragments"])
def test_calls(call: str, setting: Setting, failpoints: Failpoints, server: WebSocketsServer) -> None:
    calls: dict[str, Callable[[ClientConnection], Awaitable[Any]]] = {
        "ping": lambda connection: connection.ping(),
        "pong": lambda connection: connection.pong(),
        "close": lambda connection: connection.close(),
        "send_many": lambda connection: connection.send_many(["x"] * 3),
        "fragments": lambda connection: connection.send(iter(["x", "y"])),
    }

    async def test(_: list[dict[str, Any]]) -> None:
        connection = await dial(setting, server.uri)
        receiving = asyncio.ensure_future(connection.recv())
        await spin()
        with failpoints.once("protocol.send"):
            if call == "close":
                # It ends the connection, in any state.
                await attempt(lambda: calls[call](connection))
            else:
                assert await attempt(lambda: calls[call](connection)) is not None
        done, _pending = await asyncio.wait([receiving], timeout=MOST)
        assert done
        assert isinstance(receiving.exception(), PANICS)
        await assert_over(connection)

    with_another(setting, server, test)


@pytest.mark.parametrize("place", ["python.timer", "driver.deadline"])
def test_time(place: str, setting: Setting, failpoints: Failpoints, server: WebSocketsServer) -> None:
    async def test(reported: list[dict[str, Any]]) -> None:
        connection = await dial(setting, server.uri, ping_interval=0.1)
        receiving = asyncio.ensure_future(connection.recv())
        with failpoints.once(place):
            done, _pending = await asyncio.wait([receiving], timeout=MOST)
        assert done
        assert isinstance(receiving.exception(), PANICS)
        assert "panic" in str(reported[0]["exception"])
        await assert_over(connection)

    with_another(setting, server, test)


@pytest.mark.parametrize("place", ["protocol.close", "driver.closing", "python.settle"])
def test_closing(place: str, setting: Setting, failpoints: Failpoints, server: WebSocketsServer) -> None:
    async def test(_: list[dict[str, Any]]) -> None:
        connection = await dial(setting, server.uri)
        receiving = asyncio.ensure_future(connection.recv())
        await spin()
        with failpoints.once(place):
            await attempt(connection.close)
        done, _pending = await asyncio.wait([receiving], timeout=MOST)
        assert done
        assert isinstance(receiving.exception(), PANICS)
        await assert_over(connection)

    with_another(setting, server, test)


def test_corked(setting: Setting, failpoints: Failpoints, server: WebSocketsServer) -> None:
    """Messages of other connections that leave at the end of the same iteration are flushed."""

    async def test(_: list[dict[str, Any]]) -> None:
        connections = [await dial(setting, server.uri) for _ in range(3)]
        with failpoints.once("python.uncork"):
            for connection in connections:
                for number in range(3):
                    await connection.send(f"{number}")
            outcomes = []
            for connection in connections:
                try:
                    outcomes.append([await asyncio.wait_for(connection.recv(), MOST) for _ in range(3)])
                except PANICS:
                    await assert_over(connection)
        assert outcomes == [["0", "1", "2"]] * 2
        for connection in connections:
            await connection.close()

    with_another(setting, server, test)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_broadcasting(setting: Setting, failpoints: Failpoints, server: WebSocketsServer) -> None:
    async def test(_: list[dict[str, Any]]) -> None:
        connections = [await dial(setting, server.uri) for _ in range(3)]
        with failpoints.once("python.broadcast", passes=1):
            wirespeed.broadcast(connections, TEXT)
        for connection in (connections[0], connections[2]):
            assert await asyncio.wait_for(connection.recv(), MOST) == TEXT
            await connection.close()
        await assert_over(connections[1])

    with_another(setting, server, test)


def test_a_listener(setting: Setting, failpoints: Failpoints, server: WebSocketsServer) -> None:
    class Told(Listener):
        closed: asyncio.Future[int]

        def on_close(self, ws: Any, code: int, reason: str) -> None:
            self.closed.set_result(code)

        def on_message(self, ws: Any, message: Any) -> None:
            pass

    async def test(reported: list[dict[str, Any]]) -> None:
        listener = Told()
        listener.closed = asyncio.get_running_loop().create_future()
        connection = await dial(setting, server.uri, listener=listener)
        with failpoints.once("python.dispatch"):
            await attempt(lambda: connection.send("x"))
            assert await asyncio.wait_for(listener.closed, MOST) == 1006
        assert "panic" in str(reported[0]["exception"])
        await asyncio.wait_for(connection.wait_closed(), MOST)

    with_another(setting, server, test)


@pytest.mark.parametrize("place", ["driver.tls_receive", "driver.tls_send"])
def test_tls(
    place: str, setting: Setting, failpoints: Failpoints, secure_server: WebSocketsServer, certificates: Certificates
) -> None:
    if setting.io_backend == "transport":
        pytest.skip("TLS is the transport's")
    tls = wirespeed.TLS(ca=certificates.ca_file)

    async def test(_: list[dict[str, Any]]) -> None:
        connection = await dial(setting, secure_server.uri, ssl=tls)
        receiving = asyncio.ensure_future(connection.recv())
        await spin()
        with failpoints.once(place):
            await attempt(lambda: connection.send(TEXT))
            done, _pending = await asyncio.wait([receiving], timeout=MOST)
        assert done
        assert isinstance(receiving.exception(), PANICS)
        await assert_over(connection)

    with_another(setting, secure_server, test, ssl=tls)


@pytest.mark.parametrize("place", ["protocol.head", "driver.opening_client"])
def test_connecting(place: str, setting: Setting, failpoints: Failpoints, server: WebSocketsServer) -> None:
    async def test(_: list[dict[str, Any]]) -> None:
        with failpoints.once(place), pytest.raises(PANICS):
            await asyncio.wait_for(dial(setting, server.uri), MOST)

    with_another(setting, server, test)


@pytest.mark.parametrize("place", ["protocol.head", "driver.opening_server", "protocol.receive", "protocol.send"])
def test_serving(place: str, setting: Setting, failpoints: Failpoints, caplog: pytest.LogCaptureFixture) -> None:
    """One client is refused; open connections, and the next one, are served."""

    async def echo(ws: Any) -> None:
        async for message in ws:
            await ws.send(message)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
        async with serve(setting, echo) as server:
            uri = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with foreign(uri, proxy=None) as other:
                with failpoints.once(place), contextlib.suppress(Exception):
                    async with foreign(uri, proxy=None, open_timeout=MOST) as victim:
                        await victim.send("x")
                        await asyncio.wait_for(victim.recv(), MOST)
                async with foreign(uri, proxy=None) as last:
                    for ws in (other, last):
                        await ws.send("y")
                        assert await asyncio.wait_for(ws.recv(), MOST) == "y"

    caplog.set_level(logging.CRITICAL)
    with no_descriptors():
        run(main, loop=setting.loop, timeout=60)
