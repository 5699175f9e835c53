"""``wirespeed serve`` as a process of its own, with third-party clients."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import connect, unix_connect
from websockets.typing import Subprotocol

from support.certificates import Certificates
from support.serve_command import Serving
from wirespeed.cli import main
from wirespeed.sync import connect as wirespeed_connect
from wirespeed.tls import TLS

pytestmark = pytest.mark.wirespeed_only("the command line is ours")

APP = """
import asyncio
import wirespeed

async def greet(ws):
    await ws.send(f"hello, {ws.request.path} by {ws.subprotocol}")

async def fail(ws):
    raise ZeroDivisionError("of the handler")

async def stay(ws):
    await ws.send("here")
    try:
        await asyncio.sleep(3600)
    finally:
        print("cancelled", flush=True)

class Shout(wirespeed.Listener):
    def on_message(self, ws, message):
        ws.send_nowait(message.upper())

class nested:
    greet = greet

number = 7
"""


Serve = Callable[..., Serving]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts the command in a folder with an application; it is stopped at the end."""
    (tmp_path / "app.py").write_text(APP)
    made: list[Serving] = []

    def start(*arguments: str) -> Serving:
        address = [] if "--unix" in arguments else ["--port", "0"]
        made.append(Serving(*address, *arguments, folder=tmp_path))
        return made[-1]

    yield start
    for one in made:
        one.stop()


# Applications


def test_echo(serve: Serve) -> None:
    served = serve()
    assert served.uri.startswith("ws://localhost:")
    with connect(served.uri, proxy=None) as ws:
        for message in ("hello", b"\x00\xff", "", "x" * 200_000):
            ws.send(message)
            assert ws.recv(timeout=20) == message
    with pytest.raises(ConnectionClosed) as caught, connect(served.uri, proxy=None) as ws:
        ws.send(b"x" * (2**20 + 1))
        ws.recv(timeout=20)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1009


def test_echo_closes_with_the_requested_code(serve: Serve) -> None:
    served = serve()
    for code in (1000, 1011, 4001):
        with pytest.raises(ConnectionClosed) as caught, connect(f"{served.uri}/close?code={code}", proxy=None) as ws:
            ws.recv(timeout=20)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == code
    for path in ("/close", "/close?code=1005", "/close?code=999", "/x/close?code=1000"):
        with connect(served.uri + path, proxy=None) as ws:
            ws.send("hello")
            assert ws.recv(timeout=20) == "hello"


@pytest.mark.parametrize("name", ["app:greet", "app:nested.greet"])
def test_handler(serve: Serve, name: str) -> None:
    served = serve("--subprotocol", "b", "--subprotocol", "a", name)
    with connect(f"{served.uri}/x?y=1", subprotocols=[Subprotocol("a"), Subprotocol("b")], proxy=None) as ws:
        assert ws.recv(timeout=20) == "hello, /x?y=1 by b"
        with pytest.raises(ConnectionClosed) as caught:
            ws.recv(timeout=20)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1000


def test_listener(serve: Serve) -> None:
    with connect(serve("app:Shout").uri, proxy=None) as ws:
        ws.send("hello")
        assert ws.recv(timeout=20) == "HELLO"


def test_failure_of_a_handler_is_shown(serve: Serve) -> None:
    served = serve("app:fail")
    with connect(served.uri, proxy=None) as ws, pytest.raises(ConnectionClosed):
        ws.recv(timeout=20)
    assert served.child.read_until("ZeroDivisionError: ") == "of the handler"


# Access


def status_of(uri: str, **options: Any) -> int:
    """Returns 101, or the status of a refusal."""
    try:
        with connect(uri, proxy=None, **options):
            return 101
    except InvalidStatus as exc:
        return exc.response.status_code


def test_paths(serve: Serve) -> None:
    served = serve("--path", "/chat", "--path", "/")
    assert served.uri.endswith("/chat")
    base = served.uri.removesuffix("/chat")
    assert served.child.read_until("listening on ") == f"{base}/"
    assert [status_of(base + path) for path in ("/chat", "/chat?x=/", "/", "/chat/", "/other")] == [
        *(101, 101, 101),
        *(404, 404),
    ]


def test_origins(serve: Serve) -> None:
    served = serve("--origin", "https://example.com", "-v")
    assert status_of(served.uri, origin="https://example.com") == 101
    assert status_of(served.uri, origin="https://example.org") == 403
    assert status_of(served.uri) == 403
    assert "refused" in served.child.read_line()
    assert status_of(serve("--origin", "https://example.com", "--origin", "none").uri) == 101


def test_limits(serve: Serve) -> None:
    served = serve("--max-size", "1k", "--ping", "0.05", "--timeout", "0.3")
    with pytest.raises(ConnectionClosed) as caught, connect(served.uri, proxy=None) as ws:
        ws.send(b"x" * 1025)
        ws.recv(timeout=20)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1009
    address = ("localhost", int(served.uri.rpartition(":")[2]))
    with socket.create_connection(address, timeout=20) as silent:
        # The limit for opening: with its default, 10 s, this would time out.
        silent.settimeout(8)
        while silent.recv(1024):
            pass


# Listening


def test_hosts(serve: Serve) -> None:
    served = serve("--host", "127.0.0.1", "--host", "localhost")
    assert served.uri.startswith("ws://127.0.0.1:")
    other = served.child.read_until("listening on ")
    assert other == served.uri.replace("127.0.0.1", "localhost")
    assert status_of(served.uri) == status_of(other) == 101


def test_unix(serve: Serve, tmp_path: Path) -> None:
    served = serve("--unix", "app.sock")
    assert served.uri == "app.sock"
    with unix_connect(str(tmp_path / "app.sock"), uri="ws://localhost/") as ws:
        ws.send("hello")
        assert ws.recv(timeout=20) == "hello"
    assert served.end() == 0
    assert not (tmp_path / "app.sock").exists()


def test_reuse_port(serve: Serve) -> None:
    first = serve("--reuse-port")
    second = serve("--reuse-port", "--port", first.uri.rpartition(":")[2])
    assert second.uri == first.uri


def test_address_in_use(serve: Serve, capfd: pytest.CaptureFixture[str]) -> None:
    port = serve("--host", "127.0.0.1").uri.rpartition(":")[2]
    assert main(["serve", "--host", "127.0.0.1", "--port", port]) == 1
    expected = f"wirespeed: cannot listen on 127.0.0.1:{port}: Address already in use (--port chooses another)\n"
    assert capfd.readouterr() == ("", expected)


# TLS


@pytest.fixture
def files(certificates: Certificates, tmp_path: Path) -> Callable[[], None]:
    """Writes ``server.pem`` and ``server.key``, new ones with each call."""

    def write() -> None:
        leaf = certificates.ca.issue_cert("localhost")
        for path, data in (
            ("server.pem", leaf.cert_chain_pems[0].bytes()),
            ("server.key", leaf.private_key_pem.bytes()),
        ):
            # Like renewing programs: half of a file is never visible.
            (tmp_path / "new").write_bytes(data)
            os.replace(tmp_path / "new", tmp_path / path)

    write()
    return write


def serial(uri: str, context: ssl.SSLContext) -> object:
    """Returns the serial number of the server's current certificate.

    Without a WebSocket: the opening handshake of the blocking client of ``websockets`` 17.4 over TLS 1.3 hangs once in
    some hundred times, with the server of that library too. Its reading thread processes a session ticket while the
    other thread writes the request.
    """
    at = urllib.parse.urlsplit(uri)
    assert at.port
    with (
        socket.create_connection((at.hostname, at.port), 20) as plain,
        context.wrap_socket(plain, server_hostname=at.hostname) as encrypted,
    ):
        certificate = encrypted.getpeercert()
        assert certificate
        return certificate["serialNumber"]


def test_tls(serve: Serve, certificates: Certificates, files: Callable[[], None]) -> None:
    served = serve("--cert", "server.pem", "--key", "server.key")
    assert served.uri.startswith("wss://localhost:")
    assert serial(served.uri, certificates.client_context())
    with wirespeed_connect(served.uri, ssl=TLS(ca=certificates.ca_file)) as ws:
        ws.send("hello")
        assert ws.recv(timeout=20) == "hello"


def test_certificate_is_read_again_when_it_changes(
    serve: Serve, certificates: Certificates, files: Callable[[], None]
) -> None:
    served, context = serve("--cert", "server.pem", "--key", "server.key"), certificates.client_context()
    before = serial(served.uri, context)
    # Without session tickets, which TLS 1.2 has only inside its handshake: serial() has the reason.
    without_tickets = certificates.client_context()
    without_tickets.maximum_version = ssl.TLSVersion.TLSv1_2
    with connect(served.uri, ssl=without_tickets, proxy=None) as ws:
        files()
        # One file is replaced after the other: on a slow machine the check may come in between, log it, and repeat.
        while not served.child.read_line(30).endswith(" INFO the certificate was read again"):
            pass
        assert serial(served.uri, context) != before
        ws.send("still here")
        assert ws.recv(timeout=20) == "still here"


def test_certificate_is_read_again_after_a_signal(
    serve: Serve, certificates: Certificates, files: Callable[[], None]
) -> None:
    served, context = serve("--cert", "server.pem", "--key", "server.key"), certificates.client_context()
    before = serial(served.uri, context)
    files()
    served.child.process.send_signal(signal.SIGHUP)
    assert served.child.read_line().endswith(" INFO the certificate was read again")
    assert serial(served.uri, context) != before
    assert served.end() == 0


def test_a_certificate_that_is_wrong_changes_nothing(
    serve: Serve, certificates: Certificates, files: Callable[[], None], tmp_path: Path
) -> None:
    served, context = serve("--cert", "server.pem", "--key", "server.key"), certificates.client_context()
    before, key = serial(served.uri, context), (tmp_path / "server.key").read_bytes()
    files()
    good = (tmp_path / "server.key").read_bytes()
    (tmp_path / "server.key").write_bytes(key)
    assert "the certificate cannot be read again, the old one stays in use: " in served.child.read_line(30)
    assert serial(served.uri, context) == before
    (tmp_path / "server.key").unlink()
    assert "No such file or directory: server.key" in served.child.read_line(30)
    assert serial(served.uri, context) == before
    (tmp_path / "server.key").write_bytes(good)
    assert served.child.read_line(30).endswith(" INFO the certificate was read again")
    assert serial(served.uri, context) != before


def test_client_certificates(serve: Serve, certificates: Certificates, files: Callable[[], None]) -> None:
    served = serve("--cert", "server.pem", "--key", "server.key", "--client-ca", certificates.ca_file)
    assert serial(served.uri, certificates.client_context(certificate=True))
    # With TLS 1.3 a client notices it when it reads the response to its request.
    with pytest.raises((WebSocketException, OSError)):
        connect(served.uri, ssl=certificates.client_context(), proxy=None)


# Ends


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal(serve: Serve, number: int) -> None:
    served = serve()
    with connect(served.uri, proxy=None) as ws:
        served.child.process.send_signal(number)
        with pytest.raises(ConnectionClosed) as caught:
            ws.recv(timeout=20)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1001
    assert served.child.process.wait(20) == 0
    with pytest.raises(EOFError):  # it has logged nothing
        served.child.read_line()


def test_second_signal(serve: Serve) -> None:
    served = serve("app:stay")
    with connect(served.uri, proxy=None) as ws:
        assert ws.recv(timeout=20) == "here"
        served.child.process.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionClosed):
            ws.recv(timeout=20)
        time.sleep(0.1)
        assert served.child.process.poll() is None
        assert served.end() == 0
    assert served.child.read_line() == "cancelled"


# Errors on the command line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["app"], "'app' is not of the form module:handler"),
        (["./app:greet"], "'./app:greet' is not of the form module:handler"),
        (["nowhere:greet"], "there is no module nowhere, here or installed"),
        (["app.py:greet"], "there is no module app.py, here or installed; write app:greet"),
        (["app:nested.nothing"], "there is no nested.nothing in app"),
        (["app:number"], "handler must be a coroutine function, not int"),
        (["--port", "70000"], "'70000' is not a port, 0 to 65535"),
        (["--path", "chat"], "'chat' does not begin with /"),
        (["--unix", "x.sock", "--port", "1"], "--unix excludes --port"),
        (["--key", "x.key"], "--key needs --cert"),
        (["--client-ca", "ca.pem"], "--client-ca needs --cert"),
        (["--cert", "missing.pem"], "cert: No such file or directory: missing.pem"),
        (["--subprotocol", "a b"], "subprotocols"),
    ],
)
def test_usage(
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    expected: str,
) -> None:
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "app", raising=False)
    assert main(["serve", *arguments]) == 2
    assert expected in capfd.readouterr().err


def test_failure_of_a_module_is_shown(tmp_path: Path) -> None:
    """With its traceback, because the module is the user's own."""
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(EOFError, match=r"status 1, before a line 'listening on '") as caught:
        Serving("broken:handler", folder=tmp_path)
    assert "ModuleNotFoundError: No module named 'nothing_of_that_name'" in str(caught.value)
