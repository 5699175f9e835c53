"""Rows of docs/compat.md about differences from websockets, on blocking connections and on redirects."""

from __future__ import annotations

import contextlib
import os
import select
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.certificates import Certificates
from support.frames import CLOSE, PING, PONG, Close, close, ping, text
from support.scripted import Disconnected, Scripted, Wire

pytest.importorskip("websockets", minversion="17")

from compat.conftest import PACKAGES

# Seconds in which expected events happen, and in which unexpected ones would happen.
LIMIT = 20.0
PAUSE = 0.4


def until_closed(wire: Wire) -> None:
    """Answers only a close frame."""
    wire.accept()
    wire.read_until_close()
    wire.send(close(1000))


def quiet(wire: Wire, seconds: float) -> bool:
    """Returns whether neither data nor the end of the stream arrives."""
    return not wire.buffer and not select.select([wire.sock], [], [], seconds)[0]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_credentials_that_a_coroutine_function_checks(package: Any) -> None:
    async def check(username: str, password: str) -> bool:
        return False

    basic_auth = package.sync.server.basic_auth
    if repr(package) == "ours":
        with pytest.raises(TypeError, match="coroutine"):
            basic_auth(check_credentials=check)
        return
    auth = basic_auth(check_credentials=check)
    with package.sync.server.serve(lambda ws: ws.send(ws.username), "127.0.0.1", 0, process_request=auth) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            uri = f"ws://anybody:wrong@127.0.0.1:{running.socket.getsockname()[1]}"
            with package.sync.client.connect(uri) as ws:
                assert ws.recv(timeout=LIMIT) == "anybody"
        finally:
            running.shutdown()
            thread.join(LIMIT)


# Redirects


def redirecting(locations: dict[str, str]) -> Callable[[Wire], str]:
    """A script that redirects from some paths and accepts the others; it returns the path."""

    def script(wire: Wire) -> str:
        path = wire.read_request().split()[1].decode()
        if path in locations:
            wire.send(f"HTTP/1.1 302 Found\r\nLocation: {locations[path]}\r\nContent-Length: 0\r\n\r\n".encode())
        else:
            wire.send(wire.accept_bytes())
            wire.read_until_close()
            wire.send(close(1000))
        return path

    return script


@pytest.mark.parametrize("location", ["/new", "gopher://localhost/"])
def test_process_redirect_of_an_exception_of_the_application(client: Any, scripted: Scripted, location: str) -> None:
    invalid_status = client.exceptions.InvalidStatus

    class Wrapping(client.sync.client.reconnect):  # type: ignore[misc]
        def process_redirect(self, exc: Any) -> Any:
            return super().process_redirect(invalid_status(exc.response))

    server = scripted(redirecting({"/old": location}))
    connecting = Wrapping(f"{server.uri}old")
    if repr(client) == "ours":
        with pytest.raises(invalid_status) as caught:
            connecting.connect()
        # Exceptions of ours are of a derived class.
        assert type(caught.value) is invalid_status
    elif location == "/new":
        with connecting as ws:
            assert ws.request.path == "/new"
    else:
        with pytest.raises(client.exceptions.InvalidURI):
            connecting.connect()


CONNECT = """
import importlib, sys
package, uri = sys.argv[1:]
connect = importlib.import_module(f"{package}.sync.client").connect
for path in "123":
    try:
        with connect(uri + path) as ws:
            print(ws.request.path)
    except importlib.import_module(f"{package}.exceptions").SecurityError as exc:
        print(exc)
"""


def test_more_redirects_than_are_followed(package: Any, scripted: Scripted) -> None:
    server = scripted(redirecting({"/3": "/2", "/2": "/1", "/1": "/0"}))
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, PACKAGES[repr(package)], server.uri],
        env={**os.environ, "WEBSOCKETS_MAX_REDIRECTS": "2"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    server.join()
    too_many = "more than 2 redirects"
    if repr(package) == "ours":
        assert done.stdout.splitlines() == ["/0", "/0", too_many]
        assert server.results == ["/1", "/0", "/2", "/1", "/0", "/3", "/2", "/1"]
    else:
        assert done.stdout.splitlines() == ["/0", too_many, too_many]
        assert server.results == ["/1", "/0", "/2", "/1", "/3", "/2"]


# Work of each connection's thread in websockets


@pytest.mark.parametrize(
    ("sent", "answer"),
    [(b"", PING), (ping(b"x"), PONG), (close(4000), CLOSE)],
    ids=["keepalive", "pong", "close frame"],
)
def test_data_received_without_a_call(client: Any, scripted: Scripted, sent: bytes, answer: int) -> None:
    ours = repr(client) == "ours"

    def script(wire: Wire) -> bool:
        wire.accept()
        assert server.release.wait(LIMIT)
        wire.send(sent)
        waited = quiet(wire, PAUSE if ours else LIMIT)
        server.reached.set()
        assert wire.read_frame().opcode == answer
        if answer != CLOSE:
            wire.send(close(4000))
            wire.read_until_close()
        return waited

    server = scripted(script)
    with client.sync.client.connect(server.uri, ping_interval=0.05 if answer == PING else None) as ws:
        server.release.set()
        server.wait_reached()
        with pytest.raises(client.exceptions.ConnectionClosedError) as caught:
            ws.recv(timeout=LIMIT)
        assert caught.value.rcvd.code == 4000
    assert server.result is ours


def test_wait_closed(client: Any, scripted: Scripted) -> None:
    """The pong shows which thread receives, and when."""
    ours = repr(client) == "ours"

    def script(wire: Wire) -> bool:
        wire.accept()
        assert server.release.wait(LIMIT)
        wire.send(text("kept") + ping(b"x"))
        waited = quiet(wire, PAUSE if ours else LIMIT)
        server.reached.set()
        assert wire.read_frame().opcode == PONG
        wire.send(close(1000))
        wire.read_until_close()
        return waited

    server = scripted(script)
    with client.sync.client.connect(server.uri, ping_interval=None) as ws:
        server.release.set()
        server.wait_reached()
        assert ws.wait_closed(LIMIT)
        assert ws.recv(timeout=LIMIT) == "kept"
    assert server.result is ours


def test_waiting_for_a_pong_after_the_end(client: Any, scripted: Scripted) -> None:
    with client.sync.client.connect(scripted(until_closed).uri, ping_interval=None) as ws:
        pong = ws.ping()
    told: list[bool] = []
    thread = threading.Thread(target=lambda: told.append(pong.wait()), daemon=True)
    thread.start()
    if repr(client) == "ours":
        thread.join(LIMIT)
        assert told == [False]
    else:
        thread.join(PAUSE)
        assert thread.is_alive()
        pong.set()
        thread.join(LIMIT)


def test_connecting_without_with(client: Any, scripted: Scripted) -> None:
    ws = client.sync.client.connect(scripted(until_closed).uri)
    if repr(client) == "ours":
        ws.close()  # a warning would be raised
    else:
        with pytest.warns(DeprecationWarning, match="context manager"):
            ws.close()


def test_the_close_code_before_the_end_of_tcp(client: Any, scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=close(1001))
        server.pause()

    server = scripted(script)
    with client.sync.client.connect(server.uri, ping_interval=None, close_timeout=None) as ws:
        if repr(client) == "ours":
            with pytest.raises(client.exceptions.ConnectionClosedOK):
                ws.recv(timeout=PAUSE)
            code = 1001
        else:
            end = time.monotonic() + LIMIT / 2
            while ws.state is client.State.OPEN:
                assert time.monotonic() < end
                time.sleep(0.01)
            code = None
        assert (ws.state, ws.close_code) == (client.State.CLOSING, code)
        server.release.set()
        assert ws.wait_closed(LIMIT)
        assert ws.close_code == 1001


def test_waiting_for_a_message_between_the_close_frame_and_the_end_of_tcp(client: Any, scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=close(1001))
        server.pause()

    server = scripted(script)
    with client.sync.client.connect(server.uri, ping_interval=None, close_timeout=LIMIT) as ws:
        error = client.exceptions.ConnectionClosedOK if repr(client) == "ours" else TimeoutError
        for _ in range(2):
            with pytest.raises(error):
                ws.recv(timeout=PAUSE)
        server.release.set()
        with pytest.raises(client.exceptions.ConnectionClosedOK):
            ws.recv(timeout=LIMIT)


# The socket and the protocol


def test_the_time_limit_of_the_socket_of_a_send(client: Any, scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()
        wire.read_until_close()
        wire.send(close(1000))

    def send() -> None:
        try:
            ws.send(bytes(16 << 20))
            ended.append(None)
        except client.exceptions.ConnectionClosedError as exc:
            ended.append(exc.__cause__)

    ended: list[BaseException | None] = []
    server = scripted(script, receive_buffer=4096)
    with client.sync.client.connect(server.uri, ping_interval=None, compression=None) as ws:
        ws.socket.settimeout(0.1)
        assert ws.socket.gettimeout() == 0.1
        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        server.wait_reached()
        if repr(client) == "ours":
            thread.join(PAUSE)
            assert thread.is_alive()
            server.release.set()
            thread.join(LIMIT)
            assert ended == [None]
        else:
            thread.join(LIMIT / 2)
            assert [type(cause) for cause in ended] == [TimeoutError]


def test_failing_by_the_protocol(client: Any, scripted: Scripted) -> None:
    """The thread of websockets writes queued data when something arrives."""
    ours = repr(client) == "ours"

    def script(wire: Wire) -> tuple[bool, Close | None]:
        wire.accept()
        server.pause()
        waited = quiet(wire, LIMIT if ours else PAUSE)
        with contextlib.suppress(Disconnected):
            wire.send(ping(b"x"))
        return waited, wire.read_until_close()[1]

    server = scripted(script)
    with client.sync.client.connect(server.uri, ping_interval=None) as ws:
        ws.protocol.fail(1011, "enough")
        server.release.set()
        assert server.result == ((False, None) if ours else (True, Close(1011, "enough")))


def test_the_socket_of_tls(client: Any, scripted: Scripted, certificates: Certificates) -> None:
    def script(wire: Wire) -> Any:
        until_closed(wire)
        assert isinstance(wire.sock, ssl.SSLSocket)
        return wire.sock.cipher()

    server = scripted(script, ssl_context=certificates.server_context())
    context = certificates.client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # test_tls.py explains why websockets needs it
    with client.sync.client.connect(server.secure_uri, ssl=context, ping_interval=None) as ws:
        sock = ws.socket
        assert isinstance(sock, ssl.SSLSocket) is (repr(client) == "theirs")
        assert hasattr(sock, "recv") is (repr(client) == "theirs")
        assert (sock.version(), sock.server_hostname, sock.server_side) == ("TLSv1.2", "localhost", False)
        assert ("DNS", "localhost") in sock.getpeercert()["subjectAltName"]
        assert sock.selected_alpn_protocol() is None
        cipher = sock.cipher()
    assert server.result == cipher
