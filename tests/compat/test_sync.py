"""Equal code on both packages, as client and as server, with threads."""

from __future__ import annotations

import contextlib
import functools
import http
import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets", minversion="17")


def echo(ws: Any) -> None:
    for message in ws:
        ws.send(message)


def uri(server: Any, path: str = "/") -> str:
    return f"ws://127.0.0.1:{server.socket.getsockname()[1]}{path}"


@contextlib.contextmanager
def running(server: Any) -> Iterator[Any]:
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def serve(package: Any, handler: Any = echo, **options: Any) -> Any:
    return running(package.sync.server.serve(handler, "127.0.0.1", 0, **options))


def test_messages(client: Any, server: Any) -> None:
    with serve(server) as run, client.sync.client.connect(uri(run)) as ws:
        for message in ("hello", b"hello", "", b"", "é€𝄞", b"x" * 200_000):
            ws.send(message)
            assert ws.recv() == message
        ws.send(["one ", "two"])
        assert ws.recv() == "one two"
        ws.send(b"text", text=True)
        assert ws.recv() == "text"
        ws.send("binary", text=False)
        assert ws.recv(timeout=5) == b"binary"
        ws.send(bytearray(b"array"))
        assert ws.recv(decode=True) == "array"
        ws.send(iter([b"a", b"b"]))
        assert b"".join(ws.recv_streaming()) == b"ab"
        with pytest.raises(TimeoutError):
            ws.recv(timeout=0.01)
        ws.send("end")
        assert ws.recv(5, False) == b"end"


def test_attributes_of_a_client(client: Any, server: Any) -> None:
    with serve(server, subprotocols=["chat"]) as run:
        with client.sync.client.connect(
            uri(run, "/path?q=1"), subprotocols=["chat"], additional_headers=[("X-One", "1")], origin="https://o"
        ) as ws:
            assert ws.state is ws.protocol.state is client.State.OPEN
            assert ws.subprotocol == "chat"
            assert isinstance(ws.request, client.Request)
            assert (ws.request.path, ws.request.headers["x-one"]) == ("/path?q=1", "1")
            assert ws.request.headers["User-Agent"] == client.http11.USER_AGENT
            assert isinstance(ws.response, client.Response)
            assert ws.response.headers["Server"] == server.http11.SERVER
            peer = run.socket.getsockname()
            assert ws.remote_address == ws.socket.getpeername() == peer
            assert ws.local_address == ws.socket.getsockname()
            assert ws.socket.family == socket.AF_INET
            assert ws.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert isinstance(ws.id, uuid.UUID)
            assert ws.logger.extra["websocket"].id == ws.id
            assert isinstance(ws.logger, logging.LoggerAdapter)
            assert (ws.ping_interval, ws.ping_timeout, ws.close_timeout) == (20, 20, 10)
            assert (ws.latency, ws.close_code, ws.close_reason) == (0.0, None, None)
        assert ws.state is client.State.CLOSED
        assert (ws.close_code, ws.close_reason) == (1000, "")


@pytest.mark.parametrize(("code", "name"), [(1000, "OK"), (1001, "OK"), (4000, "Error")])
def test_closed_by_the_server(client: Any, server: Any, code: int, name: str) -> None:
    def handler(ws: Any) -> None:
        ws.send("last")
        ws.close(code, "why")

    with serve(server, handler) as run, client.sync.client.connect(uri(run)) as ws:
        assert ws.recv() == "last"
        with pytest.raises(client.exceptions.ConnectionClosed) as caught:
            ws.recv()
        assert type(caught.value).__name__ == f"ConnectionClosed{name}"
        assert isinstance(caught.value, getattr(client.exceptions, f"ConnectionClosed{name}"))
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (code, "why")
        with pytest.raises(client.exceptions.ConnectionClosed):
            ws.send("x")
        assert ws.wait_closed()


def test_iteration_and_exceptions(client: Any, server: Any) -> None:
    codes = []

    def handler(ws: Any) -> None:
        if ws.request.path == "/wait":
            with contextlib.suppress(server.exceptions.ConnectionClosed):
                ws.recv()
            codes.append(ws.close_code)
            return
        ws.send("one")
        if ws.request.path == "/fail":
            raise ZeroDivisionError

    with serve(server, handler) as run:
        with client.sync.client.connect(uri(run)) as ws:
            assert list(ws) == ["one"]
        with pytest.raises(client.exceptions.ConnectionClosedError):  # noqa: SIM117
            with client.sync.client.connect(uri(run, "/fail")) as ws:
                list(ws)
        with pytest.raises(ZeroDivisionError):  # noqa: SIM117
            with client.sync.client.connect(uri(run, "/wait")) as ws:
                raise ZeroDivisionError
    assert codes == [1011]


def test_hooks(client: Any, server: Any) -> None:
    def process_request(connection: Any, request: Any) -> Any:
        assert isinstance(request, server.Request)
        if request.path == "/no":
            return connection.respond(http.HTTPStatus.NOT_FOUND, "nothing\n")
        return server.Response(403, "Forbidden", server.Headers()) if request.path == "/403" else None

    def process_response(connection: Any, request: Any, response: Any) -> Any:
        assert isinstance(response, server.Response)
        response.headers["X-New"] = "1"

    def select(connection: Any, offered: Any) -> Any:
        return "b"

    with serve(
        server,
        process_request=process_request,
        process_response=process_response,
        subprotocols=["a", "b"],
        select_subprotocol=select,
    ) as run:
        with client.sync.client.connect(uri(run), subprotocols=["a", "b"]) as ws:
            assert ws.response.headers["X-New"] == "1"
            assert ws.subprotocol == "b"
        for path, status in (("/no", 404), ("/403", 403)):
            with pytest.raises(client.exceptions.InvalidStatus) as caught:
                client.sync.client.connect(uri(run, path))
            assert caught.value.response.status_code == status
            assert isinstance(caught.value.response, client.Response)


def test_basic_auth(client: Any, server: Any) -> None:
    def name(ws: Any) -> None:
        ws.send(ws.username)

    auth = server.sync.server.basic_auth("realm", credentials=("hello", "iloveyou"))
    with serve(server, name, process_request=auth) as run:
        with client.sync.client.connect(uri(run).replace("//", "//hello:iloveyou@")) as ws:
            assert ws.recv() == "hello"
        with pytest.raises(client.exceptions.InvalidStatus) as caught:
            client.sync.client.connect(uri(run))
        assert caught.value.response.status_code == 401


def test_ping(client: Any, server: Any) -> None:
    with serve(server) as run, client.sync.client.connect(uri(run)) as ws:
        pong = ws.ping()
        assert pong.wait(5)
        assert pong.is_set()
        assert ws.latency > 0
        assert ws.ping("data", ack_on_close=True).wait(5)
        with pytest.raises(TypeError):
            ws.ping(5)


def test_pong_that_never_comes(client: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def refuse_pongs() -> None:
            from websockets.server import ServerProtocol

            sock, _ = listening.accept()
            with sock:
                protocol = ServerProtocol()
                protocol.receive_data(sock.recv(65536))
                (request,) = protocol.events_received()
                protocol.send_response(protocol.accept(request))  # type: ignore[arg-type]
                for data in protocol.data_to_send():
                    sock.sendall(data)
                time.sleep(0.3)

        thread = threading.Thread(target=refuse_pongs)
        thread.start()
        with client.sync.client.connect(f"ws://127.0.0.1:{listening.getsockname()[1]}") as ws:
            assert not ws.ping().wait(0.05)
            never, ended = ws.ping(), ws.ping(ack_on_close=True)
            assert ended.wait(5)
            assert not never.wait(0.1)
            assert not never.is_set()
        thread.join()


def test_wait_closed(client: Any, server: Any) -> None:
    def handler(ws: Any) -> None:
        ws.send("kept")
        time.sleep(0.3)

    with serve(server, handler) as run, client.sync.client.connect(uri(run)) as ws:
        assert not ws.wait_closed(0.05)
        assert ws.wait_closed(5)
        assert ws.wait_closed()
        assert ws.recv() == "kept"


def test_broadcast(client: Any, server: Any) -> None:
    with (
        serve(server) as run,
        client.sync.client.connect(uri(run)) as one,
        client.sync.client.connect(uri(run)) as two,
    ):
        for ws in (one, two):
            assert ws.ping().wait(5)
        assert len(run.connections) == 2
        server.sync.server.broadcast(run.connections, "text", max_workers=2)
        server.sync.server.broadcast(run.connections, b"text", text=True)
        for ws in (one, two):
            assert [ws.recv(), ws.recv()] == ["text", "text"]
        with pytest.raises(TypeError):
            server.sync.server.broadcast(run.connections, ["list"])


def test_unix(client: Any, server: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with running(server.sync.server.unix_serve(echo, path)), client.sync.client.unix_connect(path) as ws:
        ws.send("x")
        assert ws.recv() == "x"
        assert ws.request.headers["Host"] == "localhost"


def test_arguments_of_sockets(client: Any, server: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        address = sock.getsockname()
        with running(server.sync.server.serve(echo, sock=sock)):
            for options in (
                {"sock": socket.create_connection(address)},
                {"address": address},
                {"address": address, "source_address": ("127.0.0.1", 0), "proxy": None},
                {"address": address, "timeout": 5, "proxy": None},
            ):
                with client.sync.client.connect("ws://example.invalid/", **options) as ws:
                    ws.send("x")
                    assert ws.recv() == "x"
                    assert ws.request.headers["Host"] == "example.invalid"


def test_wrong_arguments(package: Any) -> None:
    connect, serving = package.sync.client.connect, package.sync.server.serve
    with pytest.raises(package.exceptions.InvalidURI):
        connect("http://localhost/")
    with pytest.raises(ValueError, match="ssl argument is incompatible with a ws:// URI"):
        connect("ws://localhost/", ssl=True)
    functions: list[Callable[..., Any]] = [
        functools.partial(connect, "ws://localhost/"),
        functools.partial(serving, echo),
    ]
    for function in functions:
        with pytest.raises(ValueError, match="unsupported compression: gzip"):
            function(compression="gzip")
        with pytest.raises(TypeError, match="subprotocols must be a list, not a str"):
            function(subprotocols="chat")
    with pytest.raises(ValueError, match="missing path argument"):
        package.sync.server.unix_serve(echo)
    with socket.create_server(("127.0.0.1", 0)) as sock, pytest.raises(ValueError, match="host is incompatible"):
        serving(echo, "localhost", sock=sock)
    with pytest.raises(TypeError):
        connect("ws://localhost/", nonsense=1)
    with pytest.raises(TypeError):
        serving(echo, "127.0.0.1", 0, nonsense=1)


def test_refused_and_timed_out(package: Any) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = f"ws://127.0.0.1:{sock.getsockname()[1]}"
        with pytest.raises(ConnectionRefusedError):
            package.sync.client.connect(address)
        sock.listen()
        with pytest.raises(TimeoutError):
            package.sync.client.connect(address, open_timeout=0.1)


def test_reconnect(client: Any, server: Any) -> None:
    count = 0

    def process_request(connection: Any, request: Any) -> Any:
        nonlocal count
        count += 1
        return connection.respond(503, "later") if count == 2 else None

    def handler(ws: Any) -> None:
        ws.close(1000 if count == 1 else 1012)

    def reconnect_delays() -> Any:
        while True:
            yield 0.0

    codes: list[Any] = []
    with serve(server, handler, process_request=process_request) as run:
        for ws in client.sync.client.reconnect(uri(run), reconnect_delays=reconnect_delays):
            try:
                ws.recv()
            except client.exceptions.ConnectionClosed:
                codes.append(ws.close_code)
                if len(codes) == 3:
                    break
        with client.sync.client.connect(uri(run), legacy=False) as ws:
            assert ws.state is not None
    assert codes == [1000, 1012, 1012]


def test_classes_of_connections(client: Any, server: Any) -> None:
    class Client(client.sync.client.ClientConnection):  # type: ignore[misc]
        def __init__(self, sock: Any, protocol: Any, *, ping_interval: Any = 20, **options: Any) -> None:
            super().__init__(sock, protocol, ping_interval=ping_interval, **options)
            self.mine = ping_interval

        def recv(self, timeout: Any = None, decode: Any = None) -> Any:
            return ("client", super().recv(timeout, decode))

    class Server(server.sync.server.ServerConnection):  # type: ignore[misc]
        def send(self, message: Any, **options: Any) -> None:
            super().send(f"<{message}>", **options)

    with (
        serve(server, create_connection=Server) as run,
        client.sync.client.connect(uri(run), create_connection=Client, ping_interval=7) as ws,
    ):
        assert (ws.mine, ws.ping_interval) == (7, 7)
        ws.send("x")
        assert ws.recv() == ("client", "<x>")


def test_shutdown(client: Any, server: Any) -> None:
    run = server.sync.server.serve(echo, "127.0.0.1", 0)
    thread = threading.Thread(target=run.serve_forever)
    thread.start()
    assert run.fileno() == run.socket.fileno() > 0
    with client.sync.client.connect(uri(run)) as ws:
        ws.send("x")
        assert ws.recv() == "x"
        # websockets waits for the close frame of the client, which a thread sends; ours has no thread.
        closing = threading.Thread(target=run.shutdown, kwargs={"code": 1012, "reason": "restart"})
        closing.start()
        with pytest.raises(client.exceptions.ConnectionClosedError):
            ws.recv()
        assert (ws.close_code, ws.close_reason) == (1012, "restart")
    closing.join()
    thread.join()


def test_time_limits_of_sockets(client: Any, server: Any) -> None:
    """The value that was set is returned; receiving has limits of its own."""
    with serve(server) as run, client.sync.client.connect(uri(run)) as ws:
        assert ws.socket.gettimeout() is None
        ws.socket.settimeout(0.01)
        assert ws.socket.gettimeout() == 0.01
        with pytest.raises(TimeoutError):
            ws.recv(timeout=0.1)
        ws.send("x")
        assert ws.recv() == "x"
        with pytest.raises(ValueError, match="Timeout"):
            ws.socket.settimeout(-1)
        ws.socket.settimeout(None)
        assert ws.socket.gettimeout() is None


def test_addresses_of_the_server(client: Any, server: Any) -> None:
    """In each hook and in the handler."""
    seen: dict[str, tuple[Any, Any]] = {}

    def note(name: str) -> Callable[..., Any]:
        def hook(ws: Any, *_: Any) -> None:
            seen[name] = ws.remote_address, ws.local_address

        return hook

    def handler(ws: Any) -> None:
        note("handler")(ws)
        echo(ws)

    hooks = {name: note(name) for name in ("process_request", "process_response", "select_subprotocol")}
    with serve(server, handler, **hooks) as run, client.sync.client.connect(uri(run), subprotocols=["a"]) as ws:
        ours = ws.local_address, ws.remote_address
        ws.send("x")
        assert ws.recv(timeout=20) == "x"  # the handler runs
    assert seen == dict.fromkeys([*hooks, "handler"], ours)


def test_the_log_names_the_client(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    from wirespeed.compat import websockets as ours

    def process_request(ws: Any, request: Any) -> None:
        raise ZeroDivisionError

    caplog.set_level(logging.INFO, "websockets")
    with serve(ours, process_request=process_request) as run, pytest.raises(client.exceptions.InvalidStatus):
        client.sync.client.connect(uri(run))
    text = caplog.text
    assert "127.0.0.1:" in text
    assert "Unix" not in text
