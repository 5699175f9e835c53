"""Equal code on both packages, as client and as server, on asyncio."""

from __future__ import annotations

import asyncio
import http
import logging
import re
import socket
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets", minversion="17")


async def echo(ws: Any) -> None:
    async for message in ws:
        await ws.send(message)


def uri(server: Any, path: str = "/") -> str:
    return f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}"


def serve(package: Any, handler: Any = echo, **options: Any) -> Any:
    return package.asyncio.server.serve(handler, "127.0.0.1", 0, **options)


async def test_messages(client: Any, server: Any) -> None:
    async with serve(server) as running, client.asyncio.client.connect(uri(running)) as ws:
        for message in ("hello", b"hello", "", b"", "é€𝄞", b"x" * 200_000):
            await ws.send(message)
            assert await ws.recv() == message
        await ws.send(["one ", "two"])
        assert await ws.recv() == "one two"
        await ws.send(b"text", text=True)
        assert await ws.recv() == "text"
        await ws.send("binary", text=False)
        assert await ws.recv() == b"binary"
        await ws.send(bytearray(b"array"))
        assert await ws.recv(decode=True) == "array"

        async def parts() -> Any:
            yield b"a"
            yield memoryview(b"b")

        await ws.send(parts())
        assert [part async for part in ws.recv_streaming()]
        await ws.send([])  # nothing
        await ws.send("end")
        assert await ws.recv(decode=False) == b"end"


async def test_attributes_of_a_client(client: Any, server: Any) -> None:
    async with (
        serve(server, subprotocols=["chat"]) as running,
        client.asyncio.client.connect(
            uri(running, "/path?q=1"),
            subprotocols=["chat", "other"],
            additional_headers={"X-One": "1"},
            origin="https://example.com",
        ) as ws,
    ):
        assert ws.state is client.State.OPEN
        assert ws.protocol.state is client.State.OPEN
        assert ws.subprotocol == ws.protocol.subprotocol == "chat"
        assert isinstance(ws.request, client.Request)
        assert isinstance(ws.request.headers, client.Headers)
        assert ws.request.path == "/path?q=1"
        assert ws.request.headers["x-one"] == "1"
        assert ws.request.headers["Origin"] == "https://example.com"
        assert ws.request.headers["User-Agent"] == client.http11.USER_AGENT
        assert isinstance(ws.response, client.Response)
        assert (ws.response.status_code, ws.response.reason_phrase) == (101, "Switching Protocols")
        assert ws.response.headers["Server"] == server.http11.SERVER
        assert ws.response.headers.get_all("Nothing") == []
        peer = running.sockets[0].getsockname()
        assert ws.remote_address == ws.transport.get_extra_info("peername") == peer
        assert ws.local_address == ws.transport.get_extra_info("sockname")
        assert ws.transport.get_extra_info("ssl_object") is None
        assert ws.transport.get_extra_info("nonsense", 5) == 5
        sock = ws.transport.get_extra_info("socket")
        assert sock.getpeername() == peer
        assert sock.family == socket.AF_INET
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        assert ws.transport.is_closing() is False
        assert isinstance(ws.id, uuid.UUID)
        assert ws.id == ws.protocol.id
        assert isinstance(ws.logger, logging.LoggerAdapter)
        extra: Any = ws.logger.extra
        assert extra["websocket"].id == ws.id
        assert ws.logger.logger.name == "websockets.client"
        assert ws.loop is asyncio.get_running_loop()
        assert (ws.ping_interval, ws.ping_timeout, ws.close_timeout) == (20, 20, 10)
        assert ws.latency == 0.0
        assert (ws.close_code, ws.close_reason) == (None, None)
        assert (ws.protocol.close_code, ws.protocol.close_reason) == (None, None)
        assert [extension.name for extension in ws.protocol.extensions] == ["permessage-deflate"]
        assert (ws.protocol.uri.path, ws.protocol.uri.query) == ("/path", "q=1")
        assert ws.protocol.side is client.protocol.Side.CLIENT
        assert ws.debug is False
        for name in ("open", "closed", "nothing"):
            with pytest.raises(AttributeError):
                getattr(ws, name)
        with pytest.raises(AttributeError):
            _ = ws.protocol.nothing
    assert ws.state is ws.protocol.state is client.State.CLOSED
    assert (ws.close_code, ws.close_reason) == (1000, "")
    assert isinstance(ws.protocol.close_exc, client.exceptions.ConnectionClosedOK)
    assert (ws.protocol.close_sent.code, ws.protocol.close_rcvd.code) == (1000, 1000)
    assert ws.protocol.close_rcvd_then_sent is False
    assert ws.transport.is_closing()
    assert ws.remote_address == peer


async def test_attributes_of_a_server(client: Any, server: Any) -> None:
    seen = asyncio.get_running_loop().create_future()

    async def handler(ws: Any) -> None:
        try:
            assert ws.state is server.State.OPEN
            assert isinstance(ws.request, server.Request)
            assert ws.request.path == "/here"
            assert ws.request.headers["Host"].startswith("127.0.0.1:")
            assert isinstance(ws.response, server.Response)
            assert ws.remote_address[0] == "127.0.0.1"
            assert ws.server is running
            assert ws in running.connections
            assert ws.protocol.side is server.protocol.Side.SERVER
            assert ws.logger.logger.name == "websockets.server"
            assert ws.protocol.origin is None
            seen.set_result(None)
        except BaseException as exc:
            seen.set_exception(exc)
        await ws.wait_closed()

    async with serve(server, handler) as running:
        assert running.is_serving()
        assert running.get_loop() is asyncio.get_running_loop()
        assert running.logger.name == "websockets.server"
        async with client.asyncio.client.connect(uri(running, "/here")):
            await seen
            assert len(running.connections) == 1
    assert running.sockets == ()
    assert not running.is_serving()


CLOSINGS = [
    ((), 1000, "", "ConnectionClosedOK"),
    ((1000, "bye"), 1000, "bye", "ConnectionClosedOK"),
    ((1001,), 1001, "", "ConnectionClosedOK"),
    ((4000, "mine"), 4000, "mine", "ConnectionClosedError"),
    ((1011,), 1011, "", "ConnectionClosedError"),
]


@pytest.mark.parametrize(("arguments", "code", "reason", "name"), CLOSINGS)
async def test_closed_by_the_server(
    client: Any, server: Any, arguments: tuple[Any, ...], code: int, reason: str, name: str
) -> None:
    async def handler(ws: Any) -> None:
        await ws.send("last")
        await ws.close(*arguments)

    async with serve(server, handler) as running:
        ws = await client.asyncio.client.connect(uri(running))
        assert await ws.recv() == "last"
        with pytest.raises(client.exceptions.ConnectionClosed) as caught:
            await ws.recv()
        exc = caught.value
        assert isinstance(exc, getattr(client.exceptions, name))
        assert (exc.rcvd.code, exc.rcvd.reason, exc.rcvd_then_sent) == (code, reason, True)
        assert str(exc).startswith(f"received {code} (")
        assert (ws.close_code, ws.close_reason) == (code, reason)
        calls: list[Callable[[], Any]] = [lambda: ws.send("x"), ws.ping, ws.pong, ws.recv]
        for call in calls:
            with pytest.raises(getattr(client.exceptions, name)):
                await call()
        await ws.close()
        await ws.wait_closed()


async def test_iteration_ends_or_raises(client: Any, server: Any) -> None:
    async def handler(ws: Any) -> None:
        await ws.send("one")
        await ws.close(int(ws.request.path[1:]))

    async with serve(server, handler) as running:
        for code in (1000, 1001):
            async with client.asyncio.client.connect(uri(running, f"/{code}")) as ws:
                assert [message async for message in ws] == ["one"]
        with pytest.raises(client.exceptions.ConnectionClosedError):
            async with client.asyncio.client.connect(uri(running, "/4000")) as ws:
                assert [message async for message in ws]


async def test_exception_in_the_client_closes_with_1011(client: Any, server: Any) -> None:
    closed = asyncio.get_running_loop().create_future()

    async def handler(ws: Any) -> None:
        with pytest.raises(server.exceptions.ConnectionClosedError):
            await ws.recv()
        closed.set_result(ws.close_code)

    async with serve(server, handler) as running:
        with pytest.raises(ZeroDivisionError):
            async with client.asyncio.client.connect(uri(running)):
                raise ZeroDivisionError
        assert await closed == 1011


async def test_exception_in_the_handler_closes_with_1011(client: Any, server: Any) -> None:
    async def handler(ws: Any) -> None:
        raise ZeroDivisionError

    async with serve(server, handler) as running, client.asyncio.client.connect(uri(running)) as ws:
        with pytest.raises(client.exceptions.ConnectionClosedError):
            await ws.recv()
        assert ws.close_code == 1011


async def test_connection_lost(client: Any, server: Any) -> None:
    async def handler(ws: Any) -> None:
        ws.transport.abort()

    async with serve(server, handler) as running:
        ws = await client.asyncio.client.connect(uri(running))
        with pytest.raises(client.exceptions.ConnectionClosedError) as caught:
            await ws.recv()
        assert (caught.value.rcvd, caught.value.sent, caught.value.rcvd_then_sent) == (None, None, None)
        assert str(caught.value) == "no close frame received or sent"
        assert ws.close_code == 1006


async def test_too_big(client: Any, server: Any) -> None:
    async with serve(server) as running:
        ws = await client.asyncio.client.connect(uri(running), max_size=10)
        await ws.send("x" * 11)
        with pytest.raises(client.exceptions.ConnectionClosedError) as caught:
            await ws.recv()
        assert caught.value.sent.code == 1009
        await ws.wait_closed()


@pytest.mark.parametrize("path", ["/404", "/async"])
async def test_process_request(client: Any, server: Any, path: str) -> None:
    def process_request(connection: Any, request: Any) -> Any:
        assert isinstance(request, server.Request)
        assert isinstance(connection, server.asyncio.server.ServerConnection)
        assert connection.state is server.State.CONNECTING
        if request.path == "/404":
            response = connection.respond(http.HTTPStatus.NOT_FOUND, "nothing\n")
            assert isinstance(response, server.Response)
            response.headers["X-Why"] = "because"
            return response
        if request.path == "/async":

            async def later() -> Any:
                await asyncio.sleep(0)
                return server.Response(403, "Forbidden", server.Headers({"Content-Length": "2"}), b"no")

            return later()
        return None

    async with serve(server, process_request=process_request) as running:
        async with client.asyncio.client.connect(uri(running, "/ok")) as ws:
            await ws.send("x")
            assert await ws.recv() == "x"
        with pytest.raises(client.exceptions.InvalidStatus) as caught:
            await client.asyncio.client.connect(uri(running, path))
        response = caught.value.response
        assert isinstance(response, client.Response)
        expected = {"/404": (404, b"nothing\n"), "/async": (403, b"no")}[path]
        assert (response.status_code, bytes(response.body)) == expected
        assert response.headers.get("X-Why") == ("because" if path == "/404" else None)
        assert str(caught.value).startswith(f"server rejected WebSocket connection: HTTP {expected[0]}")


async def test_process_response(client: Any, server: Any) -> None:
    async def process_response(connection: Any, request: Any, response: Any) -> Any:
        assert isinstance(response, server.Response)
        if request.path == "/changed":
            response.headers["X-New"] = "1"
            return None
        return connection.respond(410, "gone") if request.path == "/gone" else None

    async with serve(server, process_response=process_response) as running:
        async with client.asyncio.client.connect(uri(running, "/changed")) as ws:
            assert ws.response.headers["X-New"] == "1"
        async with client.asyncio.client.connect(uri(running, "/same")) as ws:
            assert "X-New" not in ws.response.headers
        with pytest.raises(client.exceptions.InvalidStatus) as caught:
            await client.asyncio.client.connect(uri(running, "/gone"))
        assert caught.value.response.status_code == 410


async def test_failing_hooks_are_500(client: Any, server: Any) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError

    for hook in ("process_request", "process_response"):
        async with serve(server, **{hook: fail}) as running:
            with pytest.raises(client.exceptions.InvalidStatus) as caught:
                await client.asyncio.client.connect(uri(running))
            assert caught.value.response.status_code == 500


async def test_select_subprotocol(client: Any, server: Any) -> None:
    def select(connection: Any, offered: Any) -> Any:
        if "bad" in offered:
            raise server.exceptions.NegotiationError("not that")
        return "b" if "b" in offered else None

    async with serve(server, subprotocols=["a", "b"], select_subprotocol=select) as running:
        async with client.asyncio.client.connect(uri(running), subprotocols=["a", "b"]) as ws:
            assert ws.subprotocol == "b"
        async with client.asyncio.client.connect(uri(running), subprotocols=["a"]) as ws:
            assert ws.subprotocol is None
        with pytest.raises(client.exceptions.InvalidStatus) as caught:
            await client.asyncio.client.connect(uri(running), subprotocols=["bad"])
        assert caught.value.response.status_code == 400


async def test_origins(client: Any, server: Any) -> None:
    async with serve(server, origins=["https://a", re.compile("https://b.*"), None]) as running:
        for origin in ("https://a", "https://bc", None):
            async with client.asyncio.client.connect(uri(running), origin=origin):
                pass
        with pytest.raises(client.exceptions.InvalidStatus) as caught:
            await client.asyncio.client.connect(uri(running), origin="https://c")
        assert caught.value.response.status_code == 403


@pytest.mark.parametrize("origin", ["https://A/", "a", "https://a:443", "*", "https://a?b"])
async def test_unusual_origins(client: Any, server: Any, origin: str) -> None:
    """Such origins are compared literally."""
    async with serve(server, origins=[origin]) as running:
        async with client.asyncio.client.connect(uri(running), origin=origin):
            pass
        for other in ("https://a", "https://aXb", "b"):
            with pytest.raises(client.exceptions.InvalidStatus):
                await client.asyncio.client.connect(uri(running), origin=other)


@pytest.mark.parametrize(
    "credentials", [("hello", "iloveyou"), [("a", "b"), ("hello", "iloveyou")], [["hello", "iloveyou"]]]
)
async def test_basic_auth(client: Any, server: Any, credentials: Any) -> None:
    async def name(ws: Any) -> None:
        await ws.send(ws.username)

    auth = server.asyncio.server.basic_auth("realm", credentials=credentials)
    async with serve(server, name, process_request=auth) as running:
        address = uri(running)
        async with client.asyncio.client.connect(address.replace("//", "//hello:iloveyou@")) as ws:
            assert await ws.recv() == "hello"
        for wrong in (address, address.replace("//", "//hello:no@")):
            with pytest.raises(client.exceptions.InvalidStatus) as caught:
                await client.asyncio.client.connect(wrong)
            assert caught.value.response.status_code == 401
            assert 'realm="realm"' in caught.value.response.headers["WWW-Authenticate"]


async def test_basic_auth_with_a_function(client: Any, server: Any) -> None:
    async def check(username: str, password: str) -> bool:
        return username == password

    auth = server.asyncio.server.basic_auth(check_credentials=check)
    async with serve(server, process_request=auth) as running:
        async with client.asyncio.client.connect(uri(running).replace("//", "//me:me@")):
            pass
        with pytest.raises(client.exceptions.InvalidStatus):
            await client.asyncio.client.connect(uri(running).replace("//", "//me:you@"))


async def test_ping_and_pong(client: Any, server: Any) -> None:
    async with serve(server) as running, client.asyncio.client.connect(uri(running)) as ws:
        waiter = await ws.ping()
        latency = await waiter
        assert isinstance(latency, float)
        assert latency == ws.latency > 0
        await ws.pong()
        await ws.pong("x")
        waiter = await ws.ping("same")
        with pytest.raises(client.exceptions.ConcurrencyError):
            await ws.ping(b"same")
        await waiter
        with pytest.raises(TypeError):
            await ws.ping(5)


async def test_broadcast(client: Any, server: Any) -> None:
    async with (
        serve(server) as running,
        client.asyncio.client.connect(uri(running)) as one,
        client.asyncio.client.connect(uri(running)) as two,
    ):
        for ws in (one, two):
            await (await ws.ping())
        assert len(running.connections) == 2
        broadcast = server.asyncio.server.broadcast
        assert broadcast(running.connections, "text") is None
        broadcast(running.connections, b"binary")
        broadcast(running.connections, b"text", text=True)
        broadcast(iter(running.connections), "binary", text=False)
        for ws in (one, two):
            assert [await ws.recv() for _ in range(4)] == ["text", b"binary", "text", b"binary"]
        with pytest.raises(TypeError):
            broadcast(running.connections, ["list"])
        await one.close()
        broadcast(running.connections, "left", raise_exceptions=sys.version_info >= (3, 11))
        assert await two.recv() == "left"


async def test_broadcast_does_not_look_at_buffers(server: Any) -> None:
    async def handler(ws: Any) -> None:
        await ws.wait_closed()

    # A client that does not read: its queue has no limit.
    async with serve(server, handler, close_timeout=0.1, compression=None) as running:
        reader, writer = await asyncio.open_connection(*running.sockets[0].getsockname())
        writer.write(
            b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        while not running.connections:
            await asyncio.sleep(0)
        (ws,) = running.connections
        for _ in range(100):
            server.asyncio.server.broadcast([ws], b"x" * 2**18, raise_exceptions=True)
        assert ws.transport.get_write_buffer_size() > 2**20
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        total = 0
        while total < 100 * 2**18:
            total += len(await reader.read(2**20))
        writer.close()


async def test_unix(client: Any, server: Any, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with server.asyncio.server.unix_serve(echo, str(path)) as running:
        async with client.asyncio.client.unix_connect(str(path)) as ws:
            await ws.send("x")
            assert await ws.recv() == "x"
            assert ws.request.headers["Host"] == "localhost"
        async with client.asyncio.client.unix_connect(path, uri="ws://example.com/path") as ws:
            assert (ws.request.headers["Host"], ws.request.path) == ("example.com", "/path")
        assert running.sockets[0].family == socket.AF_UNIX


async def test_arguments_of_create_connection(client: Any, server: Any) -> None:
    async with serve(server) as running:
        host, port = running.sockets[0].getsockname()[:2]
        for options in (
            {"host": host, "port": port},
            {"host": host, "port": port, "family": socket.AF_INET, "happy_eyeballs_delay": 0.1},
            {"host": host, "port": port, "local_addr": ("127.0.0.1", 0)},
            {"host": host, "port": port, "flags": socket.AI_NUMERICHOST, "proxy": None},
            {"sock": socket.create_connection((host, port))},
            {"host": host, "port": str(port), "additional_headers": {"X-Number": 5}},
            {"host": host, "port": port, "proto": socket.IPPROTO_TCP, "proxy": None},
        ):
            async with client.asyncio.client.connect("ws://example.invalid/", **options) as ws:
                assert ws.request.headers["Host"] == "example.invalid"
                await ws.send("x")
                assert await ws.recv() == "x"


async def test_arguments_of_create_server(client: Any, server: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        async with server.asyncio.server.serve(echo, sock=sock, start_serving=False) as running:
            assert not running.is_serving()
            await running.start_serving()
            assert running.is_serving()
            async with client.asyncio.client.connect(uri(running)):
                pass
    options = {"family": socket.AF_INET, "reuse_port": True, "reuse_address": True, "backlog": 10}
    async with (
        server.asyncio.server.serve(echo, "localhost", 0, **options) as running,
        client.asyncio.client.connect(uri(running)),
    ):
        pass


async def test_wrong_arguments(package: Any) -> None:
    connect, serving = package.asyncio.client.connect, package.asyncio.server.serve
    with pytest.raises(package.exceptions.InvalidURI):
        connect("http://localhost/")
    with pytest.raises(ValueError, match="ssl argument is incompatible with a ws:// URI"):
        connect("ws://localhost/", ssl=True)
    with pytest.raises(ValueError, match="unsupported compression: gzip"):
        connect("ws://localhost/", compression="gzip")
    with pytest.raises(ValueError, match="unsupported compression: gzip"):
        serving(echo, compression="gzip")
    with pytest.raises(TypeError, match="subprotocols must be a list, not a str"):
        connect("ws://localhost/", subprotocols="chat")
    with pytest.raises(TypeError, match="subprotocols must be a list, not a str"):
        serving(echo, subprotocols="chat")
    with pytest.raises(ValueError, match="ssl=None is incompatible with a wss:// URI"):
        await connect("wss://localhost/", ssl=None)
    with pytest.raises(TypeError):
        await connect("ws://localhost/", nonsense=1)
    with pytest.raises(TypeError):
        await serving(echo, "127.0.0.1", 0, nonsense=1)
    basic_auth = package.asyncio.server.basic_auth
    for arguments in ({}, {"credentials": ("a", "b"), "check_credentials": print}):
        with pytest.raises(ValueError):
            basic_auth(**arguments)
    for credentials in (5, ("a",), [("a", "b", "c")], [5]):
        with pytest.raises(TypeError):
            basic_auth(credentials=credentials)


async def test_refused_and_timed_out(package: Any) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = f"ws://127.0.0.1:{sock.getsockname()[1]}"
        with pytest.raises(ConnectionRefusedError):
            await package.asyncio.client.connect(address)
        sock.listen()
        with pytest.raises(TimeoutError, match="timed out during opening handshake"):
            await package.asyncio.client.connect(address, open_timeout=0.1)


async def test_server_that_speaks_no_http(package: Any) -> None:
    async def talk(reader: Any, writer: Any) -> None:
        writer.write(b"SMTP here\r\n\r\n")
        writer.close()

    async def hang_up(reader: Any, writer: Any) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    for handler, cause in ((talk, Exception), (hang_up, EOFError)):
        async with await asyncio.start_server(handler, "127.0.0.1", 0) as running:
            with pytest.raises(package.exceptions.InvalidMessage) as caught:
                await package.asyncio.client.connect(uri(running))
            if cause is EOFError:
                assert isinstance(caught.value.__cause__, EOFError)


async def test_redirects(client: Any, server: Any) -> None:
    def process_request(connection: Any, request: Any) -> Any:
        if request.path == "/old":
            response = connection.respond(http.HTTPStatus.FOUND, "there")
            response.headers["Location"] = "/new"
            return response
        return None

    async with serve(server, process_request=process_request) as running:
        connecting = client.asyncio.client.connect(uri(running, "/old"))
        async with connecting as ws:
            assert ws.request.path == "/new"
        assert connecting.uri == uri(running, "/new")

        class Stubborn(client.asyncio.client.connect):  # type: ignore[misc]
            def process_redirect(self, exc: Exception) -> Any:
                return exc

        with pytest.raises(client.exceptions.InvalidStatus) as caught:
            await Stubborn(uri(running, "/old"))
        assert caught.value.response.headers["Location"] == "/new"


async def test_connecting_again(client: Any, server: Any) -> None:
    count = 0

    def process_request(connection: Any, request: Any) -> Any:
        nonlocal count
        count += 1
        return connection.respond(503, "later") if count == 2 else None

    async def handler(ws: Any) -> None:
        await ws.close(1000 if count == 1 else 1012)

    delays = 0

    def reconnect_delays() -> Any:
        nonlocal delays
        while True:
            delays += 1
            yield 0.0

    async with serve(server, handler, process_request=process_request) as running:
        codes = []
        async for ws in client.asyncio.client.connect(uri(running), reconnect_delays=reconnect_delays):
            try:
                await ws.recv()
            except client.exceptions.ConnectionClosed:
                codes.append(ws.close_code)
                if len(codes) == 3:
                    break
                continue
        assert codes == [1000, 1012, 1012]
        assert delays == 1


async def test_fatal_errors_end_the_iteration(client: Any, server: Any) -> None:
    class FatalError(Exception):
        pass

    def process_exception(exc: Any) -> Exception | None:
        assert isinstance(exc, client.exceptions.InvalidStatus)
        return FatalError("fatal") if exc.response.status_code == 500 else exc

    def process_request(connection: Any, request: Any) -> Any:
        return connection.respond(int(request.path[1:]), "")

    async with serve(server, process_request=process_request) as running:
        with pytest.raises(client.exceptions.InvalidStatus):
            async for _ in client.asyncio.client.connect(uri(running, "/404")):
                pass
        with pytest.raises(FatalError) as caught:
            async for _ in client.asyncio.client.connect(uri(running, "/500"), process_exception=process_exception):
                pass
        assert isinstance(caught.value.__cause__, client.exceptions.InvalidStatus)


async def test_connect_is_not_reentrant(client: Any, server: Any) -> None:
    async with serve(server) as running:
        connecting = client.asyncio.client.connect(uri(running))
        async with connecting:
            with pytest.raises(RuntimeError, match="reentrant"):
                await connecting.__aenter__()
        async with connecting:
            pass


async def test_classes_of_connections(client: Any, server: Any) -> None:
    class Client(client.asyncio.client.ClientConnection):  # type: ignore[misc]
        def __init__(self, protocol: Any, *, ping_interval: Any = 20, **options: Any) -> None:
            super().__init__(protocol, ping_interval=ping_interval, **options)
            self.mine = ping_interval

        async def recv(self, decode: Any = None) -> Any:
            return ("client", await super().recv(decode))

    class Server(server.asyncio.server.ServerConnection):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            assert self.server is running

        async def send(self, message: Any, **options: Any) -> None:
            await super().send(f"<{message}>", **options)

    def factory(*arguments: Any, **options: Any) -> Any:
        return Client(*arguments, **options)

    async with serve(server, create_connection=Server) as running:
        for create in (Client, factory):
            async with client.asyncio.client.connect(uri(running), create_connection=create, ping_interval=7) as ws:
                assert (ws.mine, ws.ping_interval) == (7, 7)
                await ws.send("x")
                assert await ws.recv() == ("client", "<x>")


async def test_closing_a_server(client: Any, server: Any) -> None:
    async def handler(ws: Any) -> None:
        await ws.wait_closed()

    running = await serve(server, handler)
    serving = asyncio.create_task(running.serve_forever())
    ws = await client.asyncio.client.connect(uri(running))
    running.close(code=1012, reason="restart")
    await running.wait_closed()
    await serving
    with pytest.raises(client.exceptions.ConnectionClosedError):
        await ws.recv()
    assert (ws.close_code, ws.close_reason) == (1012, "restart")

    running = await serve(server, handler)
    serving = asyncio.create_task(running.serve_forever())
    ws = await client.asyncio.client.connect(uri(running))
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert [message async for message in ws] == []
    assert ws.close_code == 1001


async def test_closing_a_server_keeps_connections(client: Any, server: Any) -> None:
    running = await serve(server)
    ws = await client.asyncio.client.connect(uri(running))
    await ws.send("before")
    running.close(close_connections=False)
    assert await ws.recv() == "before"
    await ws.send("after")
    assert await ws.recv() == "after"
    await ws.close()
    await running.wait_closed()


async def test_fragmented_message_that_fails(client: Any, server: Any) -> None:
    async with serve(server) as running:
        ws = await client.asyncio.client.connect(uri(running))
        with pytest.raises(TypeError):
            await ws.send(["text", b"bytes"])
        with pytest.raises(client.exceptions.ConnectionClosedError) as caught:
            await ws.recv()
        assert caught.value.sent.code == 1011
        ws = await client.asyncio.client.connect(uri(running))
        for message in (5, {"a": "b"}, None):
            with pytest.raises(TypeError):
                await ws.send(message)
        await ws.close()


async def test_cancelled_recv_loses_nothing(client: Any, server: Any) -> None:
    async with serve(server) as running, client.asyncio.client.connect(uri(running)) as ws:
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(ws.recv(), 0.01)
        await ws.send("x")
        assert await ws.recv() == "x"


async def test_handler_waits_for_the_listener_to_close(server: Any, client: Any) -> None:
    returned = 0

    async def handler(ws: Any) -> None:
        nonlocal returned
        await ws.recv()
        ws.server.close()
        await ws.server.server.wait_closed()
        returned += 1

    async with serve(server, handler) as running:
        connecting = [client.asyncio.client.connect(uri(running)) for _ in range(2)]
        async with connecting[0] as one, connecting[1] as other:
            await one.send("")
            await other.send("")
            await one.wait_closed()
            await other.wait_closed()
    assert returned >= 1
